"""Estimate the clock skew between workers from operations that end together, and remove it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.robust import nan_median
from rca.whatif.graph.clock_offsets import Gap, joint_offsets
from rca.whatif.graph.graph import DependencyGraph
from rca.whatif.trace.step_shapes import StepShape

MIN_SKEW = 5e-3
"""Seconds. Ends of a collective may differ by less without skew, and the results hardly change."""

ALSO_CORRECTED = 1e-3
"""Seconds. Once one clock is off by `MIN_SKEW`, every clock that is off by this much is corrected."""

NOTED_SKEW = 1.5e-3
"""Seconds. A larger skew gets a note even if it is not corrected."""

SAMPLED_VALUES = 16_000_000
"""Operations of a shape from which graph and clock offsets are read. Larger shapes are sampled by step."""

FIRST_STEPS = 4
MIN_FOR_MOVING = 6
"""With fewer steps a drifting clock cannot be distinguished from noise."""

CLOCKS_SHOWN = 4


def one_clock(
    kept: Sequence[tuple[StepShape, DependencyGraph, object]], notes: list[str], *, correct: bool = True
) -> FloatArray:
    """Correct the clocks of all workers by the offsets of the commonest shape, and add notes.

    Parameters
    ----------
    kept : sequence of (StepShape, DependencyGraph, object)
        Commonest first; starts are shifted in place.
    correct : bool
        False leaves every clock as traced, as the published tool does.

    Returns
    -------
    ndarray of shape (n_data, n_stages), seconds
        The removed offsets.
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
        notes.append(f"clocks differ by up to {left * 1e3:.1f} ms, which is not corrected")
    moved = moving_clocks(shape, graph)
    if moved.any():
        notes.append(
            f"clocks of {_counted(moved)} move by up to {np.abs(moved).max() * 1e3:.1f} ms during the trace: "
            f"only their median can be corrected ({_listed(moved)})"
        )
    return offsets


def clock_offsets(shape: StepShape, graph: DependencyGraph) -> tuple[FloatArray, float]:
    """Clock offset of every worker, from groups of operations that end together.

    A skewed clock shifts all collectives of a worker by the same amount. A late collective shifts only
    itself. Several workers may share one clock (a node, a stage, a data rank), so all offsets are solved
    for jointly. The largest set of agreeing workers has offset zero.

    Returns
    -------
    offsets : ndarray of shape (n_data, n_stages), seconds
        0 where the clock is correct, or where its groups disagree.
    left : float, seconds
        Largest offset if none is large enough to be corrected, else 0.
    """
    steps = sampled_steps(shape.n_ops * shape.n_data, shape.start.shape[2])
    offsets = joint_offsets(_gaps(shape, graph, steps), shape.n_data, shape.n_stages, NOTED_SKEW)
    largest = float(np.abs(offsets).max())
    if largest < MIN_SKEW:
        return np.zeros_like(offsets), largest
    return np.where(np.abs(offsets) >= ALSO_CORRECTED, offsets, 0.0), 0.0


def moving_clocks(shape: StepShape, graph: DependencyGraph) -> FloatArray:
    """Drift of each clock from the first third of the steps to the last third; 0 below `MIN_SKEW`.

    Returns
    -------
    ndarray of shape (n_data, n_stages), seconds
    """
    steps = sampled_steps(shape.n_ops * shape.n_data, shape.start.shape[2])
    if steps.size < MIN_FOR_MOVING:
        return np.zeros((shape.n_data, shape.n_stages))
    third = steps.size // 3
    early, late = (_gaps(shape, graph, part) for part in (steps[:third], steps[-third:]))
    change = [
        (stages, across, after - before)
        for (stages, across, before), (_, _, after) in zip(early, late, strict=True)
    ]
    moved = joint_offsets(change, shape.n_data, shape.n_stages, NOTED_SKEW)
    return np.where(np.abs(moved) >= MIN_SKEW, moved, 0.0)


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
    """Positions of the sampled steps of a shape: the first few, and others evenly spread.

    Parameters
    ----------
    n_values : int
        Operations in one step, over all data ranks.
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
    """The largest offsets, with their workers."""
    order = np.argsort(-np.abs(offsets), axis=None, kind="stable")[:CLOCKS_SHOWN]
    places = [divmod(int(at), offsets.shape[1]) for at in order if offsets.flat[at]]
    listed = [f"data rank {d}, stage {s}: {offsets[d, s] * 1e3:+.1f} ms" for d, s in places]
    return "; ".join(listed) + ("; ..." if int((offsets != 0).sum()) > len(places) else "")
