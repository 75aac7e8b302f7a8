"""Labels in feedback: checked against the cause catalogue and the job, completed and compared."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from pydantic import ConfigDict, Field

from rca.sources.labels import LabelledCause, WindowLabel
from rca.window.causes import SLOW_CAUSES, SPECS, STOP_CAUSES, UNKNOWN, FailureMode, Pattern, StragglerType
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.shell.requests.parameters import GivenBody, Name
from rca_api.shell.requests.problems import ProblemError

_MAX_LIST_LENGTH = 100_000
Step = Annotated[int, Field(ge=0, lt=2**63)]


class GivenCause(GivenBody):
    """A true cause."""

    cause: str = Field(description="Id from the cause catalogue.", json_schema_extra={"enum": list(SPECS)})
    ranks: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field([], max_length=_MAX_LIST_LENGTH)
    nodes: list[Name] = Field([], max_length=_MAX_LIST_LENGTH)
    first_step: Step | None = None
    last_step: Step | None = None
    severity: Annotated[float, Field(ge=0, le=1)] | None = None


class GivenLabel(GivenBody):
    """The true label of a window, with the fields of ``label.json``."""

    model_config = ConfigDict(
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


def checked(given: GivenLabel, row: DiagnosisRow) -> WindowLabel:
    """Make a label, if it fits the diagnosed job.

    Raises
    ------
    ProblemError
        422 with the place of the error.
    """
    if given.failure_mode == "healthy" and (given.causes or given.straggler_type or given.pattern):
        raise _refused("failure_mode", "a healthy window has no causes, type or pattern")
    for number, cause in enumerate(given.causes):
        _check_cause(f"causes.{number}", cause, given.failure_mode, row)
    causes = tuple(
        each.model_dump() | {"ranks": sorted(set(each.ranks)), "nodes": sorted(set(each.nodes))}
        for each in given.causes
    )
    return WindowLabel.model_validate(given.model_dump() | {"causes": causes})


def confirmed(row: DiagnosisRow) -> WindowLabel:
    """Make a label of the diagnosis.

    Raises
    ------
    ProblemError
        409 if the diagnosis abstained, and suspects no machine either.
    """
    diagnosis = orjson.loads(row.document or b"{}")
    if diagnosis["abstained"] and (diagnosis["abstention_reason"] or {}).get("code") != "machine_stands_out":
        raise ProblemError(
            "conflict",
            "the diagnosis abstained, so there is nothing to confirm",
            hint="send the true label as `label`",
        )
    first: dict[str, Any] = next(iter(diagnosis["stragglers"]), {})
    causes = tuple(
        LabelledCause(cause=each["cause"], ranks=each["ranks"], nodes=each["nodes"])
        for each in diagnosis["causes"]
        if each["cause"] in SPECS
    )
    has_failure = diagnosis["failure_mode"] != "healthy"
    return WindowLabel(
        failure_mode=diagnosis["failure_mode"],
        straggler_type=first.get("straggler_type") if has_failure else None,
        pattern=first.get("pattern") if has_failure else None,
        causes=causes if has_failure else (),
    )


def meaning(label: WindowLabel) -> str:
    """A text that is equal for labels with equal failure mode, causes and ranks.

    Nodes count only for causes without ranks. Steps, severity and pattern do not count.
    """
    causes = sorted(
        [each.cause, sorted(set(each.ranks)), [] if each.ranks else sorted(set(each.nodes))]
        for each in label.causes
    )
    return orjson.dumps([label.failure_mode, causes]).decode()


def nodes_of(cause: LabelledCause, diagnosis: dict[str, Any]) -> set[str]:
    """Nodes of a cause of a label, as far as the label or the diagnosis has them.

    Parameters
    ----------
    diagnosis : dict
        If the cause has ranks only, their node is known if the diagnosis has them in a group on one node.
    """
    if cause.nodes or not cause.ranks:
        return set(cause.nodes)
    places = [*diagnosis["causes"], *diagnosis["stragglers"]]
    return {
        place["nodes"][0]
        for place in places
        if len(place["nodes"]) == 1 and not set(cause.ranks).isdisjoint(place["ranks"])
    }


def read(document: dict[str, Any]) -> WindowLabel:
    """Read a stored label."""
    return WindowLabel.model_validate(document)


def _check_cause(place: str, cause: GivenCause, mode: str, row: DiagnosisRow) -> None:
    known = STOP_CAUSES if mode == "fail_stop" else (*SLOW_CAUSES, UNKNOWN)
    if cause.cause not in SPECS:
        raise _refused(f"{place}.cause", f"{cause.cause!r} is not in the cause catalogue")
    if cause.cause not in known:
        raise _refused(f"{place}.cause", f"{cause.cause!r} is not a cause of {mode}")
    beyond = [rank for rank in cause.ranks if row.world_size is not None and rank >= row.world_size]
    if beyond:
        raise _refused(f"{place}.ranks", f"rank {beyond[0]} is not one of the job's {row.world_size} ranks")
    unknown = [node for node in cause.nodes if row.nodes and node not in row.nodes]
    if unknown:
        raise _refused(f"{place}.nodes", f"{unknown[0]!r} is not one of the job's nodes")
    if None not in (cause.first_step, cause.last_step) and (cause.last_step or 0) < (cause.first_step or 0):
        raise _refused(f"{place}.last_step", "comes before first_step")


def _refused(place: str, why: str) -> ProblemError:
    return ProblemError("invalid-parameters", f"body.label.{place}: {why}")
