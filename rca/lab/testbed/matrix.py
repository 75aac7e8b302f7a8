"""A campaign's matrix: groups of scenarios as YAML, expanded the same way every time.

The draws of ranks, steps and order depend on the matrix's seed and each scenario's own name. A new group
therefore does not change the others.
"""

from __future__ import annotations

import hashlib
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rca.errors import InvalidInput
from rca.lab.testbed.catalogue import FAULTS, InjectableFault, Scope
from rca.lab.testbed.scenario import (
    Benign,
    CaptureScenario,
    Model,
    Severity,
    TestbedFault,
    TestbedJob,
    parsed,
    read_yaml,
)
from rca.sources.labels import Part, hashed_part

When = Literal["middle", "to_end", "whole"]

NODES_OF: dict[int, int] = {2: 2, 4: 2, 6: 3, 8: 4, 12: 4, 16: 4}
_Checked = ConfigDict(extra="forbid", frozen=True)


class FaultPlan(BaseModel):
    """A fault with drawn ranks, nodes and steps.

    Attributes
    ----------
    when : {"middle", "to_end", "whole"}
        From about a third to four fifths of the run; from a third to the end; the whole run.
    severity : int or None
        None takes the scenario's severity.
    """

    model_config = _Checked

    kind: str
    scope: Scope | None = None
    when: When = "middle"
    severity: Severity | None = None

    @property
    def spec(self) -> InjectableFault:
        return FAULTS[self.kind]


class ScenarioGroup(BaseModel):
    """Scenarios that differ only in model, world size, severity and repetition.

    Attributes
    ----------
    gpus : int
        Number of ranks that compute on a real GPU; the ranks are drawn. Every rank then has its own node.
    """

    model_config = _Checked

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    faults: tuple[FaultPlan, ...] = ()
    benign: tuple[Benign, ...] = ()
    models: tuple[Model, ...] = ("mlp", "transformer")
    world_sizes: tuple[int, ...] = (8,)
    pipeline: int = 1
    gpus: Annotated[int, Field(ge=0)] = 0
    severities: tuple[Severity, ...] = (2,)
    repeat: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _known(self) -> ScenarioGroup:
        unknown = [plan.kind for plan in self.faults if plan.kind not in FAULTS]
        if unknown:
            raise ValueError(f"unknown fault {unknown[0]!r}; one of: {', '.join(FAULTS)}")
        sizes = [size for size in self.world_sizes if size not in NODES_OF]
        if sizes:
            raise ValueError(f"world size {sizes[0]}; one of: {', '.join(map(str, NODES_OF))}")
        if self.gpus > min(self.world_sizes):
            raise ValueError(f"{self.gpus} GPU ranks in a job of {min(self.world_sizes)}")
        lacking = {"gpu": self.gpus == 0, "stand_in": self.gpus == min(self.world_sizes), "any": False}
        without_target = [plan.kind for plan in self.faults if lacking[plan.spec.device]]
        if without_target:
            raise ValueError(
                f"{without_target[0]} has no possible target in a job with {self.gpus} GPU ranks"
            )
        return self


class ScenarioMatrix(BaseModel):
    """A campaign.

    Attributes
    ----------
    seed : int
        Seed of affected ranks, steps and the order of captures.
    split_seed : int
        Seed of the assignment of groups and world sizes to parts; choose one with every cause in every part.
    shares : dict of str to float
        Shares of the collection's parts; they add up to 1.
    """

    model_config = _Checked

    name: str
    seed: int = 0
    split_seed: int = 0
    steps: int = 66
    shares: dict[Part, float] = {"train": 0.5, "calibration": 0.15, "test": 0.35}
    groups: tuple[ScenarioGroup, ...]

    @model_validator(mode="after")
    def _consistent(self) -> ScenarioMatrix:
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError("two groups have the same name")
        if abs(sum(self.shares.values()) - 1) > 1e-9:
            raise ValueError("the shares do not add up to 1")
        return self


