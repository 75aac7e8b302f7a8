"""Features of each rank: arrays of shape (n_ranks,) for the rank table."""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.comparison import Comparison
from rca.features.device_load import SM_ACTIVE, activity_per_compute
from rca.features.input_load import counted_load, load_excess
from rca.features.job_end import JobEnd
from rca.features.late_episodes import LATE_SHARE, LateEpisodes, capped, late_threshold
from rca.features.resource_evidence import (
    ResourceEvidence,
    nominal_resources,
    pcie_errors_vs_nominal,
    resource_names,
)
from rca.features.slow_segment import segment_mean
from rca.features.work import OWN_PHASES, Work
from rca.robust import (
    group_members,
    nan_mean,
    nan_median,
    nan_quantile,
    peer_reference,
    row_correlation,
)
from rca.window.grouping import run_starts
from rca.window.job import Topology

#: Late steps that a rank needs for `late_start` and `late_end`.
MIN_LATE_STEPS = 4
#: Steps behind and noise units are clipped here; larger values add nothing.
MAX_STEPS_BEHIND = 100.0
MAX_NOISE_UNITS = 200.0

#: Most ranks of a node or tensor group that are compared with each other.
MAX_MATES = 4_096


def rank_features(
    work: Work, comparison: Comparison, evidence: ResourceEvidence, job_end: JobEnd, topology: Topology
) -> dict[str, FloatArray]:
    """All features of single ranks; the job's features that each rank repeats are not among them."""
    inside = comparison.segment.mask(work.steps.size)
    unit = work.step_reference
    late = late_steps(comparison, unit)
    features = (
        _own(work, comparison, late, inside)
        | _waiting(work, inside, topology)
        | _phases(work, comparison, inside, unit)
        | _peer_lateness(comparison, inside, unit, topology)
        | _late_episode(work, comparison, late, topology)
        | _signals(evidence)
    )
    features["untimed_excess"] = _untimed_excess(work)
    features["activity_per_compute"] = activity_per_compute(work, evidence.values.get(SM_ACTIVE), inside)
    features["steps_behind_furthest"] = np.maximum(job_end.progress, -MAX_STEPS_BEHIND)
    features["steps_behind"] = np.maximum(job_end.behind, -MAX_STEPS_BEHIND)
    features["unfinished"] = job_end.unfinished.astype(float)
    features["fatal_event"] = job_end.fatal.astype(float)
    features["missed_event"] = job_end.missed.astype(float)
    features["gain_stage"] = (
        segment_mean(comparison.gain_stage, inside)[
            np.minimum(topology.stage, comparison.gain_stage.shape[0] - 1)
        ]
        / unit
    )
    return features


def late_steps(comparison: Comparison, unit: float) -> BoolArray:
    """Steps in which a rank's own work is well above its peers', shape (n_ranks, n_steps).

    `unit` is the usual step, seconds.
    """
    with np.errstate(invalid="ignore"):
        late: BoolArray = comparison.excess > late_threshold(unit, comparison.noise)
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
    load = counted_load(work)
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
    """Begin and end of the middle 80 % of each rank's late steps, as shares of the window.

    NaN below `MIN_LATE_STEPS` late steps. Single late steps at either end do not lengthen the span.
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
    transferred = segment_mean(work.transfer, inside)
    peers = peer_reference(np.column_stack([waited, transferred]), topology.stage)
    return {
        "wait_deficit": (peers[:, 0] - waited) / unit,
        "wait_share": waited / unit,
        "transfer_excess": (transferred - peers[:, 1]) / unit,
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


def _untimed_excess(work: Work) -> FloatArray:
    """Own work outside every timed phase above the median rank's, shape (n_ranks,), relative."""
    mean = nan_mean(work.outside_phases, axis=1)
    excess: FloatArray = (mean - nan_median(mean[:, None])[0]) / work.step_reference
    return excess


