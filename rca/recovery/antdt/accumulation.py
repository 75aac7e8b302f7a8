"""Micro-batches and accumulation steps for workers of different hardware: AntDT-DD.

Worker `i` does ``steps[i]`` forward and backward passes of ``sizes[i]`` samples and sends one gradient. A
pass has a fixed time, so few large passes are faster than many small ones, and memory limits their size.

The sum of ``sizes * steps`` is given, and all are whole numbers: this is a search. For each bound of time,
the numbers of samples that a worker can do within it are a set. Sums of these sets show whether the workers
can do the batch together. Bisection finds the smallest such bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.signal import fftconvolve

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.errors import InvalidInput

#: Largest batch that is searched: the sets have one entry for each size.
MOST_SAMPLES = 1 << 20


@dataclass(frozen=True)
class Hardware:
    """What one worker can do.

    Attributes
    ----------
    speed : float
        Samples per second of a pass, without its fixed time.
    most : int
        Largest micro-batch that fits the memory.
    fixed : float
        Seconds of a pass that do not depend on its size.
    least : int
        Smallest micro-batch: below it, a device may be used badly.
    """

    speed: float
    most: int
    fixed: float = 0.0
    least: int = 1

    def seconds(self, size: int) -> float:
        """Seconds of one pass over `size` samples."""
        return self.fixed + size / self.speed


@dataclass(frozen=True)
class Accumulation:
    """Micro-batches of all workers.

    Attributes
    ----------
    sizes, steps : ndarray of shape (n_workers,), int
        Samples of a pass, and passes of a step.
    seconds : float
        Of the slowest worker.
    """

    sizes: IntArray
    steps: IntArray
    seconds: float

    @property
    def samples(self) -> IntArray:
        """Samples of a step, ndarray of shape (n_workers,)."""
        return self.sizes * self.steps


def accumulated(workers: Sequence[Hardware], total: int, *, most_steps: int = 64) -> Accumulation:
    """Micro-batches and accumulation steps with the shortest step.

    Parameters
    ----------
    workers : sequence of Hardware
    total : int
        Samples of one step, all workers together.
    most_steps : int
        Most passes of a worker.

    Returns
    -------
    Accumulation
        Its samples sum to `total` exactly. No other choice has a shorter slowest worker.

    Raises
    ------
    InvalidInput
        If no choice has the sum `total`; the hint has the nearest sum that is possible.
    """
    _check(workers, total, most_steps)
    kinds = {worker: _fastest(worker, total, most_steps) for worker in dict.fromkeys(workers)}
    options = [kinds[worker] for worker in workers]
    bounds = np.unique(np.concatenate([each.seconds[np.isfinite(each.seconds)] for each in kinds.values()]))
    if not bounds.size or not _sums(options, float(bounds[-1]), total)[-1][total]:
        raise _impossible(workers, total, most_steps)
    low, high = 0, bounds.size - 1
    while low < high:
        middle = (low + high) // 2
        if _sums(options, float(bounds[middle]), total)[-1][total]:
            high = middle
        else:
            low = middle + 1
    samples = _chosen(options, float(bounds[low]), total)
    steps = np.array([each.steps[count] for each, count in zip(options, samples, strict=True)])
    slowest = max(each.seconds[count] for each, count in zip(options, samples, strict=True))
    return Accumulation(np.array(samples) // steps, steps, float(slowest))


@dataclass(frozen=True)
class _Options:
    """The fastest way of a worker to do each number of samples; index is the number.

    Attributes
    ----------
    seconds : ndarray of shape (total + 1,)
        Infinite if the worker cannot do exactly this number.
    steps : ndarray of shape (total + 1,), int
    """

    seconds: FloatArray
    steps: IntArray


def _fastest(worker: Hardware, total: int, most_steps: int) -> _Options:
    seconds = np.full(total + 1, np.inf)
    steps = np.ones(total + 1, dtype=np.int64)
    for count in range(1, most_steps + 1):
        sizes = np.arange(worker.least, min(worker.most, total // count) + 1)
        if not sizes.size:
            break
        taken = count * (worker.fixed + sizes / worker.speed)
        faster = taken < seconds[count * sizes]
        seconds[(count * sizes)[faster]] = taken[faster]
        steps[(count * sizes)[faster]] = count
    return _Options(seconds, steps)


def _sums(options: Sequence[_Options], bound: float, total: int) -> list[BoolArray]:
    """Whether the first workers can do each number of samples together within a time.

    Returns
    -------
    list of n_workers + 1 ndarrays of shape (total + 1,)
    """
    reached = np.zeros(total + 1, dtype=np.bool_)
    reached[0] = True
    found = [reached]
    for each in options:
        able = each.seconds <= bound
        # Entries count the ways to reach a sum: below 2**20, so the rounding of the transform is small.
        ways = fftconvolve(reached.astype(np.float64), able.astype(np.float64))[: total + 1]
        reached = ways > 0.5
        found.append(reached)
    return found


def _chosen(options: Sequence[_Options], bound: float, total: int) -> list[int]:
    """Samples of each worker, found from the last worker to the first."""
    sums = _sums(options, bound, total)
    left, samples = total, [0] * len(options)
    for worker in range(len(options) - 1, -1, -1):
        counts = np.flatnonzero(options[worker].seconds[: left + 1] <= bound)
        possible = counts[sums[worker][left - counts]]
        # The nearest to an equal share of what is left keeps the workers alike.
        share = left / (worker + 1)
        samples[worker] = int(possible[np.argmin(np.abs(possible - share))])
        left -= samples[worker]
    return samples


def _impossible(workers: Sequence[Hardware], total: int, most_steps: int) -> InvalidInput:
    """An error with the nearest possible sum."""
    largest = sum(worker.most for worker in workers) * most_steps
    reach = min(max(2 * total, sum(worker.least for worker in workers)), largest, MOST_SAMPLES)
    kinds = {worker: _fastest(worker, reach, most_steps) for worker in dict.fromkeys(workers)}
    sums = np.flatnonzero(_sums([kinds[worker] for worker in workers], np.finfo(np.float64).max, reach)[-1])
    message = f"no micro-batches of {len(workers)} workers have {total:,} samples together"
    if not sums.size:
        return InvalidInput(message, hint="raise the number of steps or lower the least micro-batch")
    nearest = int(sums[np.argmin(np.abs(sums - total))])
    return InvalidInput(message, hint=f"the nearest batch size that is possible is {nearest:,}")


def _check(workers: Sequence[Hardware], total: int, most_steps: int) -> None:
    if not workers:
        raise InvalidInput("there is no worker")
    if not 1 <= total <= MOST_SAMPLES:
        raise InvalidInput(f"a batch has 1 to {MOST_SAMPLES:,} samples, not {total:,}")
    if most_steps < 1:
        raise InvalidInput(f"a worker does at least one pass, not {most_steps}")
    for number, worker in enumerate(workers):
        if not (np.isfinite(worker.speed) and worker.speed > 0 and np.isfinite(worker.fixed)):
            raise InvalidInput(f"worker {number} has speed {worker.speed} and fixed time {worker.fixed}")
        if not (1 <= worker.least <= worker.most and worker.fixed >= 0):
            raise InvalidInput(
                f"worker {number} takes micro-batches of {worker.least:,} to {worker.most:,} samples"
            )
