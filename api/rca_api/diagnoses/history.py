"""What the service remembers, as it is handed to a diagnosis; a process that computes has no database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rca.telemetry.job import Job


@dataclass(frozen=True)
class NodeOdds:
    """Odds factors of suspicious nodes, and the jobs whose blames they rest on."""

    odds: Mapping[str, float] = field(default_factory=dict)
    jobs: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def excluding(self, job_id: str) -> dict[str, float]:
        """Factors for a job; of a node that it blamed itself there is none: it must not confirm itself."""
        return {node: factor for node, factor in self.odds.items() if job_id not in self.jobs[node]}


#: Seconds after which what a job did is no measure of it any more: a week.
LONGEST_AGO = 7 * 86_400.0
#: Windows kept of a job; none overlaps another.
MOST_OF_A_JOB = 3


class HealthyWindow(NamedTuple):
    """A stored window that was found healthy: its digest, and its bounds in Unix seconds."""

    digest: str
    start: float
    end: float


@dataclass(frozen=True)
class EarlierWindows:
    """The last windows of each job that were found healthy, the newest first."""

    of_job: Mapping[str, tuple[HealthyWindow, ...]] = field(default_factory=dict)

    def before(self, job: Job) -> str | None:
        """Digest of the newest that was over when a job's window began, not too long ago; None without."""
        known = self.of_job.get(job.job_id, ())
        return next((each.digest for each in known if 0.0 <= job.start - each.end <= LONGEST_AGO), None)


def apart(newest_first: Iterable[HealthyWindow]) -> tuple[HealthyWindow, ...]:
    """The newest windows that do not overlap: of windows that slide, one in the length of a window.

    Parameters
    ----------
    newest_first : iterable of HealthyWindow
        By their ends.
    """
    kept: list[HealthyWindow] = []
    for each in newest_first:
        if len(kept) < MOST_OF_A_JOB and (not kept or each.end <= kept[-1].start):
            kept.append(each)
    return tuple(kept)


@dataclass(frozen=True)
class Remembered:
    """What a diagnosis may use beside its window; nothing where no setting lets it."""

    nodes: NodeOdds = field(default_factory=NodeOdds)
    windows: EarlierWindows = field(default_factory=EarlierWindows)
