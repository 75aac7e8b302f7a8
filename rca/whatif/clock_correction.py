"""Clock skew between workers, estimated from operations that end together and taken out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.robust import nan_median
from rca.whatif.clock_offsets import Gap, joint_offsets
from rca.whatif.graph import DependencyGraph
from rca.whatif.step_shapes import StepShape

SMALLEST_SKEW = 5e-3
"""Seconds; below it the ends of a collective may differ anyhow, and the answer hardly does."""

ALSO_CORRECTED = 1e-3
"""Seconds from which the other clocks are corrected too, once one is off by `SMALLEST_SKEW`."""

NOTED_SKEW = 1.5e-3
"""Seconds from which an agreed skew is worth a note although it is not corrected."""

SAMPLED_VALUES = 16_000_000
"""Operations looked at to tell graph and clocks of a shape; beyond, some of its steps stand for all."""

FIRST_STEPS = 4
FEWEST_FOR_MOVING = 6
"""Steps below which a clock that moves cannot be told from noise."""

CLOCKS_SHOWN = 4


def one_clock(
    kept: Sequence[tuple[StepShape, DependencyGraph, object]], notes: list[str], *, correct: bool = True
) -> FloatArray:
    """Put all workers on one clock, by what the commonest shape shows; notes what was done.

    Parameters
    ----------
    kept : sequence of (StepShape, DependencyGraph, object)
        Commonest first; starts are shifted in place.
    notes : list of str
    correct : bool
        False leaves every clock as traced, as the published tool does.

    Returns
    -------
    ndarray of shape (n_data, n_stages), seconds
        What was taken out.
    """
    shape, graph, _ = kept[0]
    if not correct:
        return np.zeros((shape.n_data, shape.n_stages))
    offsets, left = clock_offsets(shape, graph)
    if offsets.any():
        for held, _, _ in kept:
            without_offsets(held, offsets)
        notes.append(_corrected(offsets))
    if left >= NOTED_SKEW:
        notes.append(f"clocks seem up to {left * 1e3:.1f} ms apart, which was left as it is")
    moved = moving_clocks(shape, graph)
    if moved.any():
        notes.append(
            f"clocks of {_counted(moved)} move by up to {np.abs(moved).max() * 1e3:.1f} ms during the trace: "
            f"only their median can be corrected ({_listed(moved)})"
        )
    return offsets


def clock_offsets(shape: StepShape, graph: DependencyGraph) -> tuple[FloatArray, float]:
    """Offset of every worker's clock that what ends together agrees on.

    A late collective also ends late on one worker only, but then its other collectives disagree; a skewed
    clock shifts all of them alike. Clocks may be shared (a node, a stage, a data rank), so all offsets are
    solved for together; those of the largest set of workers that agree are zero.

    Returns
    -------
    offsets : ndarray of shape (n_data, n_stages), seconds
        0 where the clock is sound or its witnesses disagree.
    left : float, seconds
        Largest agreed skew where none is large enough to be corrected.
    """
    steps = sampled_steps(shape.n_ops * shape.n_data, shape.start.shape[2])
    offsets = joint_offsets(_gaps(shape, graph, steps), shape.n_data, shape.n_stages, NOTED_SKEW)
    largest = float(np.abs(offsets).max())
    if largest < SMALLEST_SKEW:
        return np.zeros_like(offsets), largest
    return np.where(np.abs(offsets) >= ALSO_CORRECTED, offsets, 0.0), 0.0


def moving_clocks(shape: StepShape, graph: DependencyGraph) -> FloatArray:
    """How far each clock moves from the first third of the steps to the last; 0 below `SMALLEST_SKEW`.

    Returns
    -------
    ndarray of shape (n_data, n_stages), seconds
    """
    steps = sampled_steps(shape.n_ops * shape.n_data, shape.start.shape[2])
    if steps.size < FEWEST_FOR_MOVING:
        return np.zeros((shape.n_data, shape.n_stages))
    third = steps.size // 3
    early, late = (_gaps(shape, graph, part) for part in (steps[:third], steps[-third:]))
    change = [
        (stages, across, after - before)
        for (stages, across, before), (_, _, after) in zip(early, late, strict=True)
    ]
    moved = joint_offsets(change, shape.n_data, shape.n_stages, NOTED_SKEW)
    return np.where(np.abs(moved) >= SMALLEST_SKEW, moved, 0.0)


def _gaps(shape: StepShape, graph: DependencyGraph, steps: IntArray) -> list[Gap]:
    """Median end over steps and operations per kind of group, relative to one member."""
    pooled: dict[tuple[tuple[int, ...], bool, int], list[tuple[int, ...]]] = {}
    for group in graph.groups:
        stages = tuple(graph.operations[op].stage for op in group.members)
        if len(stages) * (shape.n_data if group.across_data else 1) > 1:
            kind = graph.operations[group.members[0]].optype
            pooled.setdefault((stages, group.across_data, kind), []).append(group.members)
    whole = steps.size == shape.start.shape[2]
    gaps: list[Gap] = []
    for (stages, across_data, _), groups in pooled.items():
        members = np.array(groups)
        # (groups, members, data, steps)
        start, duration = (
            times[members] if whole else times[members][..., steps] for times in (shape.start, shape.duration)
        )
        ends = start.astype(np.float64) + duration
        reference = ends[:, :1, :1] if across_data else ends[:, :1]
        if np.isnan(reference).any():
            flat = ends.reshape(ends.shape[0], -1, 1, 1, ends.shape[3]) if across_data else ends[:, :, None]
            reference = nan_median(flat, axis=1)
        spread = (ends - reference).transpose(0, 3, 2, 1).reshape(-1, shape.n_data, len(stages))
        gaps.append((stages, across_data, nan_median(spread)))
    return gaps


def without_offsets(shape: StepShape, offsets: FloatArray) -> None:
    """Shift the starts of a shape onto one clock, in place."""
    for stage in range(shape.n_stages):
        ops = np.flatnonzero(shape.stage == stage)
        shape.start[ops] -= offsets[:, stage].astype(np.float32)[None, :, None]


def sampled_steps(n_values: int, n_steps: int) -> IntArray:
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


def _corrected(offsets: FloatArray) -> str:
    places = np.argwhere(offsets != 0)
    if len(places) == 1:
        d, s = places[0]
        return f"clock of data rank {d}, stage {s} is {offsets[d, s] * 1e3:+.1f} ms off and was corrected"
    largest = np.abs(offsets).max() * 1e3
    off = f"clocks of {_counted(offsets)} are up to {largest:.1f} ms off and were corrected"
    return f"{off} ({_listed(offsets)})"


def _counted(offsets: FloatArray) -> str:
    return f"{int((offsets != 0).sum())} of {offsets.size} workers"


def _listed(offsets: FloatArray) -> str:
    """The largest few by name."""
    order = np.argsort(-np.abs(offsets), axis=None, kind="stable")[:CLOCKS_SHOWN]
    places = [divmod(int(at), offsets.shape[1]) for at in order if offsets.flat[at]]
    listed = [f"data rank {d}, stage {s}: {offsets[d, s] * 1e3:+.1f} ms" for d, s in places]
    return "; ".join(listed) + ("; ..." if int((offsets != 0).sum()) > len(places) else "")
