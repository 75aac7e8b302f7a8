"""Own times of operations, derived from the trace, and ideal durations per operation type.

The own time of a local operation is its duration, that of a grouped one its transfer duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray, Seconds32
from rca.robust import nan_median
from rca.whatif.graph.graph import DependencyGraph
from rca.whatif.optypes import N_TYPES, OP_TYPES, ROUND
from rca.whatif.trace.step_shapes import StepShape

IMPLAUSIBLE = np.float32(-0.010)
"""Seconds. Derived times at or below are clock artefacts and become zero (the published rule)."""


@dataclass(frozen=True)
class DerivedTimes:
    """Times on which the replay of one shape runs.

    Attributes
    ----------
    work : ndarray of shape (n_ops, n_data, n_steps), float32, seconds
        Duration of a local operation, transfer duration of a grouped one; holes filled.
    observed : ndarray of shape (n_ops, n_data, n_steps), bool, or None
        Where `work` was derived from rows; None if everywhere.
    measured : ndarray of shape (n_steps,), float32, seconds
        Last end minus first start.
    """

    work: Seconds32
    observed: BoolArray | None
    measured: Seconds32


def derive(shape: StepShape, graph: DependencyGraph) -> DerivedTimes:
    """Own times and measured step times of one shape, with missing rows filled."""
    work, measured = _observed_work(shape, graph)
    holes = np.isnan(work)
    if not holes.any():
        return DerivedTimes(work, None, measured)
    _fill_holes(work, holes, shape)
    return DerivedTimes(work, ~holes, measured)


def _observed_work(shape: StepShape, graph: DependencyGraph) -> tuple[Seconds32, Seconds32]:
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


def _fill_holes(work: Seconds32, holes: BoolArray, shape: StepShape) -> None:
    """Fill missing times in place.

    The first median that exists is taken: of the operation on that worker, of the operation, of the type on
    that stage, of the type.
    """

    def known(ops: IntArray | int) -> Seconds32:
        return np.where(holes[ops], np.float32(np.nan), work[ops])

    @cache
    def usual(optype: int, stage: int) -> float:
        same = (shape.optype == optype) & ((shape.stage == stage) | (stage < 0))
        return _median(known(np.flatnonzero(same)))

    for op in map(int, np.flatnonzero(holes.any(axis=(1, 2)))):
        own = known(op)
        values = nan_median(own.T).astype(np.float32)
        values[np.isnan(values)] = _median(own)
        for stage in (int(shape.stage[op]), -1):
            if np.isnan(values).any():
                values[np.isnan(values)] = usual(int(shape.optype[op]), stage)
        data_rank, step = np.nonzero(holes[op])
        work[op, data_rank, step] = np.nan_to_num(values)[data_rank]


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
