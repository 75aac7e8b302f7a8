"""The forward replay: from durations of operations to starts and ends of a whole job.

A rank begins a step when it has ended the one before and its batch has been loaded and copied. A tensor group
computes in lock-step, so each of its operations lasts as long as its slowest member.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.lab.simulation.schedule import SimulatedStepShape, StepPlan
from rca.whatif.optypes import (
    ALL_GATHER,
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    POINT_TO_POINT,
    REDUCE_SCATTER,
)

# Kinds of durations; a kind has one row per stage (per link for transfers), "nothing" has one in all.
DURATION_KINDS = (FORWARD, BACKWARD, REDUCE_SCATTER, ALL_GATHER, OPTIMIZER, POINT_TO_POINT[0])
_KIND = {optype: kind for kind, optype in enumerate(DURATION_KINDS)} | dict.fromkeys(POINT_TO_POINT, 5)


@dataclass(frozen=True)
class Durations:
    """Durations of all operations in a compact form.

    An operation lasts ``seconds[row] * share * parts[part]``, plus its worker's lump where it has one.

    Attributes
    ----------
    seconds : ndarray of shape (n_steps, n_rows, n_data), seconds
        Of a stage's whole step, by kind (see `row_of`).
    parts : ndarray of shape (n_steps, 2 * n_microbatches + 1, n_data)
        Each microbatch's share of its worker's compute; a row of ones; factors on each microbatch's transfers
        between stages.
    lump : ndarray of shape (n_steps, 2 * n_stages, n_data), seconds
        Stalls in one of a step's forwards, then in one of its backwards, by stage.
    place : ndarray of shape (n_steps, n_data), int
        The microbatch they fall into.
    """

    seconds: FloatArray
    parts: FloatArray
    lump: FloatArray
    place: IntArray


@dataclass(frozen=True)
class Feed:
    """What ranks do outside the operations, all of shape (n_ranks, n_steps), seconds.

    Attributes
    ----------
    service : ndarray
        A loader worker's time for the batch.
    taking, copy : ndarray
        Taking a loaded batch, and copying it to the device while all neighbours copy.
    after : ndarray
        From the end of communication to the next step.
    workers, depth : int
        Loader workers of each rank, and batches kept ahead.
    link, sharing : int, float
        Number of consecutive ranks that copy over one link, and the part of a copy's time that sharing costs.
    """

    service: FloatArray
    taking: FloatArray
    copy: FloatArray
    after: FloatArray
    workers: int
    depth: int
    link: int = 1
    sharing: float = 0.0


@dataclass(frozen=True)
class ReplayTimes:
    """Times of a replayed job, in seconds since the first step's start.

    Attributes
    ----------
    start : ndarray of shape (n_ranks, n_steps + 1)
        Of every step, and the end of the last.
    fetched, exchanged : ndarray of shape (n_ranks, n_steps)
        When the batch was loaded; when all communication was over.
    copying : ndarray of shape (n_ranks, n_steps), seconds
        How long the copy took.
    ready : ndarray of shape (n_stages, n_data, n_steps)
        When each worker could begin its first operation.
    ends : ndarray of shape (n_ops, n_data, n_steps) or None
        End of every operation; None unless kept.
    """

    start: FloatArray
    fetched: FloatArray
    exchanged: FloatArray
    copying: FloatArray
    ready: FloatArray
    ends: FloatArray | None


def n_rows(shape: SimulatedStepShape) -> int:
    """Rows of `Durations.seconds`."""
    return len(DURATION_KINDS) * shape.pipeline + 1


def row_of(shape: SimulatedStepShape, optype: int, place: int) -> int:
    """Row of `Durations.seconds` for a kind of operation on a stage, or a transfer on a link."""
    return _KIND[optype] * shape.pipeline + place


@dataclass(frozen=True)
class _Keys:
    row: IntArray
    part: IntArray
    share: FloatArray
    lumpy: IntArray
    root: BoolArray
    closing: BoolArray


@lru_cache(maxsize=64)
def _keys(plan: StepPlan) -> _Keys:
    """Index of each operation's duration."""
    shape, stages = plan.shape, plan.shape.pipeline
    computes = np.isin(plan.optype, (FORWARD, BACKWARD))
    row = np.full(plan.optype.size, n_rows(shape) - 1)
    for optype, kind in _KIND.items():
        mine = plan.optype == optype
        place = plan.link if optype in POINT_TO_POINT else plan.stage
        row[mine & (place >= 0)] = (kind * stages + place)[mine & (place >= 0)]
    lumpy = np.where(plan.optype == FORWARD, plan.stage, stages + plan.stage)
    # A stall falls into the first chunk of its microbatch.
    hit = computes & (plan.chunk == 0)
    before = plan.graph.predecessors
    part = np.where(computes, plan.microbatch, shape.microbatches)
    moves = plan.link >= 0
    part[moves] = shape.microbatches + 1 + plan.microbatch[moves]
    return _Keys(
        row=row,
        part=part,
        share=np.where(computes, 1.0 / shape.chunks, 1.0),
        lumpy=np.where(hit, lumpy, -1),
        root=np.array([not before.get(op, ()) for op in range(plan.optype.size)]),
        closing=plan.optype == OPTIMIZER,
    )


