"""Find patterns of a slow job: slow workers, a slow last stage, uneven microbatches, pauses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray, Seconds32
from rca.robust import nan_median
from rca.whatif.attribution import SlowdownFinding
from rca.whatif.decompose import Decompositions, OperationRemoval
from rca.whatif.graph.trace_replay import ShapeReplay, TraceReplay
from rca.whatif.optypes import BACKWARD, FORWARD

MIN_SLOWDOWN = 1.05
"""Jobs with a smaller slowdown have no findings."""
DOMINANT_SHARE = 0.5
SHOWN_RANKS = 8
SEQUENCE_CORRELATION = 0.9
SEQUENCE_VARIATION = 0.05
PAUSE_SHARE = 0.1
MAX_FOR_MICROBATCHES = 50_000_000
"""Operations. Longer traces are not searched for patterns of microbatches, which need copies of all times."""

PAUSE_FACTOR = 1.5


def find_patterns(
    replay: TraceReplay, found: Decompositions, worker: OperationRemoval, stage: OperationRemoval
) -> tuple[SlowdownFinding, ...]:
    """Patterns that explain a large share of the slowdown, the costliest first."""
    lost = float(found.no_delay.mean() - found.ideal.mean())
    if found.no_delay.mean() < MIN_SLOWDOWN * found.ideal.mean():
        return ()
    findings = [*_hot_workers(replay, found, worker), *_hot_last_stage(replay, found, stage)]
    if _has_microbatches(replay) and (
        sum(part.times.work.size for part in replay.parts) <= MAX_FOR_MICROBATCHES
    ):
        findings += [*_sequence_lengths(replay, found, lost), *_pauses(replay, found, lost)]
    return tuple(sorted(findings, key=lambda finding: -finding.seconds_per_step))


def _has_microbatches(replay: TraceReplay) -> bool:
    return all((part.shape.optype == FORWARD).any() for part in replay.parts)


def named_ranks(ranks: tuple[int, ...]) -> str:
    """Ranks for a sentence: the first few, and how many more."""
    shown = ", ".join(map(str, ranks[:SHOWN_RANKS]))
    more = f" and {len(ranks) - SHOWN_RANKS} more" if len(ranks) > SHOWN_RANKS else ""
    return f"rank(s) {shown}{more}"


def unsearched_patterns(replay: TraceReplay) -> list[str]:
    """A note if patterns of microbatches were not searched for."""
    if sum(part.times.work.size for part in replay.parts) <= MAX_FOR_MICROBATCHES:
        return []
    return ["too many operations: patterns of microbatches (sequence lengths, pauses) were not searched for"]


def _hot_workers(replay: TraceReplay, found: Decompositions, top: OperationRemoval) -> list[SlowdownFinding]:
    if top.share is None or top.share < DOMINANT_SHARE or replay.ranks.size < 2:
        return []
    ranks = tuple(sorted(int(replay.ranks[d, s]) for d, s in top.workers))
    hottest = max(float(found.by_worker[s, d].mean()) for d, s in top.workers) / float(found.ideal.mean())
    saved = float((found.no_delay - top.seconds).mean())
    text = f"{named_ranks(ranks)} alone cost {top.share:.0%} of the slowdown"
    return [
        SlowdownFinding(
            "worker", ranks, top.share, saved, {"m_w": top.share, "hottest_slowdown": hottest}, text
        )
    ]


def _hot_last_stage(
    replay: TraceReplay, found: Decompositions, last: OperationRemoval
) -> list[SlowdownFinding]:
    if last.share is None or last.share < DOMINANT_SHARE or replay.n_stages < 2:
        return []
    slowdowns = found.by_stage.seconds.mean(axis=1) / found.ideal.mean()
    ranks = tuple(sorted(int(rank) for rank in replay.ranks[:, -1]))
    saved = float((found.no_delay - last.seconds).mean())
    evidence = {"m_s": last.share, "stage_slowdown": float(slowdowns[-1])}
    text = f"the last stage alone costs {last.share:.0%} of the slowdown: move layers off it"
    return [SlowdownFinding("stage", ranks, last.share, saved, evidence, text)]


def _compute_pairs(part: ShapeReplay) -> tuple[IntArray, IntArray]:
    """Forward and backward operations in pairs of the same microbatch, stage by stage."""
    shape = part.shape
    by_batch = (shape.microbatch[shape.optype == FORWARD] >= 0).all()
    key = shape.microbatch if by_batch else shape.sequence

    def ordered(code: int) -> IntArray:
        ops = np.flatnonzero(shape.optype == code)
        return ops[np.lexsort((key[ops], shape.chunk[ops], shape.stage[ops]))]

    return ordered(FORWARD), ordered(BACKWARD)


def _within_worker(part: ShapeReplay, values: Seconds32) -> FloatArray:
    """Relative deviation from the mean of the worker over the microbatches of the step.

    This removes the slowness of whole workers, stages and steps. Variation with the data remains.
    """
    n_stages = part.shape.n_stages
    grouped = values.reshape(n_stages, -1, *values.shape[1:]).astype(np.float64)
    mean = grouped.mean(axis=1, keepdims=True)
    if grouped.shape[1] == 1:
        mean = grouped.mean(axis=3, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        deviation: FloatArray = np.nan_to_num(grouped / mean - 1.0)
    return deviation


def correlation(replay: TraceReplay) -> tuple[float, float]:
    """Pearson correlation of forward and backward over microbatches, and the variation of the forwards."""
    forward: list[FloatArray] = []
    backward: list[FloatArray] = []
    for part in replay.parts:
        for held, ops in zip((forward, backward), _compute_pairs(part), strict=True):
            held.append(_within_worker(part, part.times.work[ops]).ravel())
    f, b = np.concatenate(forward), np.concatenate(backward)
    spread = float(f.std() * b.std())
    return (float((f * b).mean() / spread) if spread > 0 else 0.0), float(f.std())


def _sequence_lengths(replay: TraceReplay, found: Decompositions, lost: float) -> list[SlowdownFinding]:
    pearson, variation = correlation(replay)
    if pearson < SEQUENCE_CORRELATION or variation < SEQUENCE_VARIATION:
        return []
    levelled = replay.with_work(_even_microbatches)
    saved = float((found.no_delay - levelled).mean())
    share = saved / lost
    if share < PAUSE_SHARE:
        return []
    evidence = {"pearson_forward_backward": pearson, "forward_variation": variation}
    text = (
        f"microbatches vary by {variation:.0%}, forward and backward alike (r = {pearson:.2f}): balance them"
    )
    return [SlowdownFinding("sequence_length", (), share, saved, evidence, text)]


def _even_microbatches(part: ShapeReplay, _block: slice, work: Seconds32) -> None:
    """Set the computes of every worker to the mean over all data ranks of its stage and step."""
    for code in (FORWARD, BACKWARD):
        for stage in range(part.shape.n_stages):
            ops = (part.shape.optype == code) & (part.shape.stage == stage)
            work[ops] = work[ops].mean(axis=(0, 1))


def _pauses(replay: TraceReplay, found: Decompositions, lost: float) -> list[SlowdownFinding]:
    """Find forwards far above the usual time of the worker whose backwards are usual: interpreter pauses."""
    found_pauses = {id(part): _pauses_of(part) for part in replay.parts}

    def without(part: ShapeReplay, block: slice, work: Seconds32) -> None:
        pauses = found_pauses[id(part)]
        work[pauses.ops] = np.where(pauses.late, pauses.usual, part.times.work[pauses.ops])[:, :, block]

    count = sum(int(pauses.late.sum()) for pauses in found_pauses.values())
    if not count:
        return []
    seconds = replay.with_work(without)
    ranks: set[int] = set()
    for part in replay.parts:
        pauses = found_pauses[id(part)]
        op, data_rank = np.nonzero(pauses.late.any(axis=2))
        ranks.update(replay.ranks[data_rank, part.shape.stage[pauses.ops[op]]].tolist())
    saved = float((found.no_delay - seconds).mean())
    share = saved / lost
    if share < PAUSE_SHARE:
        return []
    evidence = {"pauses": float(count), "pauses_per_step": count / replay.steps.size}
    text = f"{count} forward-only pauses on {len(ranks)} worker(s): plan garbage collection"
    return [SlowdownFinding("garbage_collection", tuple(sorted(ranks)), share, saved, evidence, text)]


@dataclass(frozen=True)
class _Pauses:
    """Forward operations, which of them paused, and their usual times: (n_pairs, n_data, n_steps)."""

    ops: IntArray
    late: BoolArray
    usual: Seconds32


def _pauses_of(part: ShapeReplay) -> _Pauses:
    forward, backward = _compute_pairs(part)
    work = part.times.work
    usual, usual_backward = (_usual(part, work[ops]) for ops in (forward, backward))
    late = (work[forward] > PAUSE_FACTOR * usual) & (work[backward] < (1 + PAUSE_FACTOR) / 2 * usual_backward)
    return _Pauses(forward, late, usual)


def _usual(part: ShapeReplay, values: Seconds32) -> Seconds32:
    """Median per worker over its microbatches and steps, broadcast back."""
    grouped = values.reshape(part.shape.n_stages, -1, *values.shape[1:])
    median = nan_median(grouped.transpose(1, 3, 0, 2).reshape(-1, *grouped.shape[::2][:2]))
    typical = np.repeat(median.astype(np.float32)[:, None, :, None], grouped.shape[1], axis=1)
    return np.broadcast_to(typical, grouped.shape).reshape(values.shape)
