"""Features of one rank each (arrays of shape (n_ranks,))."""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.comparison import Comparison
from rca.features.input_load import load_excess, told_load
from rca.features.job_end import Endings
from rca.features.late_episodes import LATE_SHARE, LateEpisodes, capped, late_from
from rca.features.resource_evidence import Evidence, activity_per_compute, nominal_resources, resource_names
from rca.features.slow_segment import segment_mean
from rca.features.work import OWN_PHASES, Work
from rca.robust import (
    group_members,
    nan_mean,
    nan_median,
    nan_min,
    nan_quantile,
    peer_reference,
    row_correlation,
)
from rca.telemetry.job import Topology

#: Fewer late steps than this have no span.
MIN_LATE_STEPS = 4
#: Far more steps behind, or noise units, than this say nothing new.
MAX_STEPS_BEHIND = 100.0
MAX_NOISE_UNITS = 200.0


def rank_features(
    work: Work, comparison: Comparison, evidence: Evidence, endings: Endings, topology: Topology
) -> dict[str, FloatArray]:
    """All per-rank features but the job's context."""
    inside = comparison.segment.mask(work.steps.size)
    unit = work.step_reference
    late = late_steps(comparison, unit)
    features = (
        _own(work, comparison, late, inside)
        | _waiting(work, inside, topology)
        | _phases(work, comparison, inside, unit)
        | _mates(comparison, inside, unit, topology)
        | late_episode_features(work, comparison, late, topology)
        | _signals(evidence)
    )
    features["activity_per_compute"] = activity_per_compute(work, evidence, inside)
    features["steps_behind_furthest"] = np.maximum(endings.progress, -MAX_STEPS_BEHIND)
    features["steps_behind"] = np.maximum(endings.behind, -MAX_STEPS_BEHIND)
    features["unfinished"] = endings.unfinished.astype(float)
    features["fatal_event"] = endings.fatal.astype(float)
    features["missed_event"] = endings.missed.astype(float)
    features["gain_stage"] = (
        segment_mean(comparison.gain_stage, inside)[
            np.minimum(topology.stage, comparison.gain_stage.shape[0] - 1)
        ]
        / unit
    )
    return features


def late_steps(comparison: Comparison, unit: float) -> BoolArray:
    """Where a rank's own work is well above its peers', shape (n_ranks, n_steps)."""
    with np.errstate(invalid="ignore"):
        late: BoolArray = comparison.excess > late_from(unit, comparison.noise)
    return late


def _own(
    work: Work,
    comparison: Comparison,
    late: BoolArray,
    inside: BoolArray,
) -> dict[str, FloatArray]:
    unit, excess = work.step_reference, comparison.excess
    mean = segment_mean(excess, inside)
    outside = segment_mean(excess, ~inside)
    growth = segment_mean(work.own, inside) - segment_mean(work.own, ~inside)
    noise = max(comparison.noise, 1e-3 * unit) if np.isfinite(unit) else np.nan
    spread = excess[:, inside] - mean[:, None]
    counted = np.isfinite(excess[:, inside]).sum(axis=1)
    late_start, late_end = _late_span(late)
    last = np.bincount(comparison.last[inside & (comparison.last >= 0)], minlength=excess.shape[0])
    load = told_load(work)
    forward, backward = (comparison.phase_excess.get(f"{name}_seconds") for name in ("forward", "backward"))
    unknown = np.full(excess.shape[0], np.nan)
    return {
        "own_time_excess": mean / unit,
        "own_time_excess_z": np.clip(mean / noise, -MAX_NOISE_UNITS, MAX_NOISE_UNITS),
        "own_time_excess_p90": nan_quantile(excess[:, inside], 0.9, axis=1) / unit,
        "own_time_excess_outside": outside / unit,
        "own_time_growth": (growth - nan_median(growth[:, None])[0]) / unit,
        "own_time_volatility": np.sqrt(nan_mean(spread * spread, axis=1)) / unit,
        "late_share": late[:, inside].sum(axis=1) / np.maximum(counted, 1),
        "late_start": late_start,
        "late_end": late_end,
        "arrives_last_share": last / max(int(inside.sum()), 1),
        "gain_rank": segment_mean(comparison.gain_rank, inside) / unit,
        "gain_node": segment_mean(comparison.gain_node, inside) / unit,
        "forward_backward_correlation": unknown
        if forward is None or backward is None
        else row_correlation(forward, backward),
        "load_correlation": unknown if load is None else row_correlation(work.own, load),
        "load_excess": load_excess(work, inside),
    }


