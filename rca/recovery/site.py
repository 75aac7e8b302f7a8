"""What a recovery costs at a site, how much of it may change at once, and what the job can do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rca.errors import InvalidInput, SourceError
from rca.files import read_text
from rca.window.job import Job

#: Schedule, start, load and first collective of a restart, where neither the site nor the job gives it.
RESTART_SECONDS = 600.0
#: Interval between checkpoints where it is unknown; a restart loses half of it on average.
CHECKPOINT_SECONDS = 1800.0
#: Largest share of a pool that may be out of service: fleet guard of Node Verdict.
POOL_SHARE = 0.2
#: Share of a job's nodes from which a change stops for a person: fleet guard of Node Verdict.
JOB_SHARE = 0.5

#: Longest time that is believed, seconds.
LONGEST = 1e7

Seconds = Annotated[float, Field(ge=0.0, le=LONGEST, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Factor = Annotated[float, Field(ge=0.0, le=2.0)]
#: Libraries of `rca.runtime` that act in a running job.
Library = Literal["antdt", "star", "stragglar"]
#: Whether each data-parallel worker holds all parameters (DDP), or a part of them (FSDP, ZeRO).
Parameters = Literal["replicated", "sharded"]


class Site(BaseModel):
    """Costs and limits of recovery at a site; absent values follow from the job's hints or defaults.

    Attributes
    ----------
    restart_seconds : float, optional
        From the decision to stop until the job makes its next step.
    checkpoint_seconds : float, optional
        Time between two checkpoints.
    failure_seconds : float, optional
        Mean time between failures of the job.
    steps_left : int, optional
        Steps until the job ends. Actions that pay off later are left out.
    pool_nodes, nodes_out : int
        Nodes of the pool, and those of them that are out of service already. Without a pool only
        `most_of_job` limits an action.
    most_of_pool, most_of_job : float
        Guards: share of the pool that may be out, and share of the job's nodes that may change at once.
    nics_per_node : int, optional
        Network interfaces that a node's collectives may use.
    gradient_noise_scale : float, optional
        In samples; prices actions that change how many samples one update has.
    seconds_lost : float
        What the incident has cost the job before this window.
    corrections : mapping of str to float
        Observed over predicted gain by action, from earlier incidents.
    parameters : {"replicated", "sharded"}, optional
        How the job holds its parameters. Sharded ones rule out updates without some workers.
    tensor_parallel : int, optional
        Ranks that compute one worker's layers together.
    libraries : tuple of {"antdt", "star", "stragglar"}, optional
        Those of `rca.runtime` that run in the job. Actions of the others need code and a restart.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    restart_seconds: Seconds | None = None
    checkpoint_seconds: Annotated[float, Field(gt=0.0, le=LONGEST)] | None = None
    failure_seconds: Annotated[float, Field(gt=0.0, le=1e10)] | None = None
    steps_left: Annotated[int, Field(ge=0, le=10**9, strict=True)] | None = None
    pool_nodes: Annotated[int, Field(ge=1, le=10**6)] | None = None
    nodes_out: Count = 0
    most_of_pool: Share = POOL_SHARE
    most_of_job: Share = JOB_SHARE
    nics_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    gradient_noise_scale: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    seconds_lost: Annotated[float, Field(ge=0.0, le=1e10)] = 0.0
    corrections: Mapping[str, Factor] = Field(default_factory=dict)
    parameters: Parameters | None = None
    tensor_parallel: Annotated[int, Field(ge=1, le=10**6)] | None = None
    libraries: tuple[Library, ...] | None = None

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> Self:
        """A site from untrusted values.

        Raises
        ------
        InvalidInput
            Names the first wrong field.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "site"
            raise InvalidInput(
                f"{place}: {first['msg'].lower()}", hint=f"fields: {', '.join(cls.model_fields)}"
            ) from None

    @classmethod
    def read(cls, path: Path, changes: Mapping[str, Any] | None = None) -> Self:
        """The site of a YAML or JSON file, with some values changed.

        Raises
        ------
        SourceError
            If the file cannot be read or holds no mapping.
        InvalidInput
            If a value is wrong.
        """
        # Few diagnoses have such a file, and all would wait for this import.
        import yaml

        hint = f"fields: {', '.join(cls.model_fields)}"
        try:
            values = yaml.safe_load(read_text(path))
        except OSError as error:
            raise SourceError(f"cannot read {path}: {error.strerror}") from None
        # Dates that no calendar has are a ValueError of the parser.
        except (yaml.YAMLError, ValueError, RecursionError):
            raise SourceError(f"{path} is not YAML", hint=hint) from None
        if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
            raise SourceError(f"{path} has no fields", hint=hint)
        return cls.checked({**values, **(changes or {})})

    @classmethod
    def of_job(cls, job: Job, step_seconds: float) -> Self:
        """The costs and capabilities that a job gives as hints."""
        found: dict[str, Any] = {}
        if seconds := positive_hint(job, "restart_seconds"):
            found["restart_seconds"] = seconds
        steps = positive_hint(job, "checkpoint_interval_steps")
        if steps and 0 < steps * step_seconds <= LONGEST:
            found["checkpoint_seconds"] = steps * step_seconds
        if noise := positive_hint(job, "gradient_noise_scale"):
            found["gradient_noise_scale"] = noise
        if job.parallelism is not None and job.parallelism.tensor > 1:
            found["tensor_parallel"] = job.parallelism.tensor
        if (parameters := job.hints.get("parameters")) in get_args(Parameters):
            found["parameters"] = parameters
        if isinstance(libraries := job.hints.get("libraries"), list):
            found["libraries"] = tuple(each for each in libraries if each in get_args(Library))
        return cls(**found)

    def filled(self, hints: Site) -> Self:
        """The site with the hints of a job in place of what it leaves open."""
        return self.model_copy(
            update={name: getattr(hints, name) for name in _HINTED if getattr(self, name) is None}
        )

    def corrected(self, factors: Mapping[str, float]) -> Self:
        """The site with corrections by action, except for actions that have one."""
        if not factors:
            return self
        return self.model_copy(update={"corrections": {**factors, **self.corrections}})

    @property
    def restart_cost(self) -> float:
        """Seconds that a restart takes from the job: the restart, and half a checkpoint interval of work."""
        restart = RESTART_SECONDS if self.restart_seconds is None else self.restart_seconds
        between = CHECKPOINT_SECONDS if self.checkpoint_seconds is None else self.checkpoint_seconds
        return restart + between / 2

    @property
    def nodes_to_spare(self) -> int | None:
        """Nodes that may still be taken out of the pool, at least one of an untouched pool; None without."""
        if self.pool_nodes is None:
            return None
        return max(max(int(self.pool_nodes * self.most_of_pool), 1) - self.nodes_out, 0)


_HINTED = (
    "restart_seconds", "checkpoint_seconds", "gradient_noise_scale",
    "parameters", "tensor_parallel", "libraries",
)  # fmt: skip


def positive_hint(job: Job, name: str, most: float = LONGEST) -> float | None:
    """A hint of a job that is a positive number of at most `most`; None for anything else."""
    value: object = job.hints.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        return None
    return float(value)