def work_of(plan: StepPlan, durations: Durations) -> FloatArray:
    """Duration of every operation, (n_ops, n_data, n_steps); the compiled replay never holds this array."""
    keys = _keys(plan)
    work = durations.seconds[:, keys.row] * keys.share[:, None] * durations.parts[:, keys.part]
    stalled = (keys.lumpy >= 0)[:, None] & (durations.place[:, None] == keys.part[:, None])
    work += np.where(stalled, durations.lump[:, keys.lumpy], 0.0)
    return np.asarray(work.transpose(1, 2, 0))


def run_forward(plan: StepPlan, durations: Durations, feed: Feed, *, keep_ends: bool = False) -> ReplayTimes:
    """Run all steps of a job."""
    from rca.lab.simulation.kernels import run_job

    program, keys, stages = plan.program, _keys(plan), plan.shape.pipeline
    n_steps, _, n_data = durations.seconds.shape
    n_ranks = feed.service.shape[0]
    start, fetched = np.zeros((n_steps + 1, n_ranks)), np.empty((n_steps, n_ranks))
    copying = np.empty((n_steps, n_ranks))
    ready = np.empty((n_steps, stages, n_data))
    exchanged = np.empty_like(ready)
    kept = np.full((n_steps if keep_ends else 0, plan.optype.size, n_data), np.nan)
    width = n_ranks // (stages * n_data)
    fed = (feed.service, feed.taking, feed.copy, feed.after)
    service, taking, copy, after = (np.ascontiguousarray(each.T) for each in fed)
    run_job(
        program.dep_start, program.dep_slot, program.member_start, program.member_op, program.member_slot,
        program.across, keys.root, keys.closing, plan.stage, keys.row, keys.part, keys.share, keys.lumpy,
        program.n_slots, durations.seconds, durations.parts, durations.lump, durations.place, stages, width,
        feed.workers, feed.depth, feed.link, feed.sharing, service, taking, copy, after,
        start, fetched, copying, ready, exchanged, kept,
    )  # fmt: skip
    return ReplayTimes(
        start=np.ascontiguousarray(start.T),
        fetched=np.ascontiguousarray(fetched.T),
        exchanged=np.repeat(exchanged.reshape(n_steps, -1).T, width, axis=0),
        copying=np.ascontiguousarray(copying.T),
        ready=ready.transpose(1, 2, 0),
        ends=kept.transpose(1, 2, 0) if keep_ends else None,
    )


def op_starts(plan: StepPlan, replay: ReplayTimes) -> FloatArray:
    """Start of every operation, shape (n_ops, n_data, n_steps): the end of its last predecessor."""
    if replay.ends is None:
        raise ValueError("the replay did not keep the ends of operations; run it with keep_ends=True")
    start = replay.ready[plan.stage].copy()
    for op, before in plan.graph.predecessors.items():
        if before:
            start[op] = replay.ends[list(before)].max(axis=0)
    return start
