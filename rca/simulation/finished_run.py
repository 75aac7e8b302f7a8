"""What there is to observe: a finished run cut into segments, with shares of each rank's time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.simulation.host import launch_gap_ratio
from rca.simulation.resources import COLLECTIVE, Resources
from rca.simulation.scenario import Scenario
from rca.simulation.timing import Timing


@dataclass(frozen=True)
class World:
    """One run as exporters see it.

    Attributes
    ----------
    edges : ndarray of shape (n_segments + 1,), seconds since the job's start
        Segment ``s`` is step ``s``; a last one may follow in which the job stands still or is gone.
    n_run : int
        Segments in which steps complete.
    death : ndarray of shape (n_ranks,), seconds since the job's start
        When each rank's process ended; infinite if it did not.
    end : float, seconds since the job's start
        The window's end.
    """

    scenario: Scenario
    resources: Resources
    timing: Timing
    edges: FloatArray
    n_run: int
    death: FloatArray
    end: float

    @property
    def n_segments(self) -> int:
        return self.edges.size - 1

    @cached_property
    def duration(self) -> FloatArray:
        """Length of each segment, shape (n_segments,), seconds."""
        return np.maximum(np.diff(self.edges), 1e-6)

    @cached_property
    def node_of(self) -> IntArray:
        return np.arange(self.scenario.world_size) // self.scenario.ranks_per_node

    @cached_property
    def stands_still(self) -> FloatArray:
        """1 in segments without progress, shape (n_segments,)."""
        return (np.arange(self.n_segments) >= self.n_run).astype(np.float64)

    def state(self, name: str) -> FloatArray:
        """Give a resource per segment; a stopped job keeps the state it stopped in."""
        return self._extended(getattr(self.resources, name))

    def share(self, *phases: str) -> FloatArray:
        """Share of each segment spent in the phases, shape (n_ranks, n_segments); 0 where nothing moves."""
        total = sum(self._extended(self.timing.phases[f"{phase}_seconds"]) for phase in phases)
        return np.clip(total / self.duration * (1 - self.stands_still), 0.0, 1.0)

    @cached_property
    def alive(self) -> FloatArray:
        """Share of each segment in which a rank's process was there, shape (n_ranks, n_segments)."""
        return np.clip((self.death[:, None] - self.edges[:-1]) / self.duration, 0.0, 1.0)

    @cached_property
    def waiting(self) -> FloatArray:
        """Share of time spent waiting for others; all of it once the job stands still."""
        waiting = np.maximum(self.share("communication_wait"), self.stands_still)
        stop = self.resources.stop
        if stop is not None and stop.phase < COLLECTIVE:
            # Who never joined does not wait either: no collective kernel spins on its device.
            waiting[list(stop.ranks), self.n_run :] = 0.0
        return waiting

    @cached_property
    def gap_ratio(self) -> FloatArray:
        return self._extended(launch_gap_ratio(self.scenario, self.resources))

    @cached_property
    def queued(self) -> FloatArray:
        """Share of each segment in which single launches waited for a core, (n_ranks, n_segments)."""
        queued = self._extended(self.timing.queued) / self.duration
        return np.clip(queued * (1 - self.stands_still), 0.0, 1.0)

    @cached_property
    def pace(self) -> FloatArray:
        """Steps per second, shape (n_segments,); 0 once the job stands still."""
        return (1 - self.stands_still) / self.duration

    def by_node(self, per_rank: FloatArray) -> FloatArray:
        """Sum over the ranks of each node, shape (n_nodes, n_segments)."""
        starts = np.arange(0, self.scenario.world_size, self.scenario.ranks_per_node)
        return np.asarray(np.add.reduceat(per_rank, starts, axis=0))

    def _extended(self, values: FloatArray) -> FloatArray:
        if values.shape[1] >= self.n_segments:
            return values[:, : self.n_segments]
        return np.concatenate([values, values[:, -1:]], axis=1)
