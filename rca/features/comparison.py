"""Comparison of every rank's own work with its peers: excess, cost of lateness, slow segment and episodes.

The reference is what the ranks of the same stage usually need for the step. If more than half of a stage
becomes slow, its healthy ranks look fast and no rank looks late. Then each rank's own past is the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.late_episodes import LateEpisodes
from rca.features.slow_segment import find_slow_segment
from rca.features.work import Work
from rca.high_segment import Segment
from rca.robust import (
    group_members,
    largest_of_each,
    leader_and_runner_up,
    nan_median,
    nan_quantile,
    peer_reference,
    robust_spread,
)
from rca.window.job import Topology

#: Quantile of its own work that is the reference of a rank without peers.
OWN_REFERENCE_QUANTILE = 0.35
#: Slowed ranks: their own work grows by this ratio more than that of the others.
MIN_SLOWED_GROWTH = 0.05
#: ... and the gap between both groups is this share of the distance of their means.
MIN_SLOWED_GAP = 0.5
#: ... and the others' own work changes by at most this share of that distance.
MAX_OTHERS_CHANGE = 0.5


@dataclass(frozen=True)
class Comparison:
    """Own work compared with peers, and the slow segment of the job.

    Attributes
    ----------
    reference : ndarray of shape (n_ranks, n_steps), seconds
        What stage peers needed for the same step. Without peers it is the rank's own usual time. If most
        ranks became slow together, it is the rank's own past.
    excess : ndarray of shape (n_ranks, n_steps), seconds
        Own work above the reference.
    phase_excess : dict of str to ndarray of shape (n_ranks, n_steps), seconds
        The same for each measured own phase.
    gain_rank, gain_node : ndarray of shape (n_ranks, n_steps), seconds
        Step time saved if the rank, or its whole node, worked at the reference.
    gain_stage : ndarray of shape (n_stages, n_steps), seconds
        Step time saved if the stage worked like the next slowest stage.
    last : ndarray of shape (n_steps,), int
        The rank with the largest excess; -1 if unknown.
    segment : Segment
        Columns of the steps in which the job was slow. If it is a rank's late episode, `contrast` is the
        rank's mean excess and `z` is 0.
    noise : float, seconds
        Robust spread of the healthy excess.
    episodes : LateEpisodes
        Late episode of each rank, of `excess`.
    slowed : ndarray of shape (n_ranks,), bool, or None
        Ranks that became slow together, if they are most of the job. Then the reference is the past.
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
        """Compare every rank with its stage peers at the same step, or with its past if most became slow."""
        reference = _with_own_reference(peer_reference(work.own, topology.stage), work.own)
        excess = work.own - reference
        gains = Gains.of(excess, work, topology)
        # Most ranks must be healthy.
        noise = robust_spread(excess)
        episodes = LateEpisodes.of(excess, work.step_reference, noise)
        segment = find_slow_segment(work, excess, gains, episodes, noise)
        # Without a timer of communication, the phases may contain it. Then most ranks seem slow: they wait.
        communication_timed = np.isfinite(work.transfer).any() or np.isfinite(work.wait).any()
        slowed = most_slowed(work.own, segment) if communication_timed else None
        if slowed is not None:
            reference = past_reference(work.own, slowed, segment)
            excess = work.own - reference
            gains = Gains.of(excess, work, topology)
            noise = robust_spread(excess)
            episodes = LateEpisodes.of(excess, work.step_reference, noise)

        def usual(seconds: FloatArray) -> FloatArray:
            if slowed is None:
                return _with_own_reference(peer_reference(seconds, topology.stage), seconds)
            return past_reference(seconds, slowed, segment)

        _, last, _ = leader_and_runner_up(excess)
        return cls(
            reference=reference,
            excess=excess,
            phase_excess={name: seconds - usual(seconds) for name, seconds in work.phases.items()},
            gain_rank=gains.rank,
            gain_node=gains.node,
            gain_stage=gains.stage,
            last=last,
            segment=segment,
            slowed=slowed,
            noise=noise,
            episodes=episodes,
        )


def _with_own_reference(reference: FloatArray, own: FloatArray) -> FloatArray:
    """The peer reference; for ranks without peers a quantile of their own work."""
    known = np.isfinite(reference)
    if known.all():
        return reference
    usual = nan_quantile(own, OWN_REFERENCE_QUANTILE, axis=1)[:, None]
    return np.where(known, reference, np.broadcast_to(usual, own.shape))


