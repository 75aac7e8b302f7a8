"""Batch sizes that let all workers end a step together: the ``ADJUST_BS`` action of AntDT-ND.

A step of synchronous training lasts as long as its slowest worker. Worker `i` needs
``fixed[i] + size[i] / speed[i]`` seconds. The sizes are whole numbers, have limits, and sum to the batch.

>>> import numpy as np
>>> balanced(np.array([100.0, 100.0, 50.0]), 250)
array([100, 100,  50])

References
----------
.. [1] Xiao et al., "AntDT: A Self-Adaptive Distributed Training Framework for Leader and Straggler Nodes",
   arXiv 2404.09679, 2024.
"""

from __future__ import annotations

import heapq

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.errors import InvalidInput

#: Most rounds of the bisection for the step time; a double has 53 bits.
_ROUNDS = 60
#: Samples that are added one by one faster than by further rounds.
_ONE_BY_ONE = 16
#: The bisection stops this share below its bound, so that rounding adds no sample too many.
_MARGIN = 1e-9


def balanced(
    speed: FloatArray,
    total: int,
    *,
    fixed: FloatArray | None = None,
    least: IntArray | int = 1,
    most: IntArray | int | None = None,
) -> IntArray:
    """Batch sizes with the shortest step.

    Parameters
    ----------
    speed : ndarray of shape (n_workers,), samples per second
    total : int
        Samples of one step, all workers together.
    fixed : ndarray of shape (n_workers,), seconds, optional
        Time of a step that does not depend on the batch size.
    least, most : ndarray of shape (n_workers,) or int, optional
        Limits of each worker. Memory sets the upper one.

    Returns
    -------
    ndarray of shape (n_workers,), int
        Their sum is `total`. No other sizes have a shorter slowest worker.

    Raises
    ------
    InvalidInput
        If a speed is not positive, or if the limits do not allow `total`.

    Notes
    -----
    The time of a worker grows with its size. So adding the samples one by one, each where the new time is
    the smallest, is optimal. All samples that end before some time come first, so they are added at once.
    """
    speed, fixed = _checked(speed, fixed)
    low, high = _limits(speed.size, total, least, most)
    sizes = _at_once(speed, fixed, low, high, total)
    left = total - int(sizes.sum())
    if left == 0:
        return sizes
    growing = np.flatnonzero(sizes < high)
    after_next = fixed[growing] + (sizes[growing] + 1) / speed[growing]
    # At most one worker for each sample that is left gets one. A sorted list is a heap.
    soonest = np.argsort(after_next, kind="stable")[:left]
    waiting = list(zip(after_next[soonest].tolist(), growing[soonest].tolist(), strict=True))
    for _ in range(left):
        _, worker = waiting[0]
        sizes[worker] += 1
        if sizes[worker] < high[worker]:
            after = float(fixed[worker] + (sizes[worker] + 1) / speed[worker])
            heapq.heapreplace(waiting, (after, worker))
        else:
            heapq.heappop(waiting)
    return sizes


def step_seconds(sizes: IntArray, speed: FloatArray, fixed: FloatArray | None = None) -> float:
    """Seconds of the slowest worker.

    Parameters
    ----------
    sizes : ndarray of shape (n_workers,), samples
    speed : ndarray of shape (n_workers,), samples per second
    fixed : ndarray of shape (n_workers,), seconds, optional
    """
    speed, fixed = _checked(speed, fixed)
    return float((fixed + sizes / speed).max())


def equal(n_workers: int, total: int) -> IntArray:
    """Batch sizes of static data parallelism; the first workers take what remains.

    Returns
    -------
    ndarray of shape (n_workers,), int
    """
    share, rest = divmod(total, n_workers)
    return np.full(n_workers, share) + (np.arange(n_workers) < rest)


def _checked(speed: FloatArray, fixed: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    speed = np.asarray(speed, dtype=np.float64)
    fixed = np.zeros(speed.shape) if fixed is None else np.asarray(fixed, dtype=np.float64)
    if speed.ndim != 1 or speed.size == 0:
        raise InvalidInput("there is no worker", hint="give one speed for each worker")
    if fixed.shape != speed.shape:
        raise InvalidInput(f"{speed.size} workers have {fixed.size} fixed times")
    wrong = ~(np.isfinite(speed) & (speed > 0))
    if wrong.any():
        worker = int(np.flatnonzero(wrong)[0])
        raise InvalidInput(
            f"the speed of worker {worker} is {speed[worker]}",
            hint="leave a worker that has not been measured at its present batch size",
        )
    if not (np.isfinite(fixed) & (fixed >= 0)).all():
        raise InvalidInput("a fixed time is negative or not finite")
    return speed, fixed


def _limits(
    n_workers: int, total: int, least: IntArray | int, most: IntArray | int | None
) -> tuple[IntArray, IntArray]:
    low = np.array(np.broadcast_to(np.asarray(least, dtype=np.int64), n_workers))
    high = np.array(np.broadcast_to(np.asarray(total if most is None else most, dtype=np.int64), n_workers))
    if (low < 0).any():
        raise InvalidInput("a lower limit is negative")
    crossed = np.flatnonzero(low > high)
    if crossed.size:
        worker = int(crossed[0])
        raise InvalidInput(
            f"worker {worker} takes at least {low[worker]:,} and at most {high[worker]:,} samples"
        )
    if not low.sum() <= total <= high.sum():
        raise InvalidInput(
            f"the workers take {low.sum():,} to {high.sum():,} samples, the batch has {total:,}",
            hint=f"the nearest batch size is {int(np.clip(total, low.sum(), high.sum())):,}",
        )
    return low, np.minimum(high, total)


def _at_once(speed: FloatArray, fixed: FloatArray, low: IntArray, high: IntArray, total: int) -> IntArray:
    """Sizes of all samples that surely belong to an optimum: at most `total`."""

    def within(seconds: float) -> FloatArray:
        return np.minimum(np.maximum(np.floor((seconds - fixed) * speed), low), high)

    short, long = 0.0, float((fixed + high / speed).max())
    for _ in range(_ROUNDS):
        middle = (short + long) / 2
        added = within(middle).sum()
        if added <= total:
            short = middle
        else:
            long = middle
        if 0 <= total - added <= _ONE_BY_ONE:
            break
    return within(short * (1 - _MARGIN)).astype(np.int64)
