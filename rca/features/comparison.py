"""Peers, stretch and cost: the arrays that rank and window features are summed up from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.change_points import Segment
from rca.features.late_episodes import LateEpisodes
from rca.features.lateness import healthy_spread
from rca.features.past_reference import most_slowed, past_reference
from rca.features.removal_gain import Gains
from rca.features.slow_segment import slow_stretch
from rca.features.work import Work
from rca.robust import leader_and_runner_up, nan_mean, nan_quantile, peer_reference
from rca.telemetry.job import Topology


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


def segment_mean(values: FloatArray, inside: BoolArray) -> FloatArray:
    """Mean of each row over the columns inside, ignoring NaN; shape (n_rows,)."""
    return nan_mean(values[:, inside], axis=1)
