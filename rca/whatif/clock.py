"""Clock skew between workers, estimated from operations that end together and taken out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rca.whatif.graph import DependencyGraph
from rca.whatif.own_work import quiet_nan
from rca.whatif.shapes import StepShape

FloatArray = npt.NDArray[np.float64]

SMALLEST_SKEW = 2e-3
"""Seconds; below it the ends of a collective differ anyhow."""

AGREEMENT = 0.25
"""Witnesses must agree on the skew within this share of it."""


def clock_offsets(shape: StepShape, graph: DependencyGraph) -> FloatArray:
    """Offset of every worker's clock, where all that ends with it agrees on one.

    A late collective also ends late on one worker only, but then its other collectives disagree; a skewed
    clock shifts all of them alike, so only a shift every witness confirms counts.

    Returns
    -------
    ndarray of shape (n_data, n_stages), seconds
        0 where the clock is sound or the witnesses disagree.
    """
    offsets = np.zeros((shape.n_data, shape.n_stages))
    gaps = _gaps(shape, graph)
    if not gaps:
        return offsets
    for _ in range(offsets.size):
        # The shift per worker on which its witnesses agree, with the offsets found so far taken out.
        found = np.zeros_like(offsets)
        for data_rank, stage in np.ndindex(offsets.shape):
            found[data_rank, stage] = _agreed(_witnesses(gaps, offsets, data_rank, stage))
        worst = np.unravel_index(int(np.argmax(np.abs(found))), found.shape)
        if abs(found[worst]) < SMALLEST_SKEW:
            break
        offsets[worst] += found[worst]
    return offsets - np.median(offsets)


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
    for (stages, across_data, _), groups in pooled.items():
        members = np.array(groups)
        ends = shape.start[members].astype(np.float64) + shape.duration[members]
        # (groups, members, data, steps) against the group's first data rank and member.
        reference = ends[:, :1, :1] if across_data else ends[:, :1]
        spread = (ends - reference).transpose(0, 3, 2, 1).reshape(-1, shape.n_data, len(stages))
        gaps.append((stages, across_data, quiet_nan(np.nanmedian, spread)))
    return gaps


def _witnesses(gaps: list[Gap], offsets: FloatArray, data_rank: int, stage: int) -> list[float]:
    """How much later than its peers' this worker's ends are, one figure per kind of group."""
    shifts = []
    for stages, across_data, spread in gaps:
        if stage not in stages:
            continue
        corrected = spread - offsets[:, list(stages)]
        position = stages.index(stage)
        own = corrected[data_rank, position]
        peers = corrected.copy() if across_data else corrected[data_rank : data_rank + 1].copy()
        peers[data_rank if across_data else 0, position] = np.nan
        known = peers[np.isfinite(peers)]
        if known.size and np.isfinite(own):
            shifts.append(float(own - np.median(known)))
    return shifts


def _agreed(shifts: list[float]) -> float:
    """Their median, if at least two exist and all lie close to it; else 0."""
    if len(shifts) < 2:
        return 0.0
    middle = float(np.median(shifts))
    spread = max(abs(shift - middle) for shift in shifts)
    return middle if spread <= max(AGREEMENT * abs(middle), 1e-3) else 0.0


def without_offsets(shape: StepShape, offsets: FloatArray) -> None:
    """Shift the starts of a shape onto one clock, in place."""
    for stage in range(shape.n_stages):
        ops = np.flatnonzero(shape.stage == stage)
        shape.start[ops] -= offsets[:, stage].astype(np.float32)[None, :, None]
