"""Evaluate scenarios on an operation trace, many in one batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rca.arrays import BoolArray, FloatArray, Seconds32
from rca.errors import InvalidInput
from rca.robust import nan_median
from rca.whatif.graph.replay import replay_batch, step_blocks, whole_job
from rca.whatif.graph.schedules import DATA_COLLECTIVES
from rca.whatif.graph.trace_replay import ShapeReplay, TraceReplay
from rca.whatif.optypes import CLIP, COMPUTE, EMBEDDING, GC, LAYERNORM, OP_TYPES, OPTIMIZER, POINT_TO_POINT
from rca.whatif.scenario import Change, Scenario, Selection, refuse_absent, refuse_unmatched

CODES_OF_KIND = {
    "compute": COMPUTE,
    "communication": (*POINT_TO_POINT, *DATA_COLLECTIVES, LAYERNORM, EMBEDDING, CLIP),
    "host": (GC, OPTIMIZER),
}
BATCH_BYTES = 64 << 20
"""Bytes of scenario times in one batch."""


def scenario_seconds(
    replay: TraceReplay, scenarios: Sequence[Scenario], nodes: npt.NDArray[np.str_] | None = None
) -> FloatArray:
    """Step times under every scenario, without launch delays.

    Parameters
    ----------
    nodes : ndarray of shape (n_data, n_stages), str, optional
        Node of every worker. Needed by scenarios that select by node.

    Returns
    -------
    ndarray of shape (n_scenarios, n_steps), seconds
    """
    _refuse_unfitting(replay, scenarios, nodes)
    out = np.empty((len(scenarios), replay.steps.size))
    matched = [np.zeros(len(scenario.changes), dtype=bool) for scenario in scenarios]
    for part in replay.parts:
        batch = max(1, BATCH_BYTES // max(1, part.times.work.nbytes))
        for first in range(0, len(scenarios), batch):
            chosen = scenarios[first : first + batch]
            with np.errstate(over="ignore", invalid="ignore"):
                works = [
                    _work_under(replay, part, scenario, nodes, matched[first + k])
                    for k, scenario in enumerate(chosen)
                ]
            out[first : first + len(chosen), part.position] = _replayed(replay, part, works)
    hint = (
        f"{replay.steps.size} steps between {replay.steps[0]} and {replay.steps[-1]} were replayed; "
        f"stages run from 0 to {replay.n_stages - 1}"
    )
    for scenario, held in zip(scenarios, matched, strict=True):
        refuse_unmatched(scenario, held, hint)
    return out


def _refuse_unfitting(
    replay: TraceReplay, scenarios: Sequence[Scenario], nodes: npt.NDArray[np.str_] | None
) -> None:
    """Refuse scenarios that name something absent from the trace, before the first replay."""
    present: dict[str, frozenset[int | str]] = {
        "ranks": frozenset(replay.ranks.ravel().tolist()),
        "data_ranks": frozenset(replay.data_ranks.tolist()),
        "stages": frozenset(range(replay.n_stages)),
    }
    if nodes is not None:
        present["nodes"] = frozenset(nodes[nodes != ""].tolist())
    for scenario in scenarios:
        for change in scenario.changes:
            phases = [name for name in change.select.types or () if name.endswith("_seconds")]
            if phases:
                raise InvalidInput(f"{', '.join(phases)}: phases of coarse jobs, not operations of a trace")
            if change.select.nodes is not None and nodes is None:
                raise InvalidInput(
                    "scenario selects by node, but this trace has no nodes of its ranks",
                    hint="select ranks, or send the operations in a window whose job.ranks name nodes",
                )
        refuse_absent(scenario, present)


def _replayed(replay: TraceReplay, part: ShapeReplay, works: list[Seconds32]) -> FloatArray:
    """Replay the scenarios as if they were further steps of one trace; they share the program."""
    together = works[0] if len(works) == 1 else np.concatenate(works, axis=2)
    everything = [np.ones(part.shape.n_ops, dtype=bool)]
    seconds = [
        replay_batch(
            part.program,
            whole_job(np.ascontiguousarray(together[:, :, block]), part.ideal, everything),
            engine=replay.engine,
        )[0]
        for block in step_blocks(replay.n_data, together.shape[2])
    ]
    return np.concatenate(seconds).reshape(len(works), -1)


def _work_under(
    replay: TraceReplay,
    part: ShapeReplay,
    scenario: Scenario,
    nodes: npt.NDArray[np.str_] | None,
    matched: BoolArray,
) -> Seconds32:
    """Own times under one scenario; sets `matched` for changes that select operations."""
    if scenario.base == "ideal":
        work = np.broadcast_to(part.ideal.astype(np.float32)[:, None, None], part.times.work.shape).copy()
    else:
        work = part.times.work.copy()
    for k, change in enumerate(scenario.changes):
        ops, workers, steps = _selected(replay, part, change.select, nodes)
        if change.to == "move_to_stage":
            matched[k] |= _move(part, work, change, ops, workers, steps)
            continue
        where = ops[:, None, None] & workers[:, part.shape.stage].T[:, :, None] & steps[None, None, :]
        matched[k] |= bool(where.any())
        _set(part, work, change, where)
    if not np.isfinite(work).all():
        raise InvalidInput(f"scenario {scenario.name!r}: times overflow")
    return work


def _selected(
    replay: TraceReplay, part: ShapeReplay, select: Selection, nodes: npt.NDArray[np.str_] | None
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Masks over operations, over workers (n_data, n_stages) and over steps."""
    ops = _selected_ops(part, select)
    workers = np.ones(replay.ranks.shape, dtype=bool)
    if select.ranks is not None:
        workers &= np.isin(replay.ranks, select.ranks)
    if select.data_ranks is not None:
        workers &= np.isin(replay.data_ranks, select.data_ranks)[:, None]
    if select.nodes is not None and nodes is not None:
        workers &= np.isin(nodes, select.nodes)
    steps = np.ones(part.shape.steps.size, dtype=bool)
    if select.steps is not None:
        steps = (part.shape.steps >= select.steps[0]) & (part.shape.steps <= select.steps[1])
    return ops, workers, steps