class Planned(BaseModel):
    """One capture of a campaign and the part of the collection it belongs to."""

    model_config = _Checked

    scenario: CaptureScenario
    group: str
    part: Part


def read_matrix(path: Path) -> ScenarioMatrix:
    """Read a matrix from YAML.

    Raises
    ------
    SourceError, InvalidInput
        If it cannot be read, or is not a matrix.
    """
    return parsed(ScenarioMatrix, read_yaml(path), str(path))


def expand(matrix: ScenarioMatrix) -> list[Planned]:
    """All captures of a matrix, in their order.

    The order is shuffled, so that drift of the machine is independent of the scenarios.
    """
    planned = [each for group in matrix.groups for each in _expanded(matrix, group)]
    order = np.random.default_rng(matrix.seed).permutation(len(planned))
    return [planned[index] for index in order]


def part_of(matrix: ScenarioMatrix, group: str, world_size: int) -> Part:
    """The part of the collection for a group's captures at a world size.

    All repetitions, models and severities are in the same part, so that training and test data stay separate.
    """
    return hashed_part(f"{matrix.split_seed}/{group}/{world_size}", matrix.shares)


def _expanded(matrix: ScenarioMatrix, group: ScenarioGroup) -> list[Planned]:
    severities = group.severities if group.faults else (2,)
    planned = []
    for model, size, severity, number in product(
        group.models, group.world_sizes, severities, range(group.repeat)
    ):
        level = f"-s{severity}" if len(severities) > 1 else ""
        name = f"{group.name}-{model}-{size}{level}-{number}"
        scenario = _scenario(matrix, group, name, model, size, severity)
        planned.append(Planned(scenario=scenario, group=group.name, part=part_of(matrix, group.name, size)))
    return planned


def _scenario(
    matrix: ScenarioMatrix, group: ScenarioGroup, name: str, model: Model, world_size: int, severity: Severity
) -> CaptureScenario:
    digest = hashlib.sha256(f"{matrix.seed}/{name}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    draw = np.random.default_rng(seed)
    try:
        job = TestbedJob(
            model=model,
            world_size=world_size,
            # The host process of a GPU gets a core of its own.
            nodes=world_size if group.gpus else NODES_OF[world_size],
            pipeline=group.pipeline,
            steps=matrix.steps,
            # Any rank may have the GPU: its number must not reveal it.
            gpu_ranks=tuple(sorted(draw.permutation(world_size)[: group.gpus].tolist()))
            if group.gpus
            else (),
        )
        return CaptureScenario(
            name=name,
            seed=seed,
            job=job,
            faults=tuple(_drawn_fault(plan, job, severity, draw) for plan in group.faults),
            benign=group.benign,
            report_exits=bool(draw.random() < 0.5),
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise InvalidInput(f"matrix {matrix.name}: {name}: {first['msg']}") from None


def _drawn_fault(
    plan: FaultPlan, job: TestbedJob, severity: Severity, draw: np.random.Generator
) -> TestbedFault:
    scope = plan.scope or plan.spec.scopes[0]
    possible = _possible_ranks(plan, job)
    third, fifth = job.steps // 3, job.steps // 5
    first = 0 if plan.when == "whole" else third + int(draw.integers(-fifth // 2, fifth // 2 + 1))
    last = None
    if plan.when == "middle" and not plan.spec.stops_the_job:
        last = min(job.steps - 4, first + int(draw.integers(2 * fifth, 3 * fifth)))
    return TestbedFault(
        kind=plan.kind,
        scope=scope,
        ranks=(possible[int(draw.integers(len(possible)))],) if scope == "rank" else (),
        nodes=(int(draw.integers(job.nodes)),) if scope == "node" else (),
        first_step=first,
        last_step=last,
        severity=plan.severity or severity,
    )


def _possible_ranks(plan: FaultPlan, job: TestbedJob) -> list[int]:
    """Ranks with a device on which the fault can act."""
    device = plan.spec.device
    return [
        rank
        for rank in range(job.world_size)
        if device == "any" or (device == "gpu") == (rank in job.gpu_ranks)
    ]
