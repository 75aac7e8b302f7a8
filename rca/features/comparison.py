"""Peers, stretch and cost: the arrays that rank and window features are summed up from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.own_past import most_slowed, past_reference
from rca.features.spells import Spells, capped_lateness
from rca.features.temporal import MIN_SEGMENT_STEPS, Segment, high_segment
from rca.features.work import Work
from rca.robust import (
    MAD_TO_SIGMA,
    leader_and_runner_up,
    nan_max,
    nan_mean,
    nan_median,
    nan_quantile,
    peer_reference,
)  # fmt: skip
from rca.telemetry.job import Topology

#: A change of the step time below this share of it is not worth an interval of its own.
MIN_RELATIVE_CHANGE = 0.04
#: A stretch found in lateness or transfer must lengthen the steps by this share to count.
MIN_FELT_CHANGE = 0.03
#: What one rank, node or stage costs beside a stretch outweighs it from so many times its loss on.
OUTWEIGHED = 3.0
#: A stretch in which another one costs more than beside it, by this share of what is lost, is that one's own.
SOMEBODYS = 0.5
#: ... if he costs less than this share of what the latest does beside it.
LATE_BESIDE = 0.5
#: One rank's own spell is the stretch if the job loses so many times as much in its steps.
COSTLIER = 2.0
#: ... where nothing else changed, only if whoever is last beside it is late by no more than this share.
QUIET = 0.25
#: A rank is late in a step when it is above its peers by this share of the step and by this much noise.
LATE_SHARE = 0.03
LATE_NOISE = 4.0
#: Least evidence (contrast over its standard error) for a stretch; the search looks at many intervals.
MIN_Z = 9.0


@dataclass(frozen=True)
class Comparison:
    """Own work beside its peers, and the stretch of steps in which the job was slow.

    Attributes
    ----------
    reference : ndarray of shape (n_ranks, n_steps), seconds
        What stage peers needed for the same step; the rank's own usual where it has no peers, its own past
        where most ranks were slowed.
    excess : ndarray of shape (n_ranks, n_steps), seconds
        Own work above the reference.
    phase_excess : dict of str to ndarray of shape (n_ranks, n_steps), seconds
    gain_rank, gain_node : ndarray of shape (n_ranks, n_steps), seconds
        Step time saved had the rank, or its whole node, worked at the reference.
    gain_stage : ndarray of shape (n_stages, n_steps), seconds
        Step time saved had the stage worked like the next slowest stage.
    last : ndarray of shape (n_steps,), int
        The rank whose own work exceeded its peers' most; -1 if unknown.
    segment : Segment
        Steps (columns) in which the job was slow; all where a change for everybody is outweighed. If it is a
        rank's spell, its contrast is that rank's mean excess, and its `z` is not known (0).
    noise : float, seconds
        Robust spread of the healthy excess.
    slowed : ndarray of shape (n_ranks,), bool, or None
        Ranks that became slower together, where these are most of the job; their past is the reference then.
    """

    reference: FloatArray
    excess: FloatArray
    phase_excess: dict[str, FloatArray]
    gain_rank: FloatArray
    gain_node: FloatArray
    gain_stage: FloatArray
    last: IntArray
    segment: Segment
    noise: float
    slowed: BoolArray | None = None

    @classmethod
    def from_work(cls, work: Work, topology: Topology) -> Comparison:
        """Compare every rank with its stage peers at the same step; if most became slow, with its past."""
        reference = _with_own_past(peer_reference(work.own, topology.stage), work.own)
        excess = work.own - reference
        references = {
            name: _with_own_past(peer_reference(seconds, topology.stage), seconds)
            for name, seconds in work.phases.items()
        }
        gains = _gains(excess, work, topology)
        segment = slow_stretch(work, excess, gains)
        # Without a timer of the exchange it may be within the phases: the most wait there for the others.
        exchange_timed = np.isfinite(work.transfer).any() or np.isfinite(work.wait).any()
        slowed = most_slowed(work.own, segment) if exchange_timed else None
        if slowed is not None:
            reference = past_reference(work.own, slowed, segment)
            references = {
                name: past_reference(seconds, slowed, segment) for name, seconds in work.phases.items()
            }
            excess = work.own - reference
            gains = _gains(excess, work, topology)
        phase_excess = {name: seconds - references[name] for name, seconds in work.phases.items()}
        _, last, _ = leader_and_runner_up(excess)
        return cls(
            reference=reference,
            excess=excess,
            phase_excess=phase_excess,
            gain_rank=gains.rank,
            gain_node=gains.node,
            gain_stage=gains.stage,
            last=last,
            segment=segment,
            slowed=slowed,
            noise=healthy_spread(excess),
        )


def healthy_spread(excess: FloatArray) -> float:
    """Robust spread of the excess of ranks most of which are healthy, seconds."""
    return float(MAD_TO_SIGMA * nan_median(np.abs(excess).ravel()[:, None])[0])


def late_from(usual: float, noise: float) -> float:
    """Excess above which a rank is late in a step, seconds; infinite where there is no usual step."""
    return max(LATE_SHARE * usual, LATE_NOISE * noise) if np.isfinite(usual) else np.inf


class Gains(NamedTuple):
    """Seconds a step would be shorter without one unit's lateness, each of shape (n_units, n_steps)."""

    rank: FloatArray
    node: FloatArray
    stage: FloatArray

    def usual(self, steps: BoolArray) -> FloatArray:
        """Median over some steps of every unit's, seconds, shape (n_units of all kinds,)."""
        return np.concatenate([np.median(gain[:, steps], axis=1) for gain in self])


