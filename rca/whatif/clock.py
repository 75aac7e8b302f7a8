"""Clock skew between workers, estimated from operations that end together and taken out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rca.robust import nan_median
from rca.whatif.graph import DependencyGraph
from rca.whatif.shapes import StepShape

FloatArray = npt.NDArray[np.float64]

SMALLEST_SKEW = 5e-3
"""Seconds; below it the ends of a collective may differ anyhow, and the answer hardly does."""

MOST_CORRECTED = 256
"""Clocks corrected at most; where more are off, the trace was not synchronised at all."""

NOTED_SKEW = 1.5e-3
"""Seconds from which an agreed skew is worth a note although it is not corrected."""

AGREEMENT = 0.25
"""Witnesses must agree on the skew within this share of it."""

MAJORITY = 0.75
"""Share of the witnesses that must agree: one collective may really end late on one worker."""


def clock_offsets(shape: StepShape, graph: DependencyGraph) -> tuple[FloatArray, float]:
    """Offset of every worker's clock, where all that ends with it agrees on one.

    A late collective also ends late on one worker only, but then its other collectives disagree; a skewed
    clock shifts all of them alike, so only a shift every witness confirms counts.

    Returns
    -------
    offsets : ndarray of shape (n_data, n_stages), seconds
        0 where the clock is sound or the witnesses disagree.
    left : float, seconds
        Largest agreed skew that is too small to be corrected.
    """
    left = 0.0
    offsets = np.zeros((shape.n_data, shape.n_stages))
    gaps = _gaps(shape, graph)
    if not gaps:
        return offsets, left
    for _ in range(min(offsets.size, MOST_CORRECTED)):
        # One worker at a time: a skewed clock also shifts what its peers are compared with.
        found = _agreed(np.stack([_shifts(gap, offsets) for gap in gaps]))
        worst = np.unravel_index(int(np.argmax(np.abs(found))), found.shape)
        if abs(found[worst]) < SMALLEST_SKEW:
            left = float(abs(found[worst]))
            break
        offsets[worst] += found[worst]
    return offsets - np.median(offsets), left


Gap = tuple[tuple[int, ...], bool, FloatArray]


def _gaps(shape: StepShape, graph: DependencyGraph) -> list[Gap]:
    """Median end over steps and operations per kind of group: (stages, across_data, (n_data, stages))."""
    pooled: dict[tuple[tuple[int, ...], bool, int], list[tuple[int, ...]]] = {}
    for group in graph.groups:
        stages = tuple(graph.operations[op].stage for op in group.members)
        if len(stages) * (shape.n_data if group.across_data else 1) > 1:
            kind = graph.operations[group.members[0]].optype
            pooled.setdefault((stages, group.across_data, kind), []).append(group.members)
    gaps: list[Gap] = []
    steps = sampled_steps(shape.n_ops * shape.n_data, shape.start.shape[2])
    for (stages, across_data, _), groups in pooled.items():
        members = np.array(groups)
        ends = shape.start[members][..., steps].astype(np.float64) + shape.duration[members][..., steps]
        # (groups, members, data, steps) against the group's first data rank and member.
        reference = ends[:, :1, :1] if across_data else ends[:, :1]
        spread = (ends - reference).transpose(0, 3, 2, 1).reshape(-1, shape.n_data, len(stages))
        gaps.append((stages, across_data, nan_median(spread)))
    return gaps


def _shifts(gap: Gap, offsets: FloatArray) -> FloatArray:
    """How much later than its peers' the ends of every worker are in one kind of group.

    Returns
    -------
    ndarray of shape (n_data, n_stages), seconds
        NaN for workers on other stages.
    """
    stages, across_data, spread = gap
    held = list(stages)
    corrected = spread - offsets[:, held]
    if across_data and corrected.size != 2:
        peers = np.full(corrected.shape, nan_median(corrected.reshape(-1, 1))[0])
    else:
        # Two members: each is the other's only witness.
        peers = corrected[::-1] if across_data and len(held) == 1 else corrected[:, ::-1]
    shifts = np.full(offsets.shape, np.nan)
    shifts[:, held] = corrected - peers
    return shifts


def _agreed(shifts: FloatArray) -> FloatArray:
    """Median over witnesses where at least two exist and all lie close to it; else 0.

    Parameters
    ----------
    shifts : ndarray of shape (n_witnesses, n_data, n_stages), seconds
    """
    middle = np.nan_to_num(nan_median(shifts))
    near = np.maximum(AGREEMENT * np.abs(middle), 1e-3)
    with np.errstate(invalid="ignore"):
        agreeing = (np.abs(shifts - middle) <= near).sum(axis=0)
    witnesses = np.isfinite(shifts).sum(axis=0)
    confirmed = (witnesses >= 2) & (agreeing >= MAJORITY * witnesses)
    return np.where(confirmed, middle, 0.0)


def without_offsets(shape: StepShape, offsets: FloatArray) -> None:
    """Shift the starts of a shape onto one clock, in place."""
    for stage in range(shape.n_stages):
        ops = np.flatnonzero(shape.stage == stage)
        shape.start[ops] -= offsets[:, stage].astype(np.float32)[None, :, None]


def one_clock(kept: Sequence[tuple[StepShape, DependencyGraph, object]], notes: list[str]) -> FloatArray:
    """Correct skewed clocks by what the commonest shape shows; notes what was done."""
    offsets, left = clock_offsets(kept[0][0], kept[0][1])
    if offsets.any():
        for shape, _, _ in kept:
            without_offsets(shape, offsets)
    notes += [
        f"clock of data rank {d}, stage {s} is {offsets[d, s] * 1e3:+.1f} ms off and was corrected"
        for d, s in np.argwhere(offsets != 0)[:8]
    ]
    if left >= NOTED_SKEW:
        notes.append(f"clocks seem up to {left * 1e3:.1f} ms apart, which was left as it is")
    return offsets


SAMPLED_VALUES = 16_000_000
"""Operations looked at to tell graph and clocks of a shape; beyond, some of its steps stand for all."""

FIRST_STEPS = 4


def sampled_steps(n_values: int, n_steps: int) -> npt.NDArray[np.int64]:
    """Positions of the steps that stand for all of a shape: the first few, and others evenly spread.

    Parameters
    ----------
    n_values : int
        Operations in one step, over all data ranks.
    n_steps : int
    """
    count = max(2 * FIRST_STEPS, SAMPLED_VALUES // n_values)
    if count >= n_steps:
        return np.arange(n_steps)
    spread = np.linspace(FIRST_STEPS, n_steps - 1, count - FIRST_STEPS).astype(np.int64)
    return np.append(np.arange(FIRST_STEPS), spread)
