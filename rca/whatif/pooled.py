"""Ideal durations of a trace held in blocks: exact, without ever holding one type's values together.

Means add up. A median is found by counting: single-precision numbers sort like the integers their bits
make, so one pass counts the upper halves of the bits, and a second one the lower halves of those numbers
whose upper half is the median's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rca.arrays import FloatArray, Seconds32
from rca.whatif.derive import DerivedTimes
from rca.whatif.optypes import N_TYPES, OP_TYPES
from rca.whatif.shapes import StepShape

Blocks = Callable[[], Iterator[tuple[StepShape, DerivedTimes]]]

HALF = 1 << 16


def pooled_ideal_durations(blocks: Blocks) -> FloatArray:
    """Ideal duration per operation type, as `rca.whatif.derive.ideal_durations` has it.

    Parameters
    ----------
    blocks : callable
        Iterates over all blocks; called twice.

    Returns
    -------
    ndarray of shape (N_TYPES,), seconds
    """
    total = np.zeros(N_TYPES)
    count = np.zeros(N_TYPES, np.int64)
    upper = np.zeros((N_TYPES, HALF), np.int64)
    for code, values in _by_type(blocks()):
        count[code] += values.size
        if OP_TYPES[code].statistic == "mean":
            total[code] += values.sum(dtype=np.float64)
        else:
            upper[code] += np.bincount(_sortable(values) >> 16, minlength=HALF)
    middle = np.stack([(count - 1) // 2, count // 2], axis=1)
    below = np.concatenate([np.zeros((N_TYPES, 1), np.int64), np.cumsum(upper, axis=1)], axis=1)
    bins = np.array([np.searchsorted(below[c], middle[c], side="right") - 1 for c in range(N_TYPES)])
    lower = np.zeros((N_TYPES, 2, HALF), np.int64)
    for code, values in _by_type(blocks()):
        if OP_TYPES[code].statistic == "median":
            keys = _sortable(values)
            for side in range(2 if bins[code, 0] != bins[code, 1] else 1):
                inside = keys[keys >> 16 == bins[code, side]]
                lower[code, side] += np.bincount(inside & (HALF - 1), minlength=HALF)
    ideal = np.zeros(N_TYPES)
    for code in range(N_TYPES):
        if not count[code]:
            continue
        if OP_TYPES[code].statistic == "mean":
            ideal[code] = np.float32(total[code]) / np.float32(count[code])
            continue
        pair = np.empty(2, np.uint32)
        for side in range(2):
            counts = lower[code, side if bins[code, 0] != bins[code, 1] else 0]
            rank = middle[code, side] - below[code, bins[code, side]]
            pair[side] = bins[code, side] * HALF + np.searchsorted(np.cumsum(counts), rank, side="right")
        ideal[code] = np.median(_unsorted(pair))
    return ideal


def _by_type(blocks: Iterator[tuple[StepShape, DerivedTimes]]) -> Iterator[tuple[int, Seconds32]]:
    """Observed values, one type of one block at a time."""
    for shape, times in blocks:
        work = times.work
        for code in np.unique(shape.optype):
            ops = np.flatnonzero(shape.optype == code)
            values = work[ops]
            yield int(code), values.ravel() if times.observed is None else values[times.observed[ops]]


def _sortable(values: Seconds32) -> npt.NDArray[np.uint32]:
    """Integers in the order of the numbers: negative ones have all bits flipped, the others the sign."""
    bits = np.ascontiguousarray(values + np.float32(0)).view(np.uint32)
    flipped: npt.NDArray[np.uint32] = bits ^ (
        (bits.view(np.int32) >> 31).view(np.uint32) | np.uint32(1 << 31)
    )
    return flipped


def _unsorted(keys: npt.NDArray[Any]) -> Seconds32:
    negative = keys < (1 << 31)
    bits = np.where(negative, ~keys, keys ^ np.uint32(1 << 31)).astype(np.uint32)
    return bits.view(np.float32)
