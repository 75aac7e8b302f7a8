"""Micro-batches and accumulation steps for workers of different hardware: AntDT-DD.

Worker `i` does ``steps[i]`` forward and backward passes of ``sizes[i]`` samples and sends one gradient. A
pass has a fixed time, so few large passes are faster than many small ones, and memory limits their size.

The sum of ``sizes * steps`` is given, and all are whole numbers: this is a search. For each bound of time,
the numbers of samples that a worker can do within it are a set. Sums of these sets show whether the workers
can do the batch together. The smallest such bound is searched upwards from that of divisible samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.errors import InvalidInput

#: Largest batch that is searched: the sets have one entry for each size.
MAX_SAMPLES = 1 << 20
#: The time of divisible samples is raised by these factors in turn, until it is possible for whole ones.
_FACTORS = (1.0005, 1.002, 1.008, 1.03, 1.1, 1.5, 3.0, 10.0)
#: Rounds of the bisection for that time, and the share that it stays below it because of rounding.
_ROUNDS, _MARGIN = 40, 1e-9
#: A worker with more separate numbers of samples is convolved: shifts of bits would take longer.
_MAX_SHIFTS = 2000


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
    options = _options(workers, total, most_steps)
    below, high = _divisible_seconds(workers, total, most_steps), np.inf
    for factor in _FACTORS:
        if _is_possible(options, below * factor, total):
            high = below * factor
            break
        below *= factor
    if not _is_possible(options, high, total):
        raise _impossible(workers, total, most_steps)
    # The optimum is the time of one worker. None below `below` is possible.
    times = np.concatenate(
        [each.seconds[(each.seconds >= below) & (each.seconds <= high)] for each in options]
    )
    bounds = np.unique(times[np.isfinite(times)])
    low, last = 0, bounds.size - 1
    while low < last:
        middle = (low + last) // 2
        if _is_possible(options, float(bounds[middle]), total):
            last = middle
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

    def within(self, bound: float) -> IntArray:
        """Numbers of samples that it can do within a finite time, ascending."""
        return np.flatnonzero(self.seconds <= min(bound, np.finfo(np.float64).max))


def _options(workers: Sequence[Hardware], total: int, most_steps: int) -> list[_Options]:
    passes: dict[tuple[int, int], IntArray] = {}
    found: dict[Hardware, _Options] = {}
    for worker in dict.fromkeys(workers):
        limits = worker.least, min(worker.most, total)
        if limits not in passes:
            passes[limits] = _fewest_passes(*limits, total, most_steps)
        steps = passes[limits]
        counts = np.flatnonzero(steps)
        seconds = np.full(total + 1, np.inf)
        seconds[counts] = steps[counts] * (worker.fixed + counts // steps[counts] / worker.speed)
        found[worker] = _Options(seconds, steps)
    return [found[worker] for worker in workers]


def _fewest_passes(least: int, most: int, total: int, most_steps: int) -> IntArray:
    """Passes for each number of samples, 0 where none fit. Few are never slower than many.

    Returns
    -------
    ndarray of shape (total + 1,), int
    """
    steps = np.zeros(total + 1, dtype=np.int64)
    # Fewer passes are written later, and stay.
    for count in range(min(most_steps, total // least), 0, -1):
        steps[count * least : count * min(most, total // count) + 1 : count] = count
    return steps


def _divisible_seconds(workers: Sequence[Hardware], total: int, most_steps: int) -> float:
    """A time below which the batch is impossible, even with divisible samples."""
    speed, fixed, most = (
        np.array([[getattr(worker, name)] for worker in workers]) for name in ("speed", "fixed", "most")
    )
    counts = np.arange(1, most_steps + 1)
    short, long = 0.0, float((most_steps * (fixed + most / speed)).max())
    for _ in range(_ROUNDS):
        middle = (short + long) / 2
        within = np.clip((middle - counts * fixed) * speed, 0, counts * most).max(axis=1)
        if within.sum() < total:
            short = middle
        else:
            long = middle
    return short * (1 - _MARGIN)


def _is_possible(options: Sequence[_Options], bound: float, total: int) -> bool:
    """Whether the workers can do exactly `total` samples within a time."""
    able = [each.within(bound) for each in options]
    if any(not each.size for each in able):
        return False
    if not sum(int(each[0]) for each in able) <= total <= sum(int(each[-1]) for each in able):
        return False
    return bool(_sums(able, total)[-1] >> total & 1)


def _sums(able: Sequence[IntArray], total: int) -> list[int]:
    """Sums that the first workers can reach together, as bits of whole numbers.

    Parameters
    ----------
    able : sequence of ndarray, int
        Numbers of samples that each worker can do, ascending.

    Returns
    -------
    list of n_workers + 1 int
        Bit `k` says whether `k` samples can be done.
    """
    found, mask = [1], (1 << (total + 1)) - 1
    for counts in able:
        breaks = np.flatnonzero(np.diff(counts) > 1) + 1
        begins = counts[np.concatenate([[0], breaks])] if counts.size else counts
        lengths = np.diff(np.concatenate([[0], breaks, [counts.size]]))
        if begins.size > _MAX_SHIFTS:
            found.append(_convolved(found[-1], counts, total))
            continue
        reached = 0
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=False):
            reached |= _spread(found[-1], length) << begin
        found.append(reached & mask)
    return found


def _spread(bits: int, length: int) -> int:
    """The union of `bits` shifted by 0 to ``length - 1``."""
    width = 1
    while 2 * width <= length:
        bits |= bits << width
        width *= 2
    return bits | bits << (length - width)


def _convolved(bits: int, counts: IntArray, total: int) -> int:
    """One step of `_sums` for many separate numbers of samples."""
    able = np.zeros(total + 1)
    able[counts] = 1
    # Entries count the ways to reach a sum: below 2**20, so the rounding of the transform is small.
    # Imports scipy.stats, which a diagnosis must not wait for.
    from scipy.signal import fftconvolve

    ways = fftconvolve(_as_array(bits, total).astype(np.float64), able)[: total + 1]
    return int.from_bytes(np.packbits(ways > 0.5, bitorder="little").tobytes(), "little")


def _as_array(bits: int, total: int) -> BoolArray:
    raw = np.frombuffer(bits.to_bytes(total // 8 + 1, "little"), dtype=np.uint8)
    return np.unpackbits(raw, count=total + 1, bitorder="little").astype(np.bool_)


def _chosen(options: Sequence[_Options], bound: float, total: int) -> list[int]:
    """Samples of each worker, found from the last worker to the first."""
    able = [each.within(bound) for each in options]
    sums = _sums(able, total)
    left, samples = total, [0] * len(options)
    for worker in range(len(options) - 1, -1, -1):
        counts = able[worker][able[worker] <= left]
        possible = counts[_as_array(sums[worker], total)[left - counts]]
        # The nearest to an equal share of what is left keeps the workers alike.
        share = left / (worker + 1)
        samples[worker] = int(possible[np.argmin(np.abs(possible - share))])
        left -= samples[worker]
    return samples


def _impossible(workers: Sequence[Hardware], total: int, most_steps: int) -> InvalidInput:
    """An error with the nearest possible sum."""
    largest = sum(worker.most for worker in workers) * most_steps
    reach = min(max(2 * total, sum(worker.least for worker in workers)), largest, MAX_SAMPLES)
    able = [each.within(np.inf) for each in _options(workers, reach, most_steps)]
    sums = np.flatnonzero(_as_array(_sums(able, reach)[-1], reach))
    message = f"no micro-batches of {len(workers)} workers have {total:,} samples together"
    if not sums.size:
        return InvalidInput(message, hint="raise the number of steps or lower the least micro-batch")
    nearest = int(sums[np.argmin(np.abs(sums - total))])
    return InvalidInput(message, hint=f"the nearest batch size that is possible is {nearest:,}")


def _check(workers: Sequence[Hardware], total: int, most_steps: int) -> None:
    if not workers:
        raise InvalidInput("there is no worker")
    if not 1 <= total <= MAX_SAMPLES:
        raise InvalidInput(f"a batch has 1 to {MAX_SAMPLES:,} samples, not {total:,}")
    if most_steps < 1:
        raise InvalidInput(f"a worker does at least one pass, not {most_steps}")
    for number, worker in enumerate(workers):
        if not (np.isfinite(worker.speed) and worker.speed > 0 and np.isfinite(worker.fixed)):
            raise InvalidInput(f"worker {number} has speed {worker.speed} and fixed time {worker.fixed}")
        if not (1 <= worker.least <= worker.most and worker.fixed >= 0):
            raise InvalidInput(
                f"worker {number} takes micro-batches of {worker.least:,} to {worker.most:,} samples"
            )
