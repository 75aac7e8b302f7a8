"""Features of the whole job: floats that every rank's row repeats, and floats of the window's row only."""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features.comparison import Comparison
from rca.features.input_load import load_features
from rca.features.job_end import JobEnd
from rca.features.late_episodes import capped_lateness
from rca.features.rank_features import MAX_STEPS_BEHIND
from rca.features.resource_evidence import (
    ResourceEvidence,
    measured_resources,
    nominal_resources,
    resource_names,
)
from rca.features.slow_segment import segment_mean
from rca.features.table import WORST_EPISODE_FEATURES
from rca.features.work import OWN_PHASES, Work
from rca.high_segment import MIN_SEGMENT_STEPS, without_gaps
from rca.robust import (
    leader_and_runner_up,
    nan_max,
    nan_mean,
    nan_median,
    nan_quantile,
)
from rca.window.job import Topology

#: A step of this many usual steps is a spike (checkpoint, evaluation, hiccup).
SPIKE_RATIO = 1.5
#: Quantile over the steps that counts as a phase's usual time.
USUAL_PHASE_QUANTILE = 0.35
#: Length of the running median that periodicity subtracts.
PERIODICITY_BASELINE_STEPS = 9


def job_features(
    work: Work,
    comparison: Comparison,
    evidence: ResourceEvidence,
    job_end: JobEnd,
    topology: Topology,
    per_rank: dict[str, FloatArray],
) -> dict[str, float]:
    """All features that describe the job rather than one rank."""
    inside = comparison.segment.mask(work.steps.size)
    segment = _slow_segment(work, comparison, inside)
    return (
        _shape(work, topology, comparison)
        | segment
        | _phase_growth(per_rank)
        | _concentration(comparison, inside, work.step_reference)
        | _episode_context(work, comparison, topology, per_rank)
        | _phase_spikes(work, comparison)
        | _rhythm(work)
        | _lost_time(work)
        | _correlations(per_rank)
        | load_features(work, inside, segment["slow_segment_ratio"])
        | _job_end(job_end)
        | _coverage(work, evidence)
    )


def _shape(work: Work, topology: Topology, comparison: Comparison) -> dict[str, float]:
    return {
        "log2_ranks": float(np.log2(topology.n_ranks)),
        "log2_nodes": float(np.log2(max(len(topology.node_names), 1))),
        "pipeline_stages": float(topology.n_stages),
        "log2_steps": float(np.log2(max(work.steps.size, 1))),
        "step_noise": comparison.noise / work.step_reference,
    }


def _slow_segment(work: Work, comparison: Comparison, inside: BoolArray) -> dict[str, float]:
    segment, unit, n_steps = comparison.segment, work.step_reference, max(work.steps.size, 1)
    step = work.job_step
    transfer = nan_median(work.transfer)
    lateness = nan_max(comparison.excess)
    high, low = _mean(step[inside]), _mean(step[~inside])
    outside = step[~inside] if (~inside).sum() >= MIN_SEGMENT_STEPS else step
    spread = nan_quantile(outside[:, None], 0.75)[0] - nan_quantile(outside[:, None], 0.25)[0]
    transfer_inside = transfer[inside]
    return {
        "step_variation": float(spread / unit),
        "slow_segment_found": 0.0 if segment.whole else 1.0,
        "slow_segment_share": (segment.last - segment.first + 1) / n_steps,
        "slow_segment_start": segment.first / n_steps,
        "slow_segment_end": (segment.last + 1) / n_steps,
        "slow_segment_contrast": (high - low) / unit,
        "slow_segment_ratio": high / low,
        "transfer_share": _mean(transfer_inside) / unit,
        "transfer_growth": (_mean(transfer_inside) - _mean(transfer[~inside])) / unit,
        "transfer_variation": float(
            (nan_quantile(transfer_inside[:, None], 0.9)[0] - nan_quantile(transfer_inside[:, None], 0.1)[0])
            / unit
        ),
        "lateness": _mean(lateness[inside]) / unit,
        "lateness_growth": (_mean(lateness[inside]) - _mean(lateness[~inside])) / unit,
    }


def _phase_growth(per_rank: dict[str, FloatArray]) -> dict[str, float]:
    """Growth of each phase on the median rank. A comparison with peers does not show it."""
    names = (f"{column.removesuffix('_seconds')}_growth" for column in OWN_PHASES)
    return {f"{name}_job": _median(per_rank[name]) for name in names}


