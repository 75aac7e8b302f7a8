"""Own times of operations, derived from the trace, and ideal durations per operation type.

The own time of a local operation is its duration, that of a grouped one its transfer duration.

The ideal durations of long traces are exact, although the values of a type are never held together. Means
add up. A median is found by counting: single-precision numbers sort like the integers of their bits. One
pass counts the upper halves of the bits. A second pass counts the lower halves of the numbers whose upper
half is that of the median.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from rca.arrays import BoolArray, FloatArray, IntArray, Seconds32
from rca.robust import nan_median
from rca.whatif.graph.graph import DependencyGraph
from rca.whatif.optypes import N_TYPES, OP_TYPES, ROUND
from rca.whatif.trace.step_shapes import StepShape


class ArrayFile:
    """Arrays in an unnamed temporary file, which is closed with the last array that refers to it."""

    def __init__(self) -> None:
        file = tempfile.TemporaryFile(prefix="rca-what-if-")  # noqa: SIM115  (lives as long as its arrays)
        weakref.finalize(self, file.close)
        self._file = file

    def write(self, array: Seconds32) -> StoredArray:
        """Append an array."""
        at = self._file.seek(0, os.SEEK_END)
        self._file.write(np.ascontiguousarray(array).tobytes())
        self._file.flush()
        return StoredArray(self, at, array.shape)

    def read(self, at: int, shape: tuple[int, ...]) -> Seconds32:
        """Read an array back; safe from several threads."""
        size = int(np.prod(shape)) * np.dtype(np.float32).itemsize
        # One call reads 2 GiB at most.
        parts = [
            os.pread(self._file.fileno(), min(1 << 30, size - k), at + k) for k in range(0, size, 1 << 30)
        ]
        return np.frombuffer(b"".join(parts) if len(parts) != 1 else parts[0], np.float32).reshape(shape)


@dataclass(frozen=True)
class StoredArray:
    """An array in a temporary file."""

    file: ArrayFile
    at: int
    shape: tuple[int, ...]

    def load(self) -> Seconds32:
        """Read the array back; it is read-only."""
        return self.file.read(self.at, self.shape)


IMPLAUSIBLE = np.float32(-0.010)
"""Seconds. Derived times at or below are clock artefacts and become zero (the published rule)."""


@dataclass(frozen=True)
class DerivedTimes:
    """Times on which the replay of one shape runs.

    Attributes
    ----------
    kept : ndarray of shape (n_ops, n_data, n_steps), float32, seconds, or StoredArray
        Duration of a local operation, transfer duration of a grouped one; holes filled.
    observed : ndarray of shape (n_ops, n_data, n_steps), bool, or None
        Where `kept` was derived from rows; None if everywhere.
    measured : ndarray of shape (n_steps,), float32, seconds
        Last end minus first start.
    """

    kept: Seconds32 | StoredArray
    observed: BoolArray | None
    measured: Seconds32

    @property
    def work(self) -> Seconds32:
        """Own times of the operations: (n_ops, n_data, n_steps), seconds; read back if on disk."""
        return self.kept if isinstance(self.kept, np.ndarray) else self.kept.load()


def derive(shape: StepShape, graph: DependencyGraph) -> DerivedTimes:
    """Own times and measured step times of one shape, with missing rows filled."""
    work, measured = observed_work(shape, graph)
    holes = np.isnan(work)
    if not holes.any():
        return DerivedTimes(work, None, measured)
    fill_holes([work], [holes], shape)
    return DerivedTimes(work, ~holes, measured)


def observed_work(shape: StepShape, graph: DependencyGraph) -> tuple[Seconds32, Seconds32]:
    """Own times with NaN for missing rows, and measured step times.

    If a group lacks a member, its latest start is unknown, so the times of all its members are missing.
    """
    end = shape.start + shape.duration
    work = shape.duration.copy()
    pairs = np.array([g.members for g in graph.groups if len(g.members) == 2 and not g.across_data])
    if pairs.size:
        started = np.maximum(shape.start[pairs[:, 0]], shape.start[pairs[:, 1]])
        for side in (0, 1):
            work[pairs[:, side]] = _plausible(end[pairs[:, side]] - started)
    for group in graph.groups:
        if len(group.members) == 2 and not group.across_data:
            continue
        members = list(group.members)
        latest = shape.start[members].max(axis=(0, 1) if group.across_data else 0)
        work[members] = _plausible(end[members] - latest)
    measured = np.nanmax(end, axis=(0, 1)) - np.nanmin(shape.start, axis=(0, 1))
    return work, measured


def _plausible(seconds: Seconds32) -> Seconds32:
    return np.where(seconds <= IMPLAUSIBLE, np.float32(0), seconds)


def fill_holes(works: Sequence[Seconds32], holes: Sequence[BoolArray], shape: StepShape) -> None:
    """Fill missing times in place.

    The first median that exists is taken: of the operation on that worker, of the operation, of the type on
    that stage, of the type.

    Parameters
    ----------
    works, holes : sequence of ndarray of shape (n_ops, n_data, n_block)
        Blocks of steps of one shape.
    shape : StepShape
        The operations of the shape.
    """

    def known(op: int) -> Seconds32:
        nan = np.float32(np.nan)
        return np.concatenate(
            [np.where(h[op], nan, w[op]) for w, h in zip(works, holes, strict=True)], axis=1
        )

    @cache
    def usual(optype: int, stage: int) -> float:
        same = (shape.optype == optype) & ((shape.stage == stage) | (stage < 0))
        return _median(np.concatenate([known(int(op)).ravel() for op in np.flatnonzero(same)]))

    for op in np.flatnonzero(np.any([h.any(axis=(1, 2)) for h in holes], axis=0)):
        own = known(int(op))
        values = nan_median(own.T).astype(np.float32)
        values[np.isnan(values)] = _median(own)
        for stage in (int(shape.stage[op]), -1):
            if np.isnan(values).any():
                values[np.isnan(values)] = usual(int(shape.optype[op]), stage)
        values = np.nan_to_num(values)
        for work, hole in zip(works, holes, strict=True):
            data_rank, step = np.nonzero(hole[op])
            work[op, data_rank, step] = values[data_rank]


def _median(values: Seconds32) -> float:
    values = values[np.isfinite(values)]
    return float(np.median(values)) if values.size else float("nan")


def ideal_durations(shapes: Sequence[StepShape], derived: Sequence[DerivedTimes]) -> FloatArray:
    """Ideal duration per operation type, over all data ranks, stages, steps and sequence numbers.

    Returns
    -------
    ndarray of shape (N_TYPES,), seconds
        Mean for work, median for communication; 0 for types that never occur.
    """
    ideal = np.zeros(N_TYPES)
    for code, optype in enumerate(OP_TYPES):
        pooled = []
        for shape, times in zip(shapes, derived, strict=True):
            ops = np.flatnonzero(shape.optype == code)
            if not ops.size:
                continue
            values = times.work[ops[0] : ops[-1] + 1] if _contiguous(ops) else times.work[ops]
            if times.observed is not None:
                values = values[times.observed[ops]]
            pooled.append(values.ravel())
        if not sum(values.size for values in pooled):
            continue
        together = pooled[0] if len(pooled) == 1 else np.concatenate(pooled)
        ideal[code] = _statistic(together, optype.statistic)
    return ideal


def ideal_of_operations(
    shapes: Sequence[StepShape], derived: Sequence[DerivedTimes], ideal: FloatArray
) -> list[FloatArray]:
    """Ideal duration of every operation of every shape.

    Parameters
    ----------
    ideal : ndarray of shape (N_TYPES,), seconds
        From `ideal_durations`. Operations of rounds have one per sequence number in its place. The work of
        two rounds differs, that of one round on two ranks should not.

    Returns
    -------
    list of ndarray of shape (n_ops,), seconds
    """
    of_shapes = [ideal[shape.optype] for shape in shapes]
    pooled: dict[tuple[int, int], list[Seconds32]] = {}
    for shape, times in zip(shapes, derived, strict=True):
        for op in np.flatnonzero(np.isin(shape.optype, ROUND)):
            values = times.work[op] if times.observed is None else times.work[op][times.observed[op]]
            pooled.setdefault((int(shape.optype[op]), int(shape.sequence[op])), []).append(values.ravel())
    for (code, sequence), values in pooled.items():
        own = _statistic(np.concatenate(values), OP_TYPES[code].statistic)
        for shape, of_shape in zip(shapes, of_shapes, strict=True):
            of_shape[(shape.optype == code) & (shape.sequence == sequence)] = own
    return of_shapes


def _contiguous(ops: IntArray) -> bool:
    return int(ops[-1] - ops[0]) + 1 == ops.size


def _statistic(values: Seconds32, statistic: str) -> float:
    # Sum and ratio are rounded to single precision, as the published results are.
    if statistic == "mean":
        return float(np.float32(values.sum(dtype=np.float64)) / np.float32(values.size))
    return float(np.float32(np.median(values)))


Blocks = Callable[[], Iterator[tuple[StepShape, DerivedTimes]]]

HALF = 1 << 16


def pooled_ideal_durations(blocks: Blocks) -> FloatArray:
    """The same ideal durations as `ideal_durations`, computed block by block.

    Parameters
    ----------
    blocks : callable
        Gives an iterator over all blocks; called twice.

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
    """Observed values of one type in one block at a time."""
    for shape, times in blocks:
        work = times.work
        for code in np.unique(shape.optype):
            ops = np.flatnonzero(shape.optype == code)
            values = work[ops]
            yield int(code), values.ravel() if times.observed is None else values[times.observed[ops]]


def _sortable(values: Seconds32) -> npt.NDArray[np.uint32]:
    """Integers that sort like the numbers: all bits of negative numbers are flipped, else the sign bit."""
    bits = np.ascontiguousarray(values + np.float32(0)).view(np.uint32)
    flipped: npt.NDArray[np.uint32] = bits ^ (
        (bits.view(np.int32) >> 31).view(np.uint32) | np.uint32(1 << 31)
    )
    return flipped


def _unsorted(keys: npt.NDArray[Any]) -> Seconds32:
    negative = keys < (1 << 31)
    bits = np.where(negative, ~keys, keys ^ np.uint32(1 << 31)).astype(np.uint32)
    return bits.view(np.float32)
