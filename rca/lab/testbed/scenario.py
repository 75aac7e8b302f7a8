"""A scenario: the job, its faults, and their steps. It is read from YAML and validated before the capture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rca.errors import InvalidInput, SourceError
from rca.files import read_text
from rca.lab.testbed.catalogue import FAULTS, InjectableFault, Scope

Model = Literal["mlp", "transformer", "convolution"]
Benign = Literal["hiccup", "neighbour_load", "clock_skew", "slow_warm_up"]
Severity = Literal[1, 2, 3]

MAX_TESTBED_RANKS = 16
WARM_UP_STEPS = 4
# Six ranks keep two cores busy enough; more ranks get proportionally longer kernels.
COMFORTABLE_RANKS = 6
NOMINAL_STEP_SECONDS = 0.088
Parsed = TypeVar("Parsed", bound=BaseModel)
_Checked = ConfigDict(extra="forbid", frozen=True)


class TestbedJob(BaseModel):
    """The training job.

    Attributes
    ----------
    model : {"mlp", "transformer", "convolution"}
    world_size, nodes, pipeline : int
        `nodes` and `pipeline` divide `world_size`. Pipeline ranks are numbered stage by stage.
    gpu_ranks : tuple of int
        Ranks that compute on a real GPU, one each; processes replace the other ranks' devices.
    """

    model_config = _Checked

    model: Model = "mlp"
    world_size: Annotated[int, Field(ge=2, le=MAX_TESTBED_RANKS)] = 8
    nodes: Annotated[int, Field(ge=1, le=MAX_TESTBED_RANKS)] = 4
    pipeline: Annotated[int, Field(ge=1)] = 1
    steps: Annotated[int, Field(ge=8, le=2000)] = 66
    gpu_ranks: tuple[Annotated[int, Field(ge=0)], ...] = ()

    @model_validator(mode="after")
    def _gpus_fit(self) -> TestbedJob:
        if any(rank >= self.world_size for rank in self.gpu_ranks):
            raise ValueError(f"gpu_ranks: a rank outside 0..{self.world_size - 1}")
        if len(set(self.gpu_ranks)) < len(self.gpu_ranks):
            raise ValueError("gpu_ranks: a rank occurs twice")
        if self.gpu_ranks and self.pipeline > 1:
            raise ValueError("a job with GPU ranks is data-parallel: pipeline must be 1")
        return self

    @model_validator(mode="after")
    def _divisible(self) -> TestbedJob:
        if self.world_size % self.nodes:
            raise ValueError(f"{self.nodes} nodes do not divide {self.world_size} ranks")
        if self.world_size % self.pipeline:
            raise ValueError(f"{self.pipeline} stages do not divide {self.world_size} ranks")
        return self

    @property
    def ranks_per_node(self) -> int:
        return self.world_size // self.nodes

    @property
    def data(self) -> int:
        return self.world_size // self.pipeline

    @property
    def scale(self) -> float:
        """Factor on all kernel times, so that many ranks still fit on few cores."""
        return max(1.0, self.world_size / COMFORTABLE_RANKS)

    @property
    def nominal_step_seconds(self) -> float:
        return NOMINAL_STEP_SECONDS * self.scale

    def node_of(self, rank: int) -> int:
        """Index of the node that hosts `rank`."""
        return rank // self.ranks_per_node

    def place_in_node(self, rank: int) -> int:
        """Number of `rank` among the ranks of its node."""
        return rank % self.ranks_per_node

    def ranks_of_node(self, node: int) -> list[int]:
        """Ranks that `node` hosts."""
        return list(range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node))

    def stage_of(self, rank: int) -> int:
        """Pipeline stage of `rank`."""
        return rank // self.data

    def ranks_of_stage(self, stage: int) -> list[int]:
        """Ranks that hold `stage`."""
        return list(range(stage * self.data, (stage + 1) * self.data))


class TestbedFault(BaseModel):
    """One fault, from `first_step` to `last_step`, both inclusive; without `last_step` to the end."""

    model_config = _Checked

    kind: str
    scope: Scope
    ranks: tuple[Annotated[int, Field(ge=0)], ...] = ()
    nodes: tuple[Annotated[int, Field(ge=0)], ...] = ()
    first_step: Annotated[int, Field(ge=0)]
    last_step: int | None = None
    severity: Severity = 2

    @model_validator(mode="after")
    def _sensible(self) -> TestbedFault:
        if self.kind not in FAULTS:
            raise ValueError(f"unknown fault {self.kind!r}; one of: {', '.join(FAULTS)}")
        if self.scope not in self.spec.scopes:
            raise ValueError(f"{self.kind} has the scopes {', '.join(self.spec.scopes)}; not {self.scope}")
        if self.scope == "rank" and (not self.ranks or self.nodes):
            raise ValueError("a rank's fault names its ranks, and no nodes")
        if self.scope == "node" and (not self.nodes or self.ranks):
            raise ValueError("a node's fault names its nodes, and no ranks")
        if self.scope in ("stage", "job") and (self.ranks or self.nodes):
            raise ValueError(f"a {self.scope}'s fault names neither ranks nor nodes")
        if self.last_step is not None and self.last_step < self.first_step:
            raise ValueError("last_step lies before first_step")
        return self

    @property
    def spec(self) -> InjectableFault:
        return FAULTS[self.kind]

    @property
    def level(self) -> float:
        return self.spec.level(self.severity)

    def affected_ranks(self, job: TestbedJob) -> list[int]:
        """Affected ranks."""
        if self.scope == "rank":
            return sorted(self.ranks)
        if self.scope == "node":
            return sorted(rank for node in self.nodes for rank in job.ranks_of_node(node))
        if self.scope == "stage":
            return job.ranks_of_stage(job.pipeline - 1)
        return list(range(job.world_size))


class CaptureScenario(BaseModel):
    """One capture: a job, faults, harmless noise.

    Attributes
    ----------
    report_exits : bool
        Whether ended processes become events of the window, as an elastic launcher would report them.
    """

    model_config = _Checked

    name: Annotated[str, Field(min_length=1, pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    seed: int = 0
    job: TestbedJob = TestbedJob()
    faults: tuple[TestbedFault, ...] = ()
    benign: tuple[Benign, ...] = ()
    report_exits: bool = True

    @model_validator(mode="after")
    def _fits_the_job(self) -> CaptureScenario:
        for fault in self.faults:
            if any(rank >= self.job.world_size for rank in fault.ranks):
                raise ValueError(f"{fault.kind}: a rank outside 0..{self.job.world_size - 1}")
            if any(node >= self.job.nodes for node in fault.nodes):
                raise ValueError(f"{fault.kind}: a node outside 0..{self.job.nodes - 1}")
            last = fault.first_step if fault.last_step is None else fault.last_step
            if last >= self.job.steps:
                raise ValueError(f"{fault.kind}: a step beyond the last, {self.job.steps - 1}")
            if fault.kind == "full_last_stage" and self.job.pipeline < 2:
                raise ValueError("full_last_stage needs a job with pipeline stages")
            if fault.kind == "sequence_lengths" and self.job.model != "transformer":
                raise ValueError("sequence_lengths needs the transformer")
            self._refuse_wrong_device(fault)
        if sum(fault.spec.stops_the_job for fault in self.faults) > 1:
            raise ValueError("a job stops only once")
        return self

    def _refuse_wrong_device(self, fault: TestbedFault) -> None:
        affected_ranks, real = set(fault.affected_ranks(self.job)), set(self.job.gpu_ranks)
        if fault.spec.device == "gpu" and not affected_ranks <= real:
            raise ValueError(f"{fault.kind} needs a real GPU: aim it at one of job.gpu_ranks")
        if fault.spec.device == "stand_in" and affected_ranks & real:
            raise ValueError(
                f"{fault.kind} needs ranks without a real GPU; rank {min(affected_ranks & real)} has one"
            )


def read_scenario(path: Path) -> CaptureScenario:
    """Read a scenario from YAML.

    Raises
    ------
    SourceError
        If the file cannot be read.
    InvalidInput
        If it is not YAML or not a scenario; the message names the first wrong field.
    """
    return parsed(CaptureScenario, read_yaml(path), str(path))


def read_yaml(path: Path) -> Any:
    """Read a YAML document."""
    try:
        return yaml.safe_load(read_text(path))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: is not YAML: {error}") from None


def parsed(model: type[Parsed], content: Any, source: str) -> Parsed:
    """Validate `content`; the error names the first wrong field."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "document"
        raise InvalidInput(f"{source}: {place}: {first['msg']}") from None