def _concentration(comparison: Comparison, inside: BoolArray, unit: float) -> dict[str, float]:
    by_rank = np.sort(segment_mean(comparison.gain_rank, inside))[::-1] / unit
    by_node = segment_mean(comparison.gain_node, inside) / unit
    by_stage = segment_mean(comparison.gain_stage, inside) / unit
    last = comparison.last[inside]
    last = last[last >= 0]
    counts = np.bincount(last) if last.size else np.zeros(1)
    return {
        "top_gain_rank": float(by_rank[0]),
        "second_gain_rank": float(by_rank[1]) if by_rank.size > 1 else 0.0,
        "top_gain_node": float(nan_max(by_node[:, None])[0]),
        "top_gain_stage": float(nan_max(by_stage[:, None])[0]),
        "last_rank_concentration": float(counts.max() / max(last.size, 1)),
        "last_rank_spread": float((counts > 0).sum() / comparison.excess.shape[0]),
    }


def _rhythm(work: Work) -> dict[str, float]:
    step, unit = work.job_step, work.step_reference
    with np.errstate(invalid="ignore"):
        spikes = step > SPIKE_RATIO * unit
    period, strength = periodicity(step)
    return {
        "spike_share": float(spikes.mean()) if step.size else 0.0,
        "spike_cost": float((step[spikes] - unit).sum() / (unit * max(step.size, 1))),
        "period_strength": strength,
        "period_steps": period,
        "step_time_trend": _trend(step),
        "checkpoint_share": _phase_share(work, "checkpoint_seconds"),
        "gc_share": _phase_share(work, "gc_seconds"),
        "data_loading_share": _phase_share(work, "data_loading_seconds"),
    }


def _lost_time(work: Work) -> dict[str, float]:
    """Time that no timer saw, and the share of the phase that most of a step goes into."""
    unit = work.step_reference
    longest = np.fmax.reduce([*work.phases.values()]) if work.phases else work.own[:0]
    return {
        "largest_phase_share": float(nan_mean(longest.reshape(-1, 1))[0]) / unit,
        "pauses": work.pauses.seconds / unit,
        "untimed": work.untimed.seconds / unit,
    }


def _correlations(per_rank: dict[str, FloatArray]) -> dict[str, float]:
    names = ("forward_backward_correlation", "load_correlation")
    return {f"{name}_job": _median(per_rank[name]) for name in names}


def _job_end(job_end: JobEnd) -> dict[str, float]:
    behind = nan_max(-job_end.behind[:, None])[0]
    with np.errstate(invalid="ignore"):
        early = job_end.progress <= -1.0
    return {
        "steps_since_progress": min(job_end.steps_since_progress, MAX_STEPS_BEHIND),
        "unfinished_share": float(job_end.unfinished.mean()),
        "ended_early_share": float(early.mean()),
        "max_steps_behind": float(min(behind, MAX_STEPS_BEHIND)),
        "any_fatal_event": float(job_end.fatal.any()),
        "any_missed_event": float(job_end.missed.any()),
        "fatal_delay": float(np.clip(job_end.fatal_delay, -MAX_STEPS_BEHIND, MAX_STEPS_BEHIND)),
    }


def _coverage(work: Work, evidence: ResourceEvidence) -> dict[str, float]:
    split, unsplit = np.isfinite(work.wait).any(), np.isfinite(work.transfer).any()
    known = measured_resources(evidence)
    return {
        "phases_measured": float(sum(name in work.phases for name in OWN_PHASES)),
        "communication_measured": 2.0 if split else 1.0 if unsplit else 0.0,
        "resources_measured": sum(known.values()) / len(known),
    }


def window_maxima(evidence: ResourceEvidence, per_rank: dict[str, FloatArray]) -> dict[str, float]:
    """Largest value over the ranks of each rank feature, and the median of scores against nominal."""
    peers, past = nan_max(evidence.versus_peers), nan_max(evidence.versus_past)
    nominal, usual = nan_max(evidence.versus_nominal), nan_median(evidence.versus_nominal)
    with_nominal = nominal_resources()
    maxima = {}
    for column, name in enumerate(resource_names()):
        maxima[f"max_{name}_vs_peers"] = float(peers[column])
        maxima[f"max_{name}_vs_past"] = float(past[column])
        if name in with_nominal:
            maxima[f"max_{name}_vs_nominal"] = float(nominal[column])
            maxima[f"median_{name}_vs_nominal"] = float(usual[column])
    errors = per_rank["pcie_errors_vs_nominal"][:, None]
    maxima["max_pcie_errors_vs_nominal"] = float(nan_max(errors)[0])
    maxima["median_pcie_errors_vs_nominal"] = float(nan_median(errors)[0])
    singles = ["own_time_excess", "own_time_excess_z", "wait_deficit", "late_share", "untimed_excess"]
    singles += [f"{column.removesuffix('_seconds')}_excess" for column in OWN_PHASES]
    largest = nan_max(np.stack([per_rank[name] for name in singles], axis=1))
    maxima |= _costliest_episode(per_rank)
    return maxima | {f"max_{name}": float(value) for name, value in zip(singles, largest, strict=True)}


