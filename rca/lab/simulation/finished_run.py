"""A finished run: how it ended, and its state in segments, as exporters observe it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.lab.simulation.resource_costs import launch_gap_ratio
from rca.lab.simulation.resources import COLLECTIVE, GANG_STOPS, Resources, Stop
from rca.lab.simulation.sampling_job import log_uniform
from rca.lab.simulation.scenario import SimulationScenario
from rca.lab.simulation.timing import Timing

# Share of crashes that peers do not notice: no connection breaks, and the device's collective never ends.
PEERS_WAIT_SHARE = 0.5
#: Seconds within which the peers of a gang notice a failed rank, log-uniform.
NOTICED_WITHIN = (1.0, 60.0)
# Share of such waits, and of hangs, that a watchdog ends within the window; share of these with ended
# processes.
GIVE_UP_SHARE, ABORT_SHARE = 0.65, 0.4


@dataclass(frozen=True)
class RunEnd:
    """How the run ended.

    Attributes
    ----------
    n_run : int
        Steps that all ranks completed.
    end : float, seconds since the job's start
    death : ndarray of shape (n_ranks,), seconds since the job's start
        When each process ended; infinite while it lives.
    still_from : float or None
        When the job stopped making progress.
    gave_up : float or None, seconds since the job's start
        When peers stopped waiting for the hung or ended ranks; None if they still wait or never did.
    """

    n_run: int
    end: float
    process_end: FloatArray
    still_from: float | None
    gave_up: float | None = None


def run_end_of(
    scenario: SimulationScenario, resources: Resources, timing: Timing, rng: np.random.Generator
) -> RunEnd:
    """Draw when the window and the processes end."""
    typical = float(np.median(timing.step_seconds))
    ends = timing.start + timing.phases["step_seconds"]
    alive = np.full(scenario.world_size, np.inf)
    n_run, last = scenario.n_steps, float(ends[:, -1].max())
    stop, ending = resources.stop, scenario.telemetry.ending
    if stop is not None:
        begun = float(timing.start[:, stop.step].mean())
        if stop.variant in GANG_STOPS:
            return _gang_end(scenario, stop, begun, typical, last, rng)
        waited = stop.variant == "vanished" or stop.kind == "hang"
        if waited or rng.random() < PEERS_WAIT_SHARE:
            if stop.silence is None:
                end = begun + float(np.clip(typical * log_uniform(rng, 6, 150), 2, 1800)) + 3 * typical
            else:
                end = begun + stop.silence * typical
            gives_up = stop.variant != "vanished" and (
                scenario.telemetry.watchdogs == "all" or rng.random() < GIVE_UP_SHARE
            )
            gave_up = begun + rng.uniform(0.3, 0.97) * (end - begun) if gives_up else None
            if gave_up is not None and rng.random() < ABORT_SHARE:
                # Watchdogs abort their processes one after the other; sometimes all processes end.
                n_gone = scenario.world_size if rng.random() < 0.3 else int(rng.integers(1, 6))
                gone = rng.permutation(scenario.world_size)[:n_gone]
                alive[gone] = gave_up + rng.uniform(0, 1, gone.size)
            if stop.kind == "crash":
                alive[list(stop.ranks)] = begun + 0.5 * typical
            return RunEnd(stop.step, end, alive, begun, gave_up)
        noticed = begun + typical * rng.uniform(0.6, 1.0) + log_uniform(rng, 0.02, 6)
        alive[:] = noticed
        alive[list(stop.ranks)] = begun + 0.5 * typical
        return RunEnd(stop.step, noticed + _delay_until_query(last, rng), alive, begun)
    if ending == "finished":
        alive[:] = last
        return RunEnd(n_run, last + _delay_until_query(last, rng), alive, last)
    if ending == "cut":
        begun = float(timing.start[:, -1].max())
        return RunEnd(n_run - 1, begun + rng.uniform(0.05, 0.9) * (last - begun), alive, None)
    return RunEnd(n_run, last + rng.uniform(0, 0.5) * typical, alive, None)


def _gang_end(
    scenario: SimulationScenario,
    stop: Stop,
    begun: float,
    typical: float,
    last: float,
    rng: np.random.Generator,
) -> RunEnd:
    """The stopped ranks end first; all others notice it within seconds to a minute, and end as well."""
    failed = begun + 0.5 * typical
    within = log_uniform(rng, *NOTICED_WITHIN)
    process_end = failed + within * rng.uniform(0.15, 1.0, scenario.world_size)
    first = list(stop.ranks)
    process_end[first] = failed + 0.1 * within * rng.uniform(0, 1, len(first)) * (np.arange(len(first)) > 0)
    return RunEnd(stop.step, float(process_end.max()) + _delay_until_query(last, rng), process_end, begun)


def _delay_until_query(last: float, rng: np.random.Generator) -> float:
    """Seconds from the job's end to the window's end: none, or many."""
    return log_uniform(rng, 0.5, max(15.0, 2 * last))


@dataclass(frozen=True)
class FinishedRun:
    """One run as exporters see it.

    Attributes
    ----------
    edges : ndarray of shape (n_segments + 1,), seconds since the job's start
        Segment ``s`` is step ``s``; a last one may follow in which the job is stalled or has ended.
    n_run : int
        Segments in which steps complete.
    death : ndarray of shape (n_ranks,), seconds since the job's start
        When each rank's process ended; infinite if it runs on.
    end : float, seconds since the job's start
        The window's end.
    """

    scenario: SimulationScenario
    resources: Resources
    timing: Timing
    edges: FloatArray
    n_run: int
    process_end: FloatArray
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
    def stalled(self) -> FloatArray:
        """1 in segments without progress, shape (n_segments,)."""
        return (np.arange(self.n_segments) >= self.n_run).astype(np.float64)

    def state(self, name: str) -> FloatArray:
        """Return a resource per segment; a stopped job keeps its last state."""
        return self._extended(getattr(self.resources, name))

    def share(self, *phases: str) -> FloatArray:
        """Share of each segment spent in the phases, (n_ranks, n_segments); 0 without progress."""
        total = sum(self._extended(self.timing.phases[f"{phase}_seconds"]) for phase in phases)
        return np.clip(total / self.duration * (1 - self.stalled), 0.0, 1.0)

    @cached_property
    def alive(self) -> FloatArray:
        """Share of each segment in which a rank's process existed, shape (n_ranks, n_segments)."""
        return np.clip((self.process_end[:, None] - self.edges[:-1]) / self.duration, 0.0, 1.0)

    @cached_property
    def waiting(self) -> FloatArray:
        """Share of time spent waiting for other ranks; 1 once the job is stalled."""
        waiting = np.maximum(self.share("communication_wait"), self.stalled)
        stop = self.resources.stop
        if stop is not None and stop.phase < COLLECTIVE:
            # A rank that never joined does not wait: no collective kernel runs on its device.
            waiting[list(stop.ranks), self.n_run :] = 0.0
        return waiting

    @cached_property
    def gap_ratio(self) -> FloatArray:
        return self._extended(launch_gap_ratio(self.scenario, self.resources))

    @cached_property
    def queued(self) -> FloatArray:
        """Share of each segment in which single launches waited for a core, (n_ranks, n_segments)."""
        queued = self._extended(self.timing.queued) / self.duration
        return np.clip(queued * (1 - self.stalled), 0.0, 1.0)

    @cached_property
    def pace(self) -> FloatArray:
        """Steps per second, shape (n_segments,); 0 once the job is stalled."""
        return (1 - self.stalled) / self.duration

    def by_node(self, per_rank: FloatArray) -> FloatArray:
        """Sum over the ranks of each node, shape (n_nodes, n_segments)."""
        starts = np.arange(0, self.scenario.world_size, self.scenario.ranks_per_node)
        return np.asarray(np.add.reduceat(per_rank, starts, axis=0))

    def _extended(self, values: FloatArray) -> FloatArray:
        if values.shape[1] >= self.n_segments:
            return values[:, : self.n_segments]
        return np.concatenate([values, values[:, -1:]], axis=1)
