"""Which workers update the model together, and what each mode costs per unit of progress.

An update from a batch of B samples makes progress ``1 / (1 + noise / B)``.
`noise` is the gradient noise scale in samples. A mode with small updates needs more of them; one with large
updates waits for slow workers.

================  ===========================================================================
mode              when the model is updated
================  ===========================================================================
synchronous       all workers have reported
x-order           `x` workers have reported; what the others send later counts as no progress
static groups     `x` workers of a group have reported; groups follow the order of the times
dynamic groups    a group has reported; a group's members take like times
================  ===========================================================================

The price does not count what stale updates cost. So groups of one, which are asynchronous SGD, are the best
by it, unless updates cost time: give `update_seconds`. Lower the learning rate with the size of a group.

References
----------
.. [1] STAR, arXiv 2512.09685.
.. [2] McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv 1812.06162.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput

Kind = Literal["synchronous", "x-order", "static groups", "dynamic groups"]
#: `best_groups` tries divisions into up to so many groups, and groups of one.
MOST_GROUPS = 32
#: Workers whose predicted times differ by at most this many seconds may form a dynamic group.
GROUP_DISTANCE = 0.05


@dataclass(frozen=True)
class Mode:
    """A way to synchronise.

    Attributes
    ----------
    kind : {"synchronous", "x-order", "static groups", "dynamic groups"}
    groups : tuple of tuple of int
        Workers that update together, fast groups first. In x-order: the `x` workers expected to be first.
    seconds : float
        Expected time in which the mode makes the progress of one update without noise.
    """

    kind: Kind
    groups: tuple[tuple[int, ...], ...]
    seconds: float

    @property
    def order(self) -> int:
        """Reports that the first update waits for."""
        return len(self.groups[0])


@dataclass(frozen=True)
class Progress:
    """Times of workers, and what a report is worth.

    Parameters
    ----------
    seconds : ndarray of shape (n_workers,)
        Expected time of a step of each worker, transfer included.
    batch : float
        Samples of one worker and step.
    noise : float
        Gradient noise scale in samples. At 0, small updates are as good as large ones.
    update_seconds : float
        Time in which an update of one group keeps the other groups waiting, such as the server's work.

    Raises
    ------
    InvalidInput
        If a value is not finite, a time is not positive or there is no worker.
    """

    seconds: FloatArray
    batch: float
    noise: float
    update_seconds: float = 0.0

    def __post_init__(self) -> None:
        _check_seconds(self.seconds)
        if not (np.isfinite(self.batch) and self.batch > 0):
            raise InvalidInput(f"a worker's batch has {self.batch} samples")
        if not (np.isfinite(self.noise) and self.noise >= 0):
            raise InvalidInput(
                f"the gradient noise scale is {self.noise} samples",
                hint="measure it with rca.recovery.star.noise; without it no mode can be priced",
            )

        if not (np.isfinite(self.update_seconds) and self.update_seconds >= 0):
            raise InvalidInput(f"an update takes {self.update_seconds} s")

    @property
    def n_workers(self) -> int:
        return self.seconds.size

    @property
    def fastest_first(self) -> tuple[int, ...]:
        """Workers by time, equal ones by number."""
        return tuple(int(worker) for worker in np.argsort(self.seconds, kind="stable"))

    def iterations(self, n_reports: int | FloatArray) -> FloatArray:
        """Updates of so many reports that make the progress of one update without noise."""
        return np.asarray(1.0 + self.noise / (np.asarray(n_reports, dtype=np.float64) * self.batch))

    def of_groups(self, groups: Sequence[Sequence[int]]) -> float:
        """Seconds per unit of progress if each group updates at the speed of its slowest worker.

        Each group waits for one update of each other group.
        """
        rate, waiting = 0.0, self.update_seconds * (len(groups) - 1)
        for group in groups:
            slowest = float(self.seconds[list(group)].max()) + waiting
            rate += 1.0 / (float(self.iterations(len(group))) * slowest)
        return 1.0 / rate

    def of_orders(self) -> FloatArray:
        """Seconds per unit of progress if an update takes 1, 2, ..., n reports, shape (n_workers,)."""
        seconds: FloatArray = self.iterations(np.arange(1.0, self.n_workers + 1)) * np.sort(self.seconds)
        return seconds


def synchronous(progress: Progress) -> Mode:
    """All workers in one update."""
    groups = (progress.fastest_first,)
    return Mode("synchronous", groups, progress.of_groups(groups))


def x_order(progress: Progress, order: int) -> Mode:
    """An update from the first `order` reports.

    Raises
    ------
    InvalidInput
        If there are fewer workers, or the order is not positive.
    """
    _check_size(progress, order)
    return Mode("x-order", (progress.fastest_first[:order],), float(progress.of_orders()[order - 1]))


def heuristic_order(progress: Progress) -> int:
    """STAR's heuristic: the smallest order after which one more report costs more than it brings.

    It is the first local minimum. If times rise in several stages, `best_order` can be better.
    """
    costs = progress.of_orders()
    rises = np.flatnonzero(costs[:-1] < costs[1:])
    return int(rises[0]) + 1 if rises.size else progress.n_workers


def best_order(progress: Progress) -> int:
    """The order with the least seconds per unit of progress; the largest of equal ones."""
    costs = progress.of_orders()
    return progress.n_workers - int(np.argmin(costs[::-1]))


def static_groups(progress: Progress, size: int) -> Mode:
    """Groups of `size` workers in the order of their times; the last group may be smaller.

    Raises
    ------
    InvalidInput
        If there are fewer workers, or the size is not positive.
    """
    _check_size(progress, size)
    workers = progress.fastest_first
    groups = tuple(workers[first : first + size] for first in range(0, len(workers), size))
    return Mode("static groups", groups, progress.of_groups(groups))


def dynamic_groups(progress: Progress, distance: float = GROUP_DISTANCE) -> Mode:
    """Groups of workers with like times.

    Parameters
    ----------
    progress : Progress
    distance : float
        Largest difference between two members of a group, seconds.
    """
    groups = clustered(progress.seconds, distance)
    return Mode("dynamic groups", groups, progress.of_groups(groups))


def clustered(seconds: FloatArray, distance: float = GROUP_DISTANCE) -> tuple[tuple[int, ...], ...]:
    """Agglomerative clusters of times with complete linkage, fast ones first.

    Parameters
    ----------
    seconds : ndarray of shape (n_workers,)
    distance : float
        Clusters merge while the larger cluster would span at most this many seconds.

    Raises
    ------
    InvalidInput
        If a time is not positive or the distance is negative.
    """
    _check_seconds(seconds)
    if not (np.isfinite(distance) and distance >= 0):
        raise InvalidInput(f"the distance between groups is {distance} s")
    if seconds.size == 1:
        return ((0,),)
    # Loading it takes a quarter of a second, which a caller of the heuristic does not need.
    from scipy.cluster.hierarchy import fcluster, linkage

    labels = fcluster(linkage(seconds[:, None], method="complete"), distance, criterion="distance")
    groups: dict[int, list[int]] = {}
    for worker in np.argsort(seconds, kind="stable"):
        groups.setdefault(int(labels[worker]), []).append(int(worker))
    return tuple(tuple(group) for group in groups.values())


def best_groups(progress: Progress) -> Mode:
    """The division into groups with the least seconds per unit of progress.

    Exact among divisions into at most `MOST_GROUPS` groups, and groups of one. A best division is one into
    runs of the sorted times: to swap members below the maximum of the slower group cannot slow either group.
    """
    workers = progress.fastest_first
    n = len(workers)
    size = np.arange(1, n + 1) - np.arange(n)[:, None]
    iterations = np.where(size > 0, progress.iterations(np.maximum(size, 1)), np.inf)
    divisions: list[tuple[tuple[int, ...], ...]] = [tuple((worker,) for worker in workers)]
    for n_groups in range(1, min(n, MOST_GROUPS) + 1):
        slowest = progress.seconds[list(workers)] + progress.update_seconds * (n_groups - 1)
        # Rate of the run from each start to each end.
        bounds = _best_runs(1.0 / (iterations * slowest), n_groups)
        divisions.append(tuple(workers[start:end] for start, end in itertools.pairwise(bounds)))
    found = min(divisions, key=progress.of_groups)
    return Mode("dynamic groups", found, progress.of_groups(found))


def _best_runs(rate: FloatArray, n_runs: int) -> list[int]:
    """Bounds of the runs with the largest sum of rates, by dynamic programming.

    Parameters
    ----------
    rate : ndarray of shape (n_workers, n_workers)
        Of the run from `start` to `end`, both included.
    n_runs : int
    """
    n = rate.shape[0]
    best = np.full(n + 1, -np.inf)
    best[0] = 0.0
    starts = []
    for _ in range(n_runs):
        sums = best[:n, None] + np.where(rate > 0, rate, -np.inf)
        starts.append(sums.argmax(axis=0))
        best = np.concatenate(([-np.inf], sums.max(axis=0)))
    bounds = [n]
    for start in reversed(starts):
        bounds.append(int(start[bounds[-1] - 1]))
    return bounds[::-1]


def every_mode(progress: Progress, distance: float = GROUP_DISTANCE) -> tuple[Mode, ...]:
    """All modes with their price, in the order in which equal ones are preferred."""
    order = heuristic_order(progress)
    return (
        synchronous(progress),
        x_order(progress, order),
        x_order(progress, best_order(progress)),
        dynamic_groups(progress, distance),
        *(static_groups(progress, size) for size in range(progress.n_workers - 1, 0, -1)),
        best_groups(progress),
    )


def choose(progress: Progress, distance: float = GROUP_DISTANCE) -> Mode:
    """The mode with the least seconds per unit of progress.

    Examples
    --------
    >>> seconds = np.array([0.10, 0.10, 0.11, 0.40])
    >>> choose(Progress(seconds, batch=32, noise=3200, update_seconds=0.009)).groups
    ((0, 1, 2), (3,))
    """
    return min(every_mode(progress, distance), key=lambda mode: mode.seconds)


def _check_seconds(seconds: FloatArray) -> None:
    if seconds.ndim != 1 or seconds.size == 0:
        raise InvalidInput("there is no worker", hint="give one expected time for each worker")
    wrong = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0)))
    if wrong.size:
        worker = int(wrong[0])
        raise InvalidInput(
            f"the expected time of worker {worker} is {seconds[worker]} s",
            hint="leave out a worker that has not finished a step",
        )


def _check_size(progress: Progress, size: int) -> None:
    if not 1 <= size <= progress.n_workers:
        raise InvalidInput(f"{progress.n_workers} workers cannot give updates of {size} reports")
