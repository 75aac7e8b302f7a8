"""History of nodes and jobs that a diagnosis may use. It travels with each task: the pool has no database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rca.window.job import Job


@dataclass(frozen=True)
class NodeOdds:
    """Odds factors of suspicious nodes, and the jobs that blamed those nodes."""

    odds: Mapping[str, float] = field(default_factory=dict)
    jobs: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def excluding(self, job_id: str) -> dict[str, float]:
        """Odds factors by node, without nodes that the job itself has blamed: it must not confirm itself."""
        return {node: factor for node, factor in self.odds.items() if job_id not in self.jobs[node]}


#: Older windows of a job are not compared with (one week).
MAX_AGE_SECONDS = 7 * 86_400.0
#: Number of windows kept per job; they do not overlap.
MAX_WINDOWS_OF_A_JOB = 3


class HealthyWindow(NamedTuple):
    """A stored window with the diagnosis healthy: digest, and bounds in Unix seconds."""

    digest: str
    start: float
    end: float


@dataclass(frozen=True)
class EarlierWindows:
    """The last healthy windows of each job, newest first."""

    of_job: Mapping[str, tuple[HealthyWindow, ...]] = field(default_factory=dict)

    def before(self, job: Job) -> str | None:
        """Digest of the newest window that ended before the job's window began, or None."""
        known = self.of_job.get(job.job_id, ())
        return next((each.digest for each in known if 0.0 <= job.start - each.end <= MAX_AGE_SECONDS), None)


def without_overlaps(newest_first: Iterable[HealthyWindow]) -> tuple[HealthyWindow, ...]:
    """The newest windows that do not overlap; of sliding windows, one per window length.

    Parameters
    ----------
    newest_first : iterable of HealthyWindow
        Sorted by their ends.
    """
    kept: list[HealthyWindow] = []
    for each in newest_first:
        if len(kept) < MAX_WINDOWS_OF_A_JOB and (not kept or each.end <= kept[-1].start):
            kept.append(each)
    return tuple(kept)


@dataclass(frozen=True)
class History:
    """What a diagnosis may use besides its window; nodes and windows are empty unless a setting allows them.

    `corrections` are observed over predicted gain by action.
    """

    nodes: NodeOdds = field(default_factory=NodeOdds)
    windows: EarlierWindows = field(default_factory=EarlierWindows)
    corrections: Mapping[str, float] = field(default_factory=dict)
