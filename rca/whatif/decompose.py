"""Decompose the slowdown: the cost of each operation type, stage, data rank and worker alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray, Seconds32
from rca.whatif.attribution import Decomposition
from rca.whatif.bootstrap import loses
from rca.whatif.graph.trace_replay import ShapeReplay, TraceReplay
from rca.whatif.optypes import OP_TYPES

TOP_SHARE = 0.03
"""Share of the workers in the top set of the worker metric M_W (the published value)."""


@dataclass(frozen=True)
class Decompositions:
    """All decompositions of one trace.

    Attributes
    ----------
    no_delay, ideal : ndarray of shape (n_steps,), seconds
    by_worker : ndarray of shape (n_stages, n_data, n_steps), seconds
        Exact step times if only that worker keeps its traced times.
    """

    no_delay: FloatArray
    ideal: FloatArray
    by_type: Decomposition
    by_data_rank: Decomposition
    by_stage: Decomposition
    by_worker: FloatArray


def decompose(replay: TraceReplay) -> Decompositions:
    """Evaluate all decompositions in two batches: masks of the whole job, and one data rank at a time."""
    present = sorted(frozenset().union(*(part.graph.active_types for part in replay.parts)))
    merged = sorted({OP_TYPES[code].merged for code in present})
    codes = [[code for code in present if OP_TYPES[code].merged == name] for name in merged]
    place_of = np.full(len(OP_TYPES) + 1, -1)
    for place, held in enumerate(codes):
        place_of[held] = place
    n_stages = replay.n_stages

    def job_masks(part: ShapeReplay) -> list[BoolArray]:
        everything = np.ones(part.shape.n_ops, dtype=bool)
        places = place_of[part.shape.optype]
        return [
            everything,
            ~everything,
            *(places == place for place in range(len(codes))),
            *(part.shape.stage == stage for stage in range(n_stages)),
        ]

    def rank_masks(part: ShapeReplay) -> list[BoolArray]:
        everything = np.ones(part.shape.n_ops, dtype=bool)
        return [everything, *(part.shape.stage == stage for stage in range(n_stages))]

    job = replay.whole_job(job_masks)
    ranks = replay.each_data_rank(rank_masks)
    first_stage = 2 + len(merged)
    return Decompositions(
        no_delay=job[0],
        ideal=job[1],
        by_type=Decomposition(tuple(merged), job[2:first_stage]),
        by_data_rank=Decomposition(tuple(int(rank) for rank in replay.data_ranks), ranks[0]),
        by_stage=Decomposition(tuple(range(n_stages)), job[first_stage:]),
        by_worker=ranks[1:],
    )


@dataclass(frozen=True)
class OperationRemoval:
    """Share of the slowdown that disappears when a set of workers is ideal.

    Attributes
    ----------
    workers : tuple of (int, int)
        (data rank position, stage) of the workers made ideal.
    share : float or None
        (T - T without) / (T - T ideal); None if the slowdown is within noise.
    seconds : ndarray of shape (n_steps,)
        Step times with these workers ideal.
    """

    workers: tuple[tuple[int, int], ...]
    share: float | None
    seconds: FloatArray


def remove_workers(
    replay: TraceReplay, found: Decompositions, workers: tuple[tuple[int, int], ...]
) -> OperationRemoval:
    """Replay the job with the operations of some workers ideal and all others as traced."""

    def make_ideal(part: ShapeReplay, _block: slice, work: Seconds32) -> None:
        for data_rank, stage in workers:
            ops = part.shape.stage == stage
            work[ops, data_rank] = part.ideal[ops, None]

    seconds = replay.with_work(make_ideal)
    return OperationRemoval(workers, share_of_loss(found.no_delay, found.ideal, seconds), seconds)


def remove_last_stage(replay: TraceReplay, found: Decompositions) -> OperationRemoval:
    """Replay the job with all operations of its last stage ideal (M_S)."""
    last = replay.n_stages - 1
    seconds = replay.whole_job(lambda part: [part.shape.stage != last])[0]
    return OperationRemoval(
        tuple((d, last) for d in range(replay.n_data)),
        share_of_loss(found.no_delay, found.ideal, seconds),
        seconds,
    )


def share_of_loss(no_delay: FloatArray, ideal: FloatArray, without: FloatArray) -> float | None:
    """Share of the loss that disappears; None if the loss is zero or within noise.

    Parameters
    ----------
    no_delay, ideal, without : ndarray of shape (n_steps,), seconds
    """
    if not loses(no_delay, ideal):
        return None
    return float(no_delay.mean() - without.mean()) / float(no_delay.mean() - ideal.mean())


def worker_scores(found: Decompositions) -> tuple[FloatArray, FloatArray]:
    """Exact S_w, and the published approximation min(S of its data rank, S of its stage).

    Returns
    -------
    exact, approximate : ndarray of shape (n_data, n_stages)
    """
    ideal = found.ideal.mean()
    exact = found.by_worker.mean(axis=2).T / ideal
    by_rank = found.by_data_rank.seconds.mean(axis=1) / ideal
    by_stage = found.by_stage.seconds.mean(axis=1) / ideal
    return exact, np.minimum(by_rank[:, None], by_stage[None, :])


def top_workers(scores: FloatArray, ranks: IntArray) -> tuple[tuple[int, int], ...]:
    """Choose the top 3 % of the workers by score, ties to the smallest rank."""
    count = int(np.ceil(TOP_SHARE * scores.size))
    order = np.lexsort((ranks.ravel(), -scores.ravel()))[:count]
    data_rank, stage = np.unravel_index(order, scores.shape)
    return tuple((int(d), int(s)) for d, s in zip(data_rank, stage, strict=True))