def _selected_ops(part: ShapeReplay, select: Selection) -> BoolArray:
    ops = np.ones(part.shape.n_ops, dtype=bool)
    if select.types is not None:
        codes = [code for code, op in enumerate(OP_TYPES) if {op.name, op.merged} & set(select.types)]
        ops &= np.isin(part.shape.optype, codes)
    if select.kind is not None:
        ops &= np.isin(part.shape.optype, CODES_OF_KIND[select.kind])
    if select.stages is not None:
        ops &= np.isin(part.shape.stage, select.stages)
    return ops


def _set(part: ShapeReplay, work: Seconds32, change: Change, where: BoolArray) -> None:
    value = np.float32(change.value or 0.0)
    if change.to == "ideal":
        new = np.broadcast_to(part.ideal.astype(np.float32)[:, None, None], work.shape)
    elif change.to == "measured":
        new = part.times.work
    elif change.to == "peers":
        new = _peers(part, work, where)
    elif change.to == "scale":
        new = work * value
    elif change.to == "less":
        new = np.minimum(work, np.maximum(work - value, 0))
    else:
        new = np.full_like(work, value)
    np.copyto(work, new, where=where)


def _peers(part: ShapeReplay, work: Seconds32, where: BoolArray) -> Seconds32:
    """Median of the data ranks that are not selected.

    If all are selected in a step, the median of the other steps of the operation; otherwise the ideal.
    """
    new = np.broadcast_to(part.ideal.astype(np.float32)[:, None, None], work.shape).copy()
    touched = np.flatnonzero(where.any(axis=(1, 2)) & ~where.all(axis=(1, 2)))
    if not touched.size:
        return new
    others = np.where(where[touched], np.float32(np.nan), work[touched])
    usual = nan_median(others, axis=1)
    alone = np.isnan(usual)
    lacking = np.flatnonzero(alone.any(axis=1))
    if lacking.size:
        overall = nan_median(others[lacking].reshape(lacking.size, -1), axis=1)
        usual[lacking] = np.where(alone[lacking], overall[:, None], usual[lacking])
    new[touched] = usual[:, None, :]
    return new


def _move(
    part: ShapeReplay,
    work: Seconds32,
    change: Change,
    ops: BoolArray,
    workers: BoolArray,
    steps: BoolArray,
) -> bool:
    """Move a share of each selected compute to the same operation of another stage, in place.

    Returns
    -------
    bool
        Whether an operation was selected.
    """
    shape = part.shape
    receiving = {
        (int(shape.optype[op]), int(shape.sequence[op])): int(op)
        for op in np.flatnonzero((shape.stage == change.stage) & np.isin(shape.optype, COMPUTE))
    }
    found = False
    for op in np.flatnonzero(ops & np.isin(shape.optype, COMPUTE)):
        peer = receiving[int(shape.optype[op]), int(shape.sequence[op])]
        where = workers[:, shape.stage[op], None] & steps
        moved = work[op] * np.float32(change.value or 0.0) * where
        work[op] -= moved
        work[peer] += moved
        found = found or bool(where.any())
    return found
