"""Features of the whole job (plain floats)."""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features.change_points import periodicity, trend
from rca.features.comparison import Comparison, segment_mean
from rca.features.endings import Endings
from rca.features.evidence import Evidence, nominal_resources, resource_names
from rca.features.input_load import load_features
from rca.features.late_episode_features import costliest_episode, episode_context, phase_spikes
from rca.features.rank_features import MAX_STEPS_BEHIND
from rca.features.work import OWN_PHASES, Work
from rca.robust import nan_max, nan_mean, nan_median, nan_quantile
from rca.telemetry.job import Topology

#: A step this much above the usual one is a spike (checkpoint, evaluation, hiccup).
SPIKE_RATIO = 1.5


def job_features(
    work: Work,
    comparison: Comparison,
    evidence: Evidence,
    endings: Endings,
    topology: Topology,
    per_rank: dict[str, FloatArray],
) -> dict[str, float]:
    """All features that describe the job rather than one rank."""
    inside = comparison.segment.mask(work.steps.size)
    stretch = _stretch(work, comparison, inside)
    return (
        _shape(work, topology, comparison)
        | stretch
        | _grown(per_rank)
        | _concentration(comparison, inside, work.step_reference)
        | episode_context(work, comparison, topology, per_rank)
        | phase_spikes(work, comparison)
        | _rhythm(work)
        | _correlations(per_rank)
        | load_features(work, inside, stretch["slow_segment_ratio"])
        | _ending(endings)
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


def _stretch(work: Work, comparison: Comparison, inside: BoolArray) -> dict[str, float]:
    segment, unit, n_steps = comparison.segment, work.step_reference, max(work.steps.size, 1)
    step = work.job_step
    transfer = nan_median(work.transfer)
    lateness = nan_max(comparison.excess)
    high, low = _mean(step[inside]), _mean(step[~inside])
    calm = step[~inside] if (~inside).sum() >= 4 else step
    spread = nan_quantile(calm[:, None], 0.75)[0] - nan_quantile(calm[:, None], 0.25)[0]
    moved = transfer[inside]
    return {
        "step_variation": float(spread / unit),
        "slow_segment_found": 0.0 if segment.whole else 1.0,
        "slow_segment_share": (segment.last - segment.first + 1) / n_steps,
        "slow_segment_start": segment.first / n_steps,
        "slow_segment_end": (segment.last + 1) / n_steps,
        "slow_segment_contrast": (high - low) / unit,
        "slow_segment_ratio": high / low,
        "transfer_share": _mean(moved) / unit,
        "transfer_growth": (_mean(moved) - _mean(transfer[~inside])) / unit,
        "transfer_variation": float(
            (nan_quantile(moved[:, None], 0.9)[0] - nan_quantile(moved[:, None], 0.1)[0]) / unit
        ),
        "lateness": _mean(lateness[inside]) / unit,
        "lateness_growth": (_mean(lateness[inside]) - _mean(lateness[~inside])) / unit,
    }


def _grown(per_rank: dict[str, FloatArray]) -> dict[str, float]:
    """Which phases became longer on everybody: what peers cannot show."""
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
        "step_time_trend": trend(step),
        "checkpoint_share": _phase_share(work, "checkpoint_seconds"),
        "gc_share": _phase_share(work, "gc_seconds"),
        "data_loading_share": _phase_share(work, "data_loading_seconds"),
    }


def _correlations(per_rank: dict[str, FloatArray]) -> dict[str, float]:
    names = ("forward_backward_correlation", "load_correlation")
    return {f"{name}_job": _median(per_rank[name]) for name in names}


def _ending(endings: Endings) -> dict[str, float]:
    behind = nan_max(-endings.behind[:, None])[0]
    with np.errstate(invalid="ignore"):
        early = endings.progress <= -1.0
    return {
        "steps_since_progress": min(endings.silence, MAX_STEPS_BEHIND),
        "unfinished_share": float(endings.unfinished.mean()),
        "ended_early_share": float(early.mean()),
        "max_steps_behind": float(min(behind, MAX_STEPS_BEHIND)),
        "any_fatal_event": float(endings.fatal.any()),
        "any_missed_event": float(endings.missed.any()),
        "fatal_delay": float(np.clip(endings.fatal_delay, -MAX_STEPS_BEHIND, MAX_STEPS_BEHIND)),
    }


def _coverage(work: Work, evidence: Evidence) -> dict[str, float]:
    split, unsplit = np.isfinite(work.wait).any(), np.isfinite(work.transfer).any()
    known = np.isfinite(np.fmax(evidence.versus_peers, evidence.versus_past)).any(axis=0)
    return {
        "phases_measured": float(sum(name in work.phases for name in OWN_PHASES)),
        "communication_measured": 2.0 if split else 1.0 if unsplit else 0.0,
        "resources_measured": float(known.mean()),
    }


def window_maxima(evidence: Evidence, per_rank: dict[str, FloatArray]) -> dict[str, float]:
    """The largest rank's value of what single ranks are judged by, and the usual one where zero is sound."""
    peers, past = nan_max(evidence.versus_peers), nan_max(evidence.versus_past)
    sound, usual = nan_max(evidence.versus_nominal), nan_median(evidence.versus_nominal)
    at_zero = nominal_resources()
    maxima = {}
    for column, name in enumerate(resource_names()):
        maxima[f"max_{name}_vs_peers"] = float(peers[column])
        maxima[f"max_{name}_vs_past"] = float(past[column])
        if name in at_zero:
            maxima[f"max_{name}_vs_nominal"] = float(sound[column])
            maxima[f"median_{name}_vs_nominal"] = float(usual[column])
    singles = ["own_time_excess", "own_time_excess_z", "wait_deficit", "late_share"]
    singles += [f"{column.removesuffix('_seconds')}_excess" for column in OWN_PHASES]
    largest = nan_max(np.stack([per_rank[name] for name in singles], axis=1))
    maxima |= costliest_episode(per_rank)
    return maxima | {f"max_{name}": float(value) for name, value in zip(singles, largest, strict=True)}


def _phase_share(work: Work, column: str) -> float:
    seconds = work.phases.get(column)
    return np.nan if seconds is None else _mean(nan_mean(seconds)) / work.step_reference


def _mean(values: FloatArray) -> float:
    return float(nan_mean(values[:, None])[0]) if values.size else np.nan


def _median(values: FloatArray) -> float:
    return float(nan_median(values[:, None])[0])
