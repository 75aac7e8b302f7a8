"""What an agent may do: in which jobs, which actions, how often, and whether a person approves each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rca.act.budget import TAKES_OUT, ActionBudget, Positive
from rca.frozen import Frozen
from rca.recovery.site import Site
from rca.yaml_documents import read_document

#: `dry-run`: each step is only tried without an effect. `approve`: a person approves each action.
Mode = Literal["dry-run", "approve", "automatic"]


class _Job(Frozen):
    """A job, and what its site can do.

    Attributes
    ----------
    site : Site
        Sent with the plan. No node leaves a job that is neither `elastic` nor has `spare_nodes`.
    """

    site: Site = Site()

    def spares(self, leaving: int, n_nodes: int) -> bool:
        """Whether the job goes on, or starts again, when so many of its nodes leave."""
        replaced = self.site.spare_nodes
        return (replaced is not None and leaving <= replaced) or (
            self.site.elastic is True and leaving < n_nodes
        )


class KubernetesJob(_Job):
    """A job of pods with labels."""

    platform: Literal["kubernetes"]
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    selector: Annotated[str, Field(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_./=,]*$", max_length=500)]


class SlurmJob(_Job):
    """A batch job of Slurm."""

    platform: Literal["slurm"]
    job: Annotated[str, Field(pattern=r"^[0-9]+(_[0-9]+)?$")]


class TorchrunJob(_Job):
    """A job of torchrun whose workers run on the agent's machine."""

    platform: Literal["torchrun"]


Target = Annotated[KubernetesJob | SlurmJob | TorchrunJob, Field(discriminator="platform")]


class AgentPolicy(ActionBudget):
    """What an agent may do. Its budget is of all its jobs; actions of other agents on them count as well.

    Attributes
    ----------
    journal : Path or None
        File of the durable records, of this policy alone; see `journal_of`.
    jobs : mapping of str to target
        By the job id of the telemetry. The agent acts on no other job.
    mode : {"dry-run", "approve", "automatic"}
    actions : tuple of str
        Allowed ones, of `TAKES_OUT`.
    min_chance : float
        Least probability that an action acts on the true cause.
    approval_seconds : float
        A proposal that is not begun for so long expires, and so old facts do not count.
    """

    service: str
    journal: Path | None = None
    jobs: dict[str, Target] = Field(min_length=1)
    mode: Mode = "dry-run"
    actions: tuple[str, ...] = tuple(TAKES_OUT)
    min_chance: Annotated[float, Field(ge=0.5, le=1.0)] = 0.9
    approval_seconds: Positive = 3600.0
    every_seconds: Positive = 10.0

    @model_validator(mode="after")
    def _known_actions(self) -> AgentPolicy:
        unknown = sorted(set(self.actions) - TAKES_OUT.keys())
        if unknown:
            raise ValueError(f"no steps exist for {', '.join(unknown)}; known are {', '.join(TAKES_OUT)}")
        return self


def read_policy(path: Path) -> AgentPolicy:
    """The policy of a YAML file.

    Raises
    ------
    SourceError
        If it cannot be read.
    InvalidInput
        Names the first wrong member.
    """
    return read_document(path, AgentPolicy, hint="`rca act --help` shows a policy")


def journal_of(path: Path, policy: AgentPolicy) -> Path:
    """The file of the records of a policy, which counts from the folder of its file.

    By default it has the name of the policy's file. An agent refuses the records of another policy.
    """
    return path.resolve().parent / (policy.journal or f"{path.stem}.sqlite")