def most_slowed(own: FloatArray, segment: Segment) -> BoolArray | None:
    """The ranks whose own work grew in the slow segment, if they are most but not all ranks.

    Parameters
    ----------
    own : ndarray of shape (n_ranks, n_steps), seconds
    segment : Segment
        Steps in which the job was slow.

    Returns
    -------
    ndarray of shape (n_ranks,), bool, or None
        None if at most half grew, if all grew, or if no clear gap separates both groups.
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
    clear = (
        apart >= MIN_SLOWED_GROWTH
        and gaps[cut] >= MIN_SLOWED_GAP * apart
        and abs(low.mean()) <= MAX_OTHERS_CHANGE * apart
    )
    if not clear or 2 * high.size <= known.size:
        return None
    slowed: BoolArray = np.nan_to_num(growth, nan=-np.inf) >= high[0]
    return slowed


def past_reference(seconds: FloatArray, slowed: BoolArray, segment: Segment) -> FloatArray:
    """Each rank's median outside the segment, scaled by how the ranks that were not slowed changed.

    Parameters
    ----------
    seconds : ndarray of shape (n_ranks, n_steps)
        Own work, or one phase of it.
    slowed : ndarray of shape (n_ranks,), bool

    Returns
    -------
    ndarray of shape (n_ranks, n_steps), seconds
    """
    inside = segment.mask(seconds.shape[1])
    quiet = nan_median(seconds[:, ~inside], axis=1)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        change = nan_median(np.where(quiet > 0, seconds / quiet, np.nan)[~slowed])
    result: FloatArray = quiet * np.where(np.isfinite(change), change, 1.0)[None, :]
    return result


class Gains(NamedTuple):
    """Step time saved without the lateness of one unit, each of shape (n_units, n_steps), seconds.

    `rank` and `node` have one row per rank, `stage` one per stage.
    """

    rank: FloatArray
    node: FloatArray
    stage: FloatArray

    @classmethod
    def of(cls, excess: FloatArray, work: Work, topology: Topology) -> Gains:
        """Gains for an excess of shape (n_ranks, n_steps), seconds."""
        return cls(
            rank=_gain(excess, np.arange(topology.n_ranks), topology.n_ranks),
            node=_node_gain(excess, topology),
            stage=_stage_gain(work.own, topology),
        )


def _gain(lateness: FloatArray, unit: IntArray, n_units: int) -> FloatArray:
    """By how many seconds the last arrival would come earlier without each unit's lateness.

    Let L1 be the lateness of the last unit and L2 the largest lateness of the others. The last unit costs
    ``L1 - max(L2, 0)``; every other unit costs nothing.

    Parameters
    ----------
    lateness : ndarray of shape (n_rows, n_steps), seconds
    unit : ndarray of shape (n_rows,), int
        Unit of each row.

    Returns
    -------
    ndarray of shape (n_units, n_steps), seconds
    """
    if n_units == lateness.shape[0]:
        per_unit = lateness
    else:
        per_unit = np.full((n_units, lateness.shape[1]), -np.inf)
        known = np.where(np.isfinite(lateness), lateness, -np.inf)
        per_unit[np.unique(unit)] = largest_of_each(known, unit)
    first, leader, second = leader_and_runner_up(per_unit)
    floor = np.maximum(np.where(np.isfinite(second), second, 0.0), 0.0)
    saved = np.maximum(np.where(np.isfinite(first), first, 0.0) - floor, 0.0)
    out = np.zeros(per_unit.shape)
    led = leader >= 0
    out[leader[led], np.flatnonzero(led)] = saved[led]
    return out


def _node_gain(lateness: FloatArray, topology: Topology) -> FloatArray:
    """`_gain` of each rank's node, one row per rank; zeros if fewer than two nodes are known."""
    n_nodes = len(topology.node_names)
    if n_nodes < 2:
        return np.zeros(lateness.shape)
    unit = np.where(topology.node >= 0, topology.node, n_nodes)
    gain = _gain(lateness, unit, n_nodes + 1)
    return gain[unit]


def _stage_gain(own: FloatArray, topology: Topology) -> FloatArray:
    if topology.n_stages < 2:
        return np.zeros((1, own.shape[1]))
    stages = np.full((topology.n_stages, own.shape[1]), np.nan)
    for members in group_members(topology.stage):
        stages[topology.stage[members[0]]] = nan_median(own[members])
    usual = nan_median(stages)
    return _gain(stages - usual, np.arange(topology.n_stages), topology.n_stages)