def _late_span(
    late: BoolArray,
) -> tuple[FloatArray, FloatArray]:
    """Where the middle four fifths of each rank's late steps begin and end, as shares of the window.

    NaN below `MIN_LATE_STEPS` late steps; single late steps at either end do not stretch the span.
    """
    cumulative = late.cumsum(axis=1)
    total = cumulative[:, -1:] if late.shape[1] else np.zeros((late.shape[0], 1))
    n_steps = max(late.shape[1], 1)
    enough = total[:, 0] >= MIN_LATE_STEPS
    start = (cumulative <= 0.1 * total).sum(axis=1) / n_steps
    end = (cumulative < 0.9 * total).sum(axis=1) / n_steps
    return np.where(enough, start, np.nan), np.where(enough, end, np.nan)


def _waiting(work: Work, inside: BoolArray, topology: Topology) -> dict[str, FloatArray]:
    unit = work.step_reference
    waited = segment_mean(work.wait, inside)
    moved = segment_mean(work.transfer, inside)
    peers = peer_reference(np.column_stack([waited, moved]), topology.stage)
    return {
        "wait_deficit": (peers[:, 0] - waited) / unit,
        "wait_share": waited / unit,
        "transfer_excess": (moved - peers[:, 1]) / unit,
    }


def _phases(
    work: Work,
    comparison: Comparison,
    inside: BoolArray,
    unit: float,
) -> dict[str, FloatArray]:
    unknown = np.full(work.own.shape[0], np.nan)
    features = {}
    for column in OWN_PHASES:
        name = column.removesuffix("_seconds")
        excess = comparison.phase_excess.get(column)
        features[f"{name}_excess"] = unknown if excess is None else segment_mean(excess, inside) / unit
        seconds = work.phases.get(column)
        features[f"{name}_growth"] = (
            unknown
            if seconds is None
            else (segment_mean(seconds, inside) - segment_mean(seconds, ~inside)) / unit
        )
    forward, backward = features["forward_excess"], features["backward_excess"]
    with np.errstate(invalid="ignore", divide="ignore"):
        magnitude = np.abs(forward) + np.abs(backward)
        features["compute_balance"] = np.where(magnitude > 5e-3, (backward - forward) / magnitude, np.nan)
    return features


def _mates(
    comparison: Comparison,
    inside: BoolArray,
    unit: float,
    topology: Topology,
) -> dict[str, FloatArray]:
    mean = segment_mean(comparison.excess, inside) / unit
    floor = max(LATE_SHARE / 2, 2 * comparison.noise / unit) if np.isfinite(unit) else np.inf
    late = (mean > floor).astype(float)
    order = np.argsort(np.argsort(-np.where(np.isfinite(mean), mean, -np.inf), kind="stable"))
    smallest, share = _others(mean, late, topology.node)
    in_lock_step, _ = _others(mean, late, topology.worker)
    _, stage_share = _others(mean, late, topology.stage if topology.n_stages > 1 else topology.node * 0 - 1)
    return {
        "node_peer_excess": smallest,
        "node_peer_late_share": share,
        "tensor_peer_excess": in_lock_step,
        "stage_peer_late_share": stage_share,
        "late_rank_share": np.full(mean.size, late.mean()),
        "excess_order": order / max(mean.size - 1, 1),
    }


def _others(mean: FloatArray, late: FloatArray, group: IntArray) -> tuple[FloatArray, FloatArray]:
    """Smallest excess and late share among the other members of a rank's group; NaN when alone."""
    smallest = np.full(mean.size, np.nan)
    share = np.full(mean.size, np.nan)
    for members in group_members(group):
        if members.size < 2:
            continue
        values = np.where(np.isfinite(mean[members]), mean[members], np.inf)
        ordered = np.sort(values)
        least = np.where(values == ordered[0], ordered[1], ordered[0])
        smallest[members] = np.where(np.isfinite(least), least, np.nan)
        share[members] = (late[members].sum() - late[members]) / (members.size - 1)
    return smallest, share


def _signals(evidence: Evidence) -> dict[str, FloatArray]:
    features = {}
    for column, name in enumerate(resource_names()):
        features[f"{name}_vs_peers"] = evidence.versus_peers[:, column]
        features[f"{name}_vs_past"] = evidence.versus_past[:, column]
    for name in nominal_resources():
        features[f"{name}_vs_nominal"] = evidence.versus_nominal[:, resource_names().index(name)]
    return features


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
