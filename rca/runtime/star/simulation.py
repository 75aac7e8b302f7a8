"""Simulated jobs: every report, message and update of a mode, and the time in which it makes progress.

The mechanisms are those of `price`, and what a formula leaves out. That is steps that vary, workers that
pause, and a server that handles one message after the other. Nothing is trained: the gradient noise scale and
the learning rate say what each update is worth.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.runtime.star.grouping import Grouping
from rca.runtime.star.price import check_seconds


@dataclass(frozen=True)
class SimulatedJob:
    """What a simulated job is made of.

    Parameters
    ----------
    seconds : ndarray of shape (n_workers,)
        Mean time of a worker's own step.
    batch, noise : float
        Samples of a worker and step, and the gradient noise scale in samples.
    variation : float
        Coefficient of variation of a worker's steps.
    steps : ndarray of shape (n_workers, n_steps), optional
        Measured own times. Steps are drawn from them, in place of `seconds` and `variation`.
    pause_chance, pause_seconds : float
        Chance that a step has a pause, and its time: transient stragglers.
    reduce_seconds : float
        Time of an all-reduce.
    server_seconds : float
        Time of the parameter server for one message, in or out. It handles one after the other.
    learning_rate : float, optional
        As for `rca.runtime.star.price.Progress`.

    Raises
    ------
    InvalidInput
        If a value is negative or not finite.
    """

    seconds: FloatArray
    batch: float
    noise: float
    variation: float = 0.05
    pause_chance: float = 0.0
    pause_seconds: float = 0.0
    reduce_seconds: float = 0.0
    server_seconds: float = 0.0
    learning_rate: float | None = None
    steps: FloatArray | None = None

    def __post_init__(self) -> None:
        check_seconds(self.seconds)
        for name in (
            "noise",
            "variation",
            "pause_chance",
            "pause_seconds",
            "reduce_seconds",
            "server_seconds",
        ):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise InvalidInput(f"{name.replace('_', ' ')} is {value}")
        if self.steps is not None and len(self.steps) != self.n_workers:
            raise InvalidInput(f"{self.n_workers} workers have steps of {len(self.steps)}")

    @property
    def n_workers(self) -> int:
        return self.seconds.size


@dataclass(frozen=True)
class Updates:
    """The updates of one run.

    Attributes
    ----------
    at : ndarray of shape (n_updates,), seconds
    reports : ndarray of shape (n_updates,)
        Gradients of each update.
    weight : ndarray of shape (n_updates,)
        Its learning rate, relative to an update from all workers.
    staleness : ndarray of shape (n_updates,)
        Mean number of updates since the parameters of its gradients.
    interim : ndarray of shape (n_updates,)
        Mean sum of the weights of these updates.
    """

    at: FloatArray
    reports: FloatArray
    weight: FloatArray
    staleness: FloatArray
    interim: FloatArray

    @property
    def reports_per_second(self) -> float:
        return float(self.reports.sum() / self.at[-1])

    def seconds_per_progress(self, job: SimulatedJob) -> float:
        """Seconds in which the run makes the progress of one update without noise; infinite if never."""
        gain = self.weight.sum()
        noise = job.noise / (job.batch * self.reports)
        loss = float((self.weight * (self.weight * (1.0 + noise) + 2.0 * self.interim)).sum())
        rate = gain / loss if job.learning_rate is None else job.learning_rate
        progress = 2.0 * rate * gain - rate**2 * loss
        return float(self.at[-1] / progress) if progress > 0 else float("inf")


class _Clock:
    """Times of steps, the same for the same seed, worker and number of step."""

    def __init__(self, job: SimulatedJob, seed: int) -> None:
        self._job = job
        self._draws = [np.random.default_rng([seed, worker]) for worker in range(job.n_workers)]
        self._sigma = float(np.sqrt(np.log1p(job.variation**2)))

    def step(self, worker: int) -> float:
        draw, job = self._draws[worker], self._job
        if job.steps is not None:
            seconds = draw.choice(job.steps[worker])
        else:
            seconds = job.seconds[worker] * draw.lognormal(-(self._sigma**2) / 2, self._sigma)
        paused = draw.random() < job.pause_chance
        return float(seconds + job.pause_seconds * paused)


class _SimulatedStep:
    def __init__(self, job: SimulatedJob) -> None:
        self._full = job.n_workers
        self._rows: list[tuple[float, int, float, float, float]] = []
        self._moved = [0.0]

    @property
    def version(self) -> int:
        return len(self._rows)

    def add(self, at: float, versions: Sequence[int], weight: float | None = None) -> None:
        """An update from gradients of the parameters after so many updates."""
        moved, now = self._moved, self.version
        share = len(versions) / self._full if weight is None else weight
        interim = moved[now] - sum(moved[version] for version in versions) / len(versions)
        staleness = now - sum(versions) / len(versions)
        self._rows.append((at, len(versions), share, staleness, interim))
        moved.append(moved[-1] + share)

    def updates(self) -> Updates:
        return Updates(*np.array(self._rows, dtype=np.float64).T)


def with_server(job: SimulatedJob, grouping: Grouping, seconds: float, *, seed: int = 0) -> Updates:
    """Simulate a parameter server for some time, and at least until one update.

    Parameters
    ----------
    seed : int
        Modes with the same seed have the same steps.
    """
    clock, record = _Clock(job, seed), _SimulatedStep(job)
    everyone = range(job.n_workers)
    arrivals: list[tuple[float, int, int]] = []
    free = 0.0
    for worker in everyone:
        free += job.server_seconds
        arrivals.append((free + clock.step(worker), worker, 0))
    heapq.heapify(arrivals)
    waiting: dict[int, int] = {}
    while not record.version or free < seconds:
        if not arrivals:
            raise InvalidInput("all workers wait, and no update is made", hint="give each worker one group")
        at, worker, version = heapq.heappop(arrivals)
        free = max(free, at) + job.server_seconds
        waiting[worker] = version
        while chosen := tuple(grouping.next_update(tuple(waiting), everyone)):
            record.add(free, [waiting.pop(each) for each in chosen])
            for each in chosen:
                free += job.server_seconds
                heapq.heappush(arrivals, (free + clock.step(each), each, record.version))
    return record.updates()


def with_ring(job: SimulatedJob, children: Sequence[int], seconds: float, *, seed: int = 0) -> Updates:
    """Simulate an all-reduce that does not wait for children, for some time; without them it is synchronous.

    Parameters
    ----------
    children : sequence of int
        They hand in gradients between updates. Not all workers.
    seconds, seed
        As for `with_server`.
    """
    ring = [worker for worker in range(job.n_workers) if worker not in set(children)]
    if not ring:
        raise InvalidInput("all workers are children of a ring without a worker")
    clock, record = _Clock(job, seed), _SimulatedStep(job)
    # When the gradient of each child is ready, and the updates in its parameters.
    ready = {child: (clock.step(child), 0) for child in children}
    now = 0.0
    while not record.version or now < seconds:
        computed = now + max(clock.step(worker) for worker in ring)
        taken = [child for child, (at, _) in ready.items() if at <= computed]
        versions = [record.version] * len(ring) + [ready[child][1] for child in taken]
        now = computed + job.reduce_seconds
        record.add(now, versions, len(ring) / job.n_workers)
        for child in taken:
            ready[child] = (now + clock.step(child), record.version)
    return record.updates()