def slow_stretch(work: Work, excess: FloatArray, gains: Gains) -> Segment:
    """The stretch in which the job was slow: by step time, lateness or transfer, or somebody's spell.

    The first of three series that shows a change wins: what the user feels comes first, and the others catch
    a fault that a simultaneous change elsewhere hides. Everything, where somebody's lateness outweighs the
    change. The costliest spell of one rank instead, if the job loses far more in its steps.
    """
    changed = _changed_stretch(work, excess)
    if _is_outweighed(changed, gains, work):
        changed = Segment.everything(work.steps.size)
    spell = _somebodys_spell(work, excess)
    if changed.whole and not _is_quiet_beside(spell, excess, work.step_reference):
        return changed
    return _costlier(changed, spell, work)


def _somebodys_spell(work: Work, excess: FloatArray) -> Segment:
    """The costliest spell of one rank, if it has enough late steps and leaves enough of the window."""
    usual, n_steps = work.step_reference, work.steps.size
    everything = Segment.everything(n_steps)
    if not np.isfinite(usual):
        return everything
    noise = healthy_spread(excess)
    spells = Spells.of(excess, usual, noise)
    rank = int(spells.cost.argmax())
    first, past = int(spells.first[rank]), int(spells.past[rank])
    if past - first < MIN_SEGMENT_STEPS or n_steps - (past - first) < MIN_SEGMENT_STEPS:
        return everything
    late = excess[rank, first:past] > late_from(usual, noise)
    if late.sum() < MIN_SEGMENT_STEPS:
        return everything
    return Segment(first, past - 1, float(np.nanmean(excess[rank, first:past])), 0.0, False)


def _is_quiet_beside(spell: Segment, excess: FloatArray, usual: float) -> bool:
    """Whether there is little lateness beside a spell: stragglers that take turns have no stretch."""
    inside = spell.mask(excess.shape[1])
    if inside.all() or not np.isfinite(usual):
        return False
    lateness = capped_lateness(excess, usual)
    within, beside = nan_mean(lateness[inside]), nan_mean(lateness[~inside])
    return bool(beside <= QUIET * within)


def _costlier(changed: Segment, spell: Segment, work: Work) -> Segment:
    """One rank's spell instead of the change, where the job loses far more in the spell's steps."""
    lost = _lost(spell, work)
    felt = lost >= MIN_FELT_CHANGE * work.step_reference * (spell.last - spell.first + 1)
    return spell if felt and lost > COSTLIER * max(_lost(changed, work), 0.0) else changed


def _lost(segment: Segment, work: Work) -> float:
    """Seconds by which the steps of a stretch are longer than those beside it, each up to a step."""
    inside = segment.mask(work.job_step.size)
    if segment.whole or inside.all() or not np.isfinite(work.step_reference):
        return 0.0
    usual = nan_median(work.job_step[None, ~inside], axis=1)[0]
    longer = np.clip(work.job_step[inside] - usual, -work.step_reference, work.step_reference)
    return float(np.nansum(longer))


def _changed_stretch(work: Work, excess: FloatArray) -> Segment:
    usual = work.step_reference
    if not np.isfinite(usual):
        return Segment.everything(work.steps.size)
    found = [
        high_segment(series, min_z=MIN_Z, min_contrast=MIN_RELATIVE_CHANGE * usual)
        for series in (work.job_step, nan_max(excess), nan_median(work.transfer))
    ]
    if not found[0].whole:
        return found[0]
    felt = (segment for segment in found[1:] if _is_felt(segment, work.job_step, usual))
    return next(felt, found[0])


