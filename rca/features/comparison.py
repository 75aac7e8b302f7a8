"""Peers, stretch and cost: the arrays that rank and window features are summed up from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.late_episodes import LateEpisodes, healthy_spread
from rca.features.slow_segment import Segment, slow_stretch
from rca.features.work import Work
from rca.robust import leader_and_runner_up, nan_median, nan_quantile, peer_reference
from rca.telemetry.job import Topology

#: Own work has to grow by this ratio.
MIN_GROWTH = 0.05
#: The slowed and the others have to be this far apart, relative to how far their means are.
MIN_GAP = 0.5


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
        rank's episode, its contrast is that rank's mean excess, and its `z` is not known (0).
    noise : float, seconds
        Robust spread of the healthy excess.
    episodes : LateEpisodes
        Each rank's own, whatever the job did meanwhile; of the excess above, which is that beside the past
        where most ranks were slowed.
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
    episodes: LateEpisodes
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
        gains = Gains.of(excess, work, topology)
        noise = healthy_spread(excess)
        episodes = LateEpisodes.of(excess, work.step_reference, noise)
        segment = slow_stretch(work, excess, gains, episodes, noise)
        # Without a timer of the exchange it may be within the phases: the most wait there for the others.
        exchange_timed = np.isfinite(work.transfer).any() or np.isfinite(work.wait).any()
        slowed = most_slowed(work.own, segment) if exchange_timed else None
        if slowed is not None:
            reference = past_reference(work.own, slowed, segment)
            references = {
                name: past_reference(seconds, slowed, segment) for name, seconds in work.phases.items()
            }
            excess = work.own - reference
            gains = Gains.of(excess, work, topology)
            noise = healthy_spread(excess)
            episodes = LateEpisodes.of(excess, work.step_reference, noise)
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
            noise=noise,
            episodes=episodes,
        )


def _with_own_past(reference: FloatArray, own: FloatArray) -> FloatArray:
    """Where a rank has no peers its own better steps stand in for them."""
    known = np.isfinite(reference)
    if known.all():
        return reference
    usual = nan_quantile(own, 0.35, axis=1)[:, None]
    return np.where(known, reference, np.broadcast_to(usual, own.shape))


def most_slowed(own: FloatArray, segment: Segment) -> BoolArray | None:
    """The ranks whose own work grew in the slow stretch, if these are most but not all of them.

    Parameters
    ----------
    own : ndarray of shape (n_ranks, n_steps), seconds
    segment : Segment
        Steps in which the job was slow.

    Returns
    -------
    ndarray of shape (n_ranks,), bool, or None
        None where less than half grew, all did, or there is no clear line between them.
    """
    if segment.whole or own.shape[0] < 3:
        return None
    inside = segment.mask(own.shape[1])
    quiet, slow = nan_median(own[:, ~inside], axis=1), nan_median(own[:, inside], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        growth = np.where(quiet > 0, slow / quiet - 1.0, np.nan)
    known = np.sort(growth[np.isfinite(growth)])
    if known.size < 3:
        return None
    gaps = np.diff(known)
    cut = int(gaps.argmax())
    low, high = known[: cut + 1], known[cut + 1 :]
    apart = high.mean() - low.mean()
    clear = apart >= MIN_GROWTH and gaps[cut] >= MIN_GAP * apart and abs(low.mean()) <= 0.5 * apart
    if not clear or 2 * high.size <= known.size:
        return None
    grown: BoolArray = np.nan_to_num(growth, nan=-np.inf) >= high[0]
    return grown


def past_reference(seconds: FloatArray, grown: BoolArray, segment: Segment) -> FloatArray:
    """What everybody would have needed: their quiet past, moved as the ranks not slowed moved since.

    Parameters
    ----------
    seconds : ndarray of shape (n_ranks, n_steps)
        Own work, or one phase of it.
    grown : ndarray of shape (n_ranks,), bool
    segment : Segment

    Returns
    -------
    ndarray of shape (n_ranks, n_steps), seconds
    """
    inside = segment.mask(seconds.shape[1])
    quiet = nan_median(seconds[:, ~inside], axis=1)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        moved = nan_median(np.where(quiet > 0, seconds / quiet, np.nan)[~grown])
    result: FloatArray = quiet * np.where(np.isfinite(moved), moved, 1.0)[None, :]
    return result


class Gains(NamedTuple):
    """Seconds a step would be shorter without one unit's lateness, each of shape (n_units, n_steps)."""

    rank: FloatArray
    node: FloatArray
    stage: FloatArray

    @classmethod
    def of(cls, excess: FloatArray, work: Work, topology: Topology) -> Gains:
        """From own work above the reference, shape (n_ranks, n_steps), seconds."""
        return cls(
            rank=_gain(excess, np.arange(topology.n_ranks), topology.n_ranks),
            node=_node_gain(excess, topology),
            stage=_stage_gain(work.own, topology),
        )


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
