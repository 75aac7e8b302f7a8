"""What the service remembers, as it is handed to a diagnosis; a process that computes has no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rca.telemetry.job import Job
from rca_api.nodes.history import NodeHistory


class HealthyWindow(NamedTuple):
    """A stored window that was found healthy: its digest, and its end in Unix seconds."""

    digest: str
    end: float


@dataclass(frozen=True)
class EarlierWindows:
    """The last windows of each job that were found healthy, the newest first."""

    of_job: Mapping[str, tuple[HealthyWindow, ...]] = field(default_factory=dict)

    def before(self, job: Job) -> str | None:
        """Digest of the newest that was over when a job's window began; None if there is none."""
        over = (each.digest for each in self.of_job.get(job.job_id, ()) if each.end <= job.start)
        return next(over, None)


@dataclass(frozen=True)
class Remembered:
    """What a diagnosis may use beside its window; nothing where no setting lets it."""

    nodes: NodeHistory = field(default_factory=NodeHistory)
    windows: EarlierWindows = field(default_factory=EarlierWindows)