def _is_outweighed(segment: Segment, gains: Gains, work: Work) -> bool:
    """Whether the stretch is everybody's, and somebody costs far more beside it than all that is lost in it.

    A few long steps of everybody's are a change, too. Were they the stretch, a rank that is late from the
    first step to the last would count as usual there. He has to be late in most steps beside it: who is only
    now and then may have begun and ended with a fault of which the stretch is a part.
    """
    inside = segment.mask(work.job_step.size)
    if inside.all():
        return False
    usual = nan_median(work.job_step[None, ~inside], axis=1)[0]
    longer = float(nan_mean((work.job_step[inside] - usual)[:, None])[0])
    costs = gains.usual(~inside)
    most = float(costs.max())
    felt = most >= MIN_FELT_CHANGE * work.step_reference
    if not felt or most * (~inside).sum() <= OUTWEIGHED * longer * inside.sum():
        return False
    # Who is late all along may well be later in it; somebody else has a stretch of his own.
    newly = np.where(costs < LATE_BESIDE * most, gains.usual(inside) - costs, 0.0)
    return bool(newly.max() <= SOMEBODYS * longer)


def _gains(excess: FloatArray, work: Work, topology: Topology) -> Gains:
    return Gains(
        rank=_gain(excess, np.arange(topology.n_ranks), topology.n_ranks),
        node=_node_gain(excess, topology),
        stage=_stage_gain(work.own, topology),
    )


def _is_felt(segment: Segment, job_step: FloatArray, usual: float) -> bool:
    """Whether the job's steps are longer inside the stretch, too; lateness alone may be chance."""
    inside = segment.mask(job_step.size)
    if segment.whole or not (~inside).any():
        return False
    high, low = nan_mean(job_step[inside]), nan_mean(job_step[~inside])
    return bool(high - low >= MIN_FELT_CHANGE * usual)


def _with_own_past(reference: FloatArray, own: FloatArray) -> FloatArray:
    """Where a rank has no peers its own better steps stand in for them."""
    known = np.isfinite(reference)
    if known.all():
        return reference
    usual = nan_quantile(own, 0.35, axis=1)[:, None]
    return np.where(known, reference, np.broadcast_to(usual, own.shape))


def _gain(lateness: FloatArray, unit: IntArray, n_units: int) -> FloatArray:
    """Seconds the last arrival would move forward without each unit's lateness, per unit and step.

    With the last arrival L1 (by unit u) and the last of the other units L2, unit u costs
    ``L1 - max(L2, 0)``, every other unit costs nothing.
    """
    if n_units == lateness.shape[0]:
        per_unit = lateness
    else:
        per_unit = np.full((n_units, lateness.shape[1]), -np.inf)
        np.maximum.at(per_unit, unit, np.where(np.isfinite(lateness), lateness, -np.inf))
    first, leader, second = leader_and_runner_up(per_unit)
    floor = np.maximum(np.where(np.isfinite(second), second, 0.0), 0.0)
    saved = np.maximum(np.where(np.isfinite(first), first, 0.0) - floor, 0.0)
    out = np.zeros(per_unit.shape)
    known = leader >= 0
    out[leader[known], np.flatnonzero(known)] = saved[known]
    return out


def _node_gain(lateness: FloatArray, topology: Topology) -> FloatArray:
    """`_gain` of the node a rank sits on, per rank; zeros where nodes are unknown or there is one only."""
    n_nodes = len(topology.node_names)
    if n_nodes < 2:
        return np.zeros(lateness.shape)
    unit = np.where(topology.node >= 0, topology.node, n_nodes)
    gain = _gain(lateness, unit, n_nodes + 1)
    return gain[unit]


def _stage_gain(own: FloatArray, topology: Topology) -> FloatArray:
    if topology.n_stages < 2:
        return np.zeros((1, own.shape[1]))
    stages = np.stack([nan_median(own[topology.stage == stage]) for stage in range(topology.n_stages)])
    usual = nan_median(stages)
    return _gain(stages - usual, np.arange(topology.n_stages), topology.n_stages)


def stretch_mean(values: FloatArray, inside: BoolArray) -> FloatArray:
    """Mean of each row over the columns inside, ignoring NaN; shape (n_rows,)."""
    return nan_mean(values[:, inside], axis=1)