def _episode_context(
    work: Work, comparison: Comparison, topology: Topology, per_rank: dict[str, FloatArray]
) -> dict[str, float]:
    """Cost of the costliest episodes compared with the others, and of capped lateness over all steps."""
    cost, unit = per_rank["episode_cost"], work.step_reference
    first, costliest, second = leader_and_runner_up(cost[:, None])
    node = topology.node[costliest[0]]
    elsewhere = cost[topology.node != node] if node >= 0 else cost[:0]
    return {
        "worst_episode_cost": float(first[0]),
        "second_episode_cost": float(second[0]),
        "other_node_episode_cost": float(nan_max(elsewhere[:, None])[0]),
        "median_episode_cost": float(nan_median(cost[:, None])[0]),
        "capped_lateness": _mean_lateness(comparison.excess, unit),
    }


def _phase_spikes(work: Work, comparison: Comparison) -> dict[str, float]:
    """Cost of steps in which a phase is longer than usual, on the median rank and on each step's slowest.

    Pauses on alternating ranks, and loaders that now and then delay all ranks, make no slow segment.
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
    """Mean over all steps of the last rank's capped lateness, relative to the usual step."""
    return float(nan_mean(capped_lateness(excess, unit)[:, None])[0]) / unit


def _above_usual(series: FloatArray, unit: float) -> float:
    """Mean of the time above the series' usual value, each step up to `unit`; relative to `unit`."""
    usual = nan_quantile(series[None, :], USUAL_PHASE_QUANTILE, axis=1)[0]
    return float(nan_mean(np.clip(series - usual, 0.0, unit)[:, None])[0]) / unit


def _costliest_episode(per_rank: dict[str, FloatArray]) -> dict[str, float]:
    """Features of the costliest episode, for the window's row."""
    cost = np.nan_to_num(per_rank["episode_cost"], nan=-1.0)
    equal = np.flatnonzero(cost == cost.max())
    # Among equal costs, also without any episode, the rank that is later outside its episode.
    outside = np.nan_to_num(per_rank["episode_excess_outside"][equal], nan=-np.inf)
    rank = int(equal[outside.argmax()])
    return {f"worst_{name}": float(per_rank[name][rank]) for name in WORST_EPISODE_FEATURES}


def periodicity(series: FloatArray) -> tuple[float, float]:
    """Strongest repetition of a series.

    Returns
    -------
    period : float, steps
        NaN below 16 measured steps, or without variation.
    strength : float
        Autocorrelation at that lag, 0 to 1.
    """
    if np.isfinite(series).sum() < 16:
        return float("nan"), 0.0
    filled = without_gaps(series)
    # Subtract the running median. Otherwise a single change of level looks like a repetition.
    padded = np.pad(filled, PERIODICITY_BASELINE_STEPS // 2, mode="edge")
    centred = filled - np.median(
        np.lib.stride_tricks.sliding_window_view(padded, PERIODICITY_BASELINE_STEPS), axis=1
    )
    centred -= centred.mean()
    n = centred.size
    power = float(centred @ centred)
    if power <= 0:
        return float("nan"), 0.0
    spectrum = np.fft.rfft(centred, 2 * n)
    correlation = np.fft.irfft(spectrum * spectrum.conj())[:n] / power
    lags = np.arange(n)
    scaled = correlation * n / np.maximum(n - lags, 1)
    candidate = scaled[2 : n // 2]
    if candidate.size == 0:
        return float("nan"), 0.0
    best = int(candidate.argmax()) + 2
    return float(best), float(np.clip(scaled[best], 0.0, 1.0))


def _trend(series: FloatArray) -> float:
    """Relative growth over the window: slope times length over the mean. 0 below 8 measured steps."""
    finite = np.isfinite(series)
    if finite.sum() < 8:
        return 0.0
    x = np.flatnonzero(finite).astype(np.float64)
    y = series[finite]
    x -= x.mean()
    mean = float(y.mean())
    if mean <= 0:
        return 0.0
    return float((x @ (y - mean)) / (x @ x) * series.size / mean)


def _phase_share(work: Work, column: str) -> float:
    seconds = work.phases.get(column)
    return np.nan if seconds is None else _mean(nan_mean(seconds)) / work.step_reference


def _mean(values: FloatArray) -> float:
    return float(nan_mean(values[:, None])[0]) if values.size else np.nan


def _median(values: FloatArray) -> float:
    return float(nan_median(values[:, None])[0])
