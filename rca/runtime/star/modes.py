"""Which workers update the model together, and the mode that makes progress in the least time.

================  ===========================================================================
mode              when the model is updated
================  ===========================================================================
synchronous       all workers have reported
x-order           `x` workers have reported; what the others send later counts in later updates
static groups     `x` workers of a group have reported; groups follow the order of the times
dynamic groups    a group has reported; a group's members take like times
================  ===========================================================================

`rca.runtime.star.price` holds the price. x-order of 1 and groups of one are asynchronous SGD.

References
----------
.. [1] STAR, arXiv 2512.09685.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.runtime.star.price import Mode, UpdateProgress, check_seconds

#: `best_groups` tries divisions of more than `MAX_TRIED` workers into up to so many groups.
MAX_GROUPS, MAX_TRIED = 32, 10
#: Workers whose predicted times differ by at most this many seconds may form a dynamic group.
GROUP_DISTANCE = 0.05
# Prices that differ by rounding are equal.
_EQUAL = 1e-9


def synchronous(progress: UpdateProgress) -> Mode:
    """All workers in one update."""
    return progress.priced("synchronous", (progress.fastest_first,))


def x_order(progress: UpdateProgress, order: int) -> Mode:
    """An update from the first `order` reports.

    Raises
    ------
    InvalidInput
        If there are fewer workers, or the order is not positive.
    """
    _check_size(progress, order)
    return progress.of_order(order)


def heuristic_order(progress: UpdateProgress) -> int:
    """STAR's heuristic: the smallest order after which one more report costs more than it brings.

    It is the first local minimum of ``(1 + noise / (x batch))`` times the x-th time. It counts no staleness.
    If times rise in several stages, `best_order` can be better.
    """
    costs = progress.iterations(np.arange(1.0, progress.n_workers + 1)) * np.sort(progress.seconds)
    rises = np.flatnonzero(costs[:-1] < costs[1:])
    return int(rises[0]) + 1 if rises.size else progress.n_workers


def best_order(progress: UpdateProgress) -> int:
    """The order with the least seconds per unit of progress; the largest of equal ones."""
    costs = progress.of_orders()
    return progress.n_workers - int(np.argmin(costs[::-1]))


def static_groups(progress: UpdateProgress, size: int) -> Mode:
    """Groups of `size` workers in the order of their times; the last group may be smaller.

    Raises
    ------
    InvalidInput
        If there are fewer workers, or the size is not positive.
    """
    _check_size(progress, size)
    workers = progress.fastest_first
    groups = tuple(workers[first : first + size] for first in range(0, len(workers), size))
    return progress.priced("static groups", groups)


def dynamic_groups(progress: UpdateProgress, distance: float = GROUP_DISTANCE) -> Mode:
    """Groups of workers with like times.

    Parameters
    ----------
    distance : float
        Largest difference between two members of a group, seconds.
    """
    return progress.priced("dynamic groups", clustered(progress.seconds, distance))


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
    check_seconds(seconds)
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


def best_groups(progress: UpdateProgress) -> Mode:
    """The division into groups with the least seconds per unit of progress that was found.

    Groups are runs of the sorted times. With at most `MAX_TRIED` workers all divisions into runs are tried.
    With more, the best one without staleness is tried for each number of groups up to `MAX_GROUPS`.
    """
    workers = progress.fastest_first
    n = len(workers)
    if n <= MAX_TRIED:
        cuts = itertools.chain.from_iterable(itertools.combinations(range(1, n), size) for size in range(n))
        divisions = [_runs(workers, (0, *chosen, n)) for chosen in cuts]
    else:
        size = np.arange(1, n + 1) - np.arange(n)[:, None]
        iterations = np.where(size > 0, progress.iterations(np.maximum(size, 1)), np.inf)
        divisions = [tuple((worker,) for worker in workers)]
        rate = 1.0 / (iterations * (progress.seconds[list(workers)] + size * progress.report_seconds))
        for n_groups in range(1, MAX_GROUPS + 1):
            # Rate of the run from each start to each end.
            divisions.append(_runs(workers, _best_runs(rate, min(n_groups, n))))
    return min((progress.priced("dynamic groups", each) for each in divisions), key=lambda mode: mode.seconds)


def _runs(workers: Sequence[int], bounds: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(workers[start:end]) for start, end in itertools.pairwise(bounds))


def _best_runs(rate: FloatArray, n_runs: int) -> list[int]:
    """Bounds of the runs with the largest sum of rates, by dynamic programming.

    Parameters
    ----------
    rate : ndarray of shape (n_workers, n_workers)
        Of the run from `start` to `end`, both included.
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


def candidates(progress: UpdateProgress, distance: float = GROUP_DISTANCE) -> tuple[Mode, ...]:
    """The modes to choose from, synchronous training first."""
    n = progress.n_workers
    orders = {1, max(n // 2, 1), max(n - 1, 1), heuristic_order(progress), best_order(progress)} - {n}
    sizes = {max(n // 2, 1), heuristic_order(progress)} - {1, n}
    found = [
        synchronous(progress),
        *(x_order(progress, order) for order in sorted(orders)),
        *(static_groups(progress, size) for size in sorted(sizes)),
        dynamic_groups(progress, distance),
        best_groups(progress),
    ]
    # Modes that do the same are one.
    kept = {(mode.kind == "x-order", mode.groups): mode for mode in reversed(found)}
    return tuple(reversed(kept.values()))


def choose(progress: UpdateProgress, distance: float = GROUP_DISTANCE) -> Mode:
    """The mode with the least seconds per unit of progress.

    Examples
    --------
    >>> seconds = np.array([0.10, 0.10, 0.11, 0.40])
    >>> choose(UpdateProgress(seconds, batch=32, noise=320)).groups
    ((0, 1, 2), (3,))
    """
    modes = candidates(progress, distance)
    least = min(mode.seconds for mode in modes)
    return next(mode for mode in modes if mode.seconds <= least * (1 + _EQUAL))


def _check_size(progress: UpdateProgress, size: int) -> None:
    if not 1 <= size <= progress.n_workers:
        raise InvalidInput(f"{progress.n_workers} workers cannot give updates of {size} reports")
