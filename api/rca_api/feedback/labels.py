"""Labels that people give: checked against the catalogue and the job, and compared by what they mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from rca.telemetry.causes import SLOW_CAUSES, SPECS, STOP_CAUSES, UNKNOWN, FailureMode, Pattern, StragglerType
from rca.telemetry.job import Job
from rca.telemetry.labels import Label, LabelledCause
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.problems import ProblemError

_MOST = 100_000
#: No NUL, which PostgreSQL cannot store, and no half of a surrogate pair.
Text = Annotated[str, StringConstraints(max_length=256, pattern=r"^[^\x00]*$")]
Step = Annotated[int, Field(ge=0, lt=2**63)]


class GivenCause(BaseModel):
    """One thing that was really wrong."""

    model_config = ConfigDict(extra="forbid")

    cause: str = Field(description="Id from the cause catalogue.", json_schema_extra={"enum": list(SPECS)})
    ranks: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field([], max_length=_MOST)
    nodes: list[Text] = Field([], max_length=_MOST)
    first_step: Step | None = None
    last_step: Step | None = None
    severity: Annotated[float, Field(ge=0, le=1)] | None = None


class GivenLabel(BaseModel):
    """The truth about a window, in the words of ``label.json``."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "failure_mode": "fail_slow",
                    "straggler_type": "communication",
                    "pattern": "persistent",
                    "causes": [{"cause": "nic_degradation", "ranks": [8, 9], "nodes": ["node-1"]}],
                }
            ]
        },
    )

    failure_mode: FailureMode
    straggler_type: StragglerType | None = None
    pattern: Pattern | None = None
    causes: list[GivenCause] = Field([], max_length=32)


def checked(given: GivenLabel, row: DiagnosisRow) -> Label:
    """Make a label of what was given, if it can be true of the diagnosed job.

    Raises
    ------
    ProblemError
        422 that names the place.
    """
    if given.failure_mode == "healthy" and (given.causes or given.straggler_type or given.pattern):
        raise _refused("failure_mode", "a healthy window has no causes, type or pattern")
    for number, cause in enumerate(given.causes):
        _check_cause(f"causes.{number}", cause, given.failure_mode, row)
    causes = tuple(
        LabelledCause(
            cause=each.cause,
            ranks=tuple(sorted(set(each.ranks))),
            nodes=tuple(sorted(set(each.nodes))),
            first_step=each.first_step,
            last_step=each.last_step,
            severity=each.severity,
        )
        for each in given.causes
    )
    return Label(
        failure_mode=given.failure_mode,
        straggler_type=given.straggler_type,
        pattern=given.pattern,
        causes=causes,
    )


def confirmed(row: DiagnosisRow) -> Label:
    """Make a label of what the diagnosis itself said.

    Raises
    ------
    ProblemError
        409 if it said nothing that could be confirmed.
    """
    told = orjson.loads(row.document or b"{}")
    if told["abstained"]:
        raise ProblemError(
            "conflict",
            "the diagnosis abstained, so there is nothing to confirm",
            hint="send what was wrong as `label`",
        )
    first: dict[str, Any] = next(iter(told["stragglers"]), {})
    causes = tuple(
        LabelledCause(cause=each["cause"], ranks=each["ranks"], nodes=each["nodes"])
        for each in told["causes"]
        if each["cause"] in SPECS
    )
    sick = told["failure_mode"] != "healthy"
    return Label(
        failure_mode=told["failure_mode"],
        straggler_type=first.get("straggler_type") if sick else None,
        pattern=first.get("pattern") if sick else None,
        causes=causes if sick else (),
    )


def meaning(label: Label) -> str:
    """What two labels have in common if they say the same: mode, and which cause on which ranks or nodes.

    Nodes count only where no ranks are given; steps, severity and pattern are details.
    """
    causes = sorted(
        [each.cause, sorted(set(each.ranks)), [] if each.ranks else sorted(set(each.nodes))]
        for each in label.causes
    )
    return orjson.dumps([label.failure_mode, causes]).decode()


def located(label: Label, job: Job) -> Label:
    """Complete each cause: its ranks where only nodes are named, its nodes where only ranks are."""
    topology = job.topology
    causes: list[LabelledCause] = []
    for each in label.causes:
        held = [rank for rank in range(job.world_size) if _on(topology, rank, each.nodes)]
        ranks = each.ranks or tuple(held)
        nodes = each.nodes or tuple(topology.nodes_of(list(ranks)) if ranks else ())
        causes.append(each.model_copy(update={"ranks": ranks, "nodes": nodes}))
    return label.model_copy(update={"causes": tuple(causes)})


def nodes_of(cause: LabelledCause, told: dict[str, Any]) -> set[str]:
    """Nodes a cause of a label is on, as far as it or the diagnosis it is about tells.

    Parameters
    ----------
    told : dict
        The diagnosis: of ranks alone we know the node only where it put them, and others, on one.
    """
    if cause.nodes or not cause.ranks:
        return set(cause.nodes)
    places = [*told["causes"], *told["stragglers"]]
    return {
        place["nodes"][0]
        for place in places
        if len(place["nodes"]) == 1 and not set(cause.ranks).isdisjoint(place["ranks"])
    }


def read(document: dict[str, Any]) -> Label:
    """Read a stored label."""
    return Label.model_validate(document)


def _on(topology: Any, rank: int, nodes: Iterable[str]) -> bool:
    index = int(topology.node[rank])
    return index >= 0 and topology.node_names[index] in nodes


def _check_cause(place: str, cause: GivenCause, mode: str, row: DiagnosisRow) -> None:
    known = STOP_CAUSES if mode == "fail_stop" else (*SLOW_CAUSES, UNKNOWN)
    if cause.cause not in SPECS:
        raise _refused(f"{place}.cause", f"{cause.cause!r} is not in the cause catalogue")
    if cause.cause not in known:
        raise _refused(f"{place}.cause", f"{cause.cause!r} is no cause of {mode}")
    beyond = [rank for rank in cause.ranks if row.world_size is not None and rank >= row.world_size]
    if beyond:
        raise _refused(f"{place}.ranks", f"rank {beyond[0]} is not one of the job's {row.world_size} ranks")
    strange = [node for node in cause.nodes if row.nodes and node not in row.nodes]
    if strange:
        raise _refused(f"{place}.nodes", f"{strange[0]!r} is not one of the job's nodes")
    if None not in (cause.first_step, cause.last_step) and (cause.last_step or 0) < (cause.first_step or 0):
        raise _refused(f"{place}.last_step", "comes before first_step")


def _refused(place: str, why: str) -> ProblemError:
    return ProblemError("invalid-parameters", f"body.label.{place}: {why}")
