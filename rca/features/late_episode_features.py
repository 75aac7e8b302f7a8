"""Features of each rank's own episode, and of the costliest for the window."""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.comparison import Comparison
from rca.features.late_episodes import LateEpisodes
from rca.features.lateness import capped, capped_lateness
from rca.features.work import OWN_PHASES, Work
from rca.robust import (
    group_members,
    leader_and_runner_up,
    nan_max,
    nan_mean,
    nan_median,
    nan_min,
    nan_quantile,
)
from rca.telemetry.job import Topology

#: Usual is what a job needs in its better steps.
USUAL_QUANTILE = 0.35
#: What the window knows of its costliest episode.
OF_THE_COSTLIEST = (
    "episode_excess", "episode_late_share", "episode_late_steps_log2", "episode_share",
    "episode_start", "episode_end",
    "episode_excess_outside", "episode_removal_gain", "episode_arrives_last_share",
    "episode_wait_deficit", "episode_node_peer_excess", "episode_tensor_peer_excess",
    *(f"{column.removesuffix('_seconds')}_episode_excess" for column in OWN_PHASES),
)  # fmt: skip


def late_episode_features(
    work: Work, comparison: Comparison, late: BoolArray, topology: Topology
) -> dict[str, FloatArray]:
    """What each rank was like in its own episode, each of shape (n_ranks,).

    Parameters
    ----------
    work : Work
    comparison : Comparison
    late : ndarray of shape (n_ranks, n_steps), bool
    topology : Topology
    """
    unit, excess, episodes = work.step_reference, comparison.excess, comparison.episodes
    n_steps = max(work.steps.size, 1)
    length = episodes.length.astype(float)
    known = np.isfinite(excess)
    timed = episodes.count(known)
    gained = np.where(known, comparison.gain_rank, np.nan)
    arrived_last = comparison.last[None, :] == np.arange(excess.shape[0])[:, None]
    late_steps = episodes.count(late)
    features = {
        "episode_cost": episodes.cost / unit / np.maximum(known.sum(axis=1), 1),
        "episode_excess": episodes.mean(excess) / unit,
        "episode_late_share": late_steps / np.maximum(timed, 1.0),
        "episode_late_steps_log2": np.log2(1.0 + late_steps),
        "episode_share": length / n_steps,
        "episode_start": np.where(length > 0, episodes.first / n_steps, np.nan),
        "episode_end": np.where(length > 0, episodes.past / n_steps, np.nan),
        "episode_excess_outside": _beside(episodes, capped(excess, unit)) / unit,
        "episode_removal_gain": episodes.mean(gained) / unit,
        "episode_arrives_last_share": episodes.count(arrived_last) / np.maximum(timed, 1.0),
        "episode_wait_deficit": episodes.mean(nan_median(work.wait) - work.wait) / unit,
        "episode_node_peer_excess": _least_of_peers(episodes, excess, topology.node) / unit,
        "episode_tensor_peer_excess": _least_of_peers(episodes, excess, topology.worker) / unit,
    }
    unknown = np.full(excess.shape[0], np.nan)
    for column in OWN_PHASES:
        seconds = comparison.phase_excess.get(column)
        features[f"{column.removesuffix('_seconds')}_episode_excess"] = (
            unknown if seconds is None else episodes.mean(seconds) / unit
        )
    # Of whom nothing was timed nothing is known; that is not being on time.
    seen = known.any(axis=1)
    return {name: np.where(seen, values, np.nan) for name, values in features.items()}


def _beside(episodes: LateEpisodes, excess: FloatArray) -> FloatArray:
    """Mean of each row beside its episode, shape (n_ranks,); NaN where the episode is all that was timed."""
    outside = np.where(episodes.mask(excess.shape[1]), np.nan, excess)
    return nan_mean(outside, axis=1)


def _least_of_peers(episodes: LateEpisodes, excess: FloatArray, group: IntArray) -> FloatArray:
    """Smallest mean excess of the rest of each rank's group during its episode; NaN where there is none."""
    least = np.full(excess.shape[0], np.nan)
    for members in group_members(group):
        if members.size < 2:
            continue
        mates = episodes.of_peers(excess, members)
        mates[np.diag_indices(members.size)] = np.nan
        least[members] = nan_min(mates.T)
    return least


def episode_context(
    work: Work, comparison: Comparison, topology: Topology, per_rank: dict[str, FloatArray]
) -> dict[str, float]:
    """How the costliest episode stands out of the others, and what capped lateness costs in all."""
    cost, unit = per_rank["episode_cost"], work.step_reference
    first, costliest, second = leader_and_runner_up(cost[:, None])
    node = topology.node[costliest[0]]
    apart = cost[topology.node != node] if node >= 0 else cost[:0]
    return {
        "worst_episode_cost": float(first[0]),
        "second_episode_cost": float(second[0]),
        "other_node_episode_cost": float(nan_max(apart[:, None])[0]),
        "median_episode_cost": float(nan_median(cost[:, None])[0]),
        "capped_lateness": _mean_lateness(comparison.excess, unit),
    }


def phase_spikes(work: Work, comparison: Comparison) -> dict[str, float]:
    """What steps with more of a phase than usual cost: on everybody, and on whoever has most in each step.

    Pauses that another rank has each time, or loaders that hold everybody up now and then, have no stretch.
    """
    unit, found = work.step_reference, {}
    for column in (*OWN_PHASES, "transfer"):
        name = column.removesuffix("_seconds")
        seconds = work.transfer if column == "transfer" else work.phases.get(column)
        found[f"{name}_spike_mean"] = np.nan if seconds is None else _above_usual(nan_median(seconds), unit)
    for column in OWN_PHASES:
        excess = comparison.phase_excess.get(column)
        name = column.removesuffix("_seconds")
        found[f"{name}_stepwise_max_excess"] = np.nan if excess is None else _mean_lateness(excess, unit)
    return found


def _mean_lateness(excess: FloatArray, unit: float) -> float:
    """Mean over the steps of the capped lateness of whoever comes last, relative."""
    return float(nan_mean(capped_lateness(excess, unit)[:, None])[0]) / unit


def _above_usual(series: FloatArray, unit: float) -> float:
    """Mean of what single steps have above the series' lower third, each up to a usual step; relative."""
    usual = nan_quantile(series[None, :], USUAL_QUANTILE, axis=1)[0]
    return float(nan_mean(np.clip(series - usual, 0.0, unit)[:, None])[0]) / unit


def costliest_episode(per_rank: dict[str, FloatArray]) -> dict[str, float]:
    """The episode of the rank that it costs most, for the window's own row."""
    cost = np.nan_to_num(per_rank["episode_cost"], nan=-1.0)
    equal = np.flatnonzero(cost == cost.max())
    # Where nobody has an episode, or several have the same: whoever is later beside it, not the first rank.
    beside = np.nan_to_num(per_rank["episode_excess_outside"][equal], nan=-np.inf)
    rank = int(equal[beside.argmax()])
    return {f"worst_{name}": float(per_rank[name][rank]) for name in OF_THE_COSTLIEST}
