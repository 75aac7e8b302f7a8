"""From observed times to what an operation itself contributes: transfers, launch delays, ideals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray, Seconds32
from rca.robust import nan_max, nan_median
from rca.whatif.graph import DependencyGraph
from rca.whatif.optypes import N_TYPES, OP_TYPES
from rca.whatif.shapes import StepShape
from rca.whatif.spool import Spooled

IMPLAUSIBLE = np.float32(-0.010)
"""Derived times at or below this are clock artefacts and count as zero (the published rule)."""


@dataclass(frozen=True)
class DerivedTimes:
    """What the replay of one shape runs on.

    Attributes
    ----------
    kept : ndarray of shape (n_ops, n_data, n_steps), float32, seconds, or Spooled
        Duration of a local operation, transfer duration of a grouped one; holes filled.
    observed : ndarray of shape (n_ops, n_data, n_steps), bool, or None
        Which of `kept` was derived from rows; None if all of it was.
    measured : ndarray of shape (n_steps,), float32, seconds
        Last end less first start.
    """

    kept: Seconds32 | Spooled
    observed: BoolArray | None
    measured: Seconds32

    @property
    def work(self) -> Seconds32:
        """What the operations contribute: (n_ops, n_data, n_steps), seconds; read back if on disk."""
        return self.kept if isinstance(self.kept, np.ndarray) else self.kept.load()


def derive(shape: StepShape, graph: DependencyGraph) -> DerivedTimes:
    """Transfer durations and measured step times of one shape, holes filled."""
    work, measured = observed_work(shape, graph)
    holes = np.isnan(work)
    if not holes.any():
        return DerivedTimes(work, None, measured)
    fill_holes([work], [holes], shape)
    return DerivedTimes(work, ~holes, measured)


def observed_work(shape: StepShape, graph: DependencyGraph) -> tuple[Seconds32, Seconds32]:
    """Work as `DerivedTimes` has it but with NaN for holes, and measured step times.

    A group that lacks a member has no known latest start, so all its members are holes.
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
    """Take the worker's own median of the operation, else the operation's, the stage's, the type's.

    Parameters
    ----------
    works, holes : sequence of ndarray of shape (n_ops, n_data, n_block)
        Blocks of steps of one shape; `works` is filled in place.
    shape : StepShape
        Its operations.
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


def launch_delays(shape: StepShape, graph: DependencyGraph) -> Seconds32:
    """Time between the latest end an operation waits for and its start.

    Returns
    -------
    ndarray of shape (n_ops, n_data, n_steps), float32, seconds
        0 where the operation or everything before it was not observed.
    """
    end = shape.start + shape.duration
    origin = np.nanmin(shape.start, axis=(0, 1))
    delays = np.zeros_like(shape.start)
    for op, before in graph.predecessors.items():
        ready = nan_max(end[list(before)]) if before else origin
        delays[op] = np.nan_to_num(_plausible((shape.start[op] - ready).astype(np.float32)))
    return delays


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


def _contiguous(ops: IntArray) -> bool:
    return int(ops[-1] - ops[0]) + 1 == ops.size


def _statistic(values: Seconds32, statistic: str) -> float:
    # In single precision, sum and ratio alike: derived values are kept in it, ideals among them.
    if statistic == "mean":
        return float(np.float32(values.sum(dtype=np.float64)) / np.float32(values.size))
    return float(np.float32(np.median(values)))