def _peer_lateness(
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
    tensor_smallest, _ = _others(mean, late, topology.worker)
    _, stage_share = _others(mean, late, topology.stage if topology.n_stages > 1 else topology.node * 0 - 1)
    return {
        "node_peer_excess": smallest,
        "node_peer_late_share": share,
        "tensor_peer_excess": tensor_smallest,
        "stage_peer_late_share": stage_share,
        "late_rank_share": np.full(mean.size, late.mean()),
        "excess_order": order / max(mean.size - 1, 1),
    }


def _others(mean: FloatArray, late: FloatArray, group: IntArray) -> tuple[FloatArray, FloatArray]:
    """Smallest excess and share of late ranks among the others of a rank's group; NaN if there are none."""
    smallest, share = np.full(mean.size, np.nan), np.full(mean.size, np.nan)
    values = np.where(np.isfinite(mean), mean, np.inf)
    known = np.flatnonzero(group >= 0)
    order = known[np.lexsort((values[known], group[known]))]
    starts = run_starts(group[order])
    sizes = np.diff(np.append(starts, order.size))
    place = np.repeat(np.arange(sizes.size), sizes)
    n_late = np.bincount(place, weights=late[order], minlength=sizes.size)
    several = sizes[place] > 1
    rows, place = order[several], place[several]
    first, second = values[order[starts[place]]], values[order[starts[place] + 1]]
    least = np.where(values[rows] == first, second, first)
    smallest[rows] = np.where(np.isfinite(least), least, np.nan)
    share[rows] = (n_late[place] - late[rows]) / (sizes[place] - 1)
    return smallest, share


def _signals(evidence: ResourceEvidence) -> dict[str, FloatArray]:
    features = {}
    for column, name in enumerate(resource_names()):
        features[f"{name}_vs_peers"] = evidence.versus_peers[:, column]
        features[f"{name}_vs_past"] = evidence.versus_past[:, column]
    for name in nominal_resources():
        features[f"{name}_vs_nominal"] = evidence.versus_nominal[:, resource_names().index(name)]
    features["pcie_errors_vs_nominal"] = pcie_errors_vs_nominal(evidence)
    return features


def _late_episode(
    work: Work, comparison: Comparison, late: BoolArray, topology: Topology
) -> dict[str, FloatArray]:
    """Features of each rank in its own late episode, each of shape (n_ranks,).

    Parameters
    ----------
    late : ndarray of shape (n_ranks, n_steps), bool
        See `late_steps`.
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
        "episode_excess_outside": _mean_outside(episodes, capped(excess, unit)) / unit,
        "episode_removal_gain": episodes.mean(gained) / unit,
        "episode_arrives_last_share": episodes.count(arrived_last) / np.maximum(timed, 1.0),
        "episode_wait_deficit": episodes.mean(nan_median(work.wait) - work.wait) / unit,
        "episode_node_peer_excess": _smallest_peer_excess(episodes, excess, topology.node) / unit,
        "episode_tensor_peer_excess": _smallest_peer_excess(episodes, excess, topology.worker) / unit,
    }
    unknown = np.full(excess.shape[0], np.nan)
    for column in OWN_PHASES:
        seconds = comparison.phase_excess.get(column)
        features[f"{column.removesuffix('_seconds')}_episode_excess"] = (
            unknown if seconds is None else episodes.mean(seconds) / unit
        )
    # A rank without timings is unknown, not on time.
    timed_at_all = known.any(axis=1)
    return {name: np.where(timed_at_all, values, np.nan) for name, values in features.items()}


def _mean_outside(episodes: LateEpisodes, excess: FloatArray) -> FloatArray:
    """Mean of each row outside its episode, shape (n_ranks,); NaN if nothing was timed outside."""
    outside = np.where(episodes.mask(excess.shape[1]), np.nan, excess)
    return nan_mean(outside, axis=1)


def _smallest_peer_excess(episodes: LateEpisodes, excess: FloatArray, group: IntArray) -> FloatArray:
    """Smallest mean excess of the others of each rank's group during its episode.

    NaN if there are none, or more than any machine has: all pairs are compared.
    """
    groups = [members for members in group_members(group) if 2 <= members.size <= MAX_MATES]
    return episodes.smallest_of_peers(excess, groups)
