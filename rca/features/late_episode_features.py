"""Features of each rank's own spell, and of the costliest for the window."""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.comparison import Comparison
from rca.features.late_episodes import Spells
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
#: What the window knows of its costliest spell.
OF_THE_COSTLIEST = (
    "spell_excess", "spell_late", "spell_late_steps", "spell_share", "spell_start", "spell_end",
    "spell_outside", "spell_gain", "spell_last", "spell_wait", "spell_node_mates", "spell_tensor_mates",
    *(f"{column.removesuffix('_seconds')}_spell" for column in OWN_PHASES),
)  # fmt: skip


def spell_features(
    work: Work, comparison: Comparison, late: BoolArray, topology: Topology
) -> dict[str, FloatArray]:
    """What each rank was like in its own spell, each of shape (n_ranks,).

    Parameters
    ----------
    work : Work
    comparison : Comparison
    late : ndarray of shape (n_ranks, n_steps), bool
    topology : Topology
    """
    unit, excess, spells = work.step_reference, comparison.excess, comparison.spells
    n_steps = max(work.steps.size, 1)
    length = spells.length.astype(float)
    known = np.isfinite(excess)
    timed = spells.count(known)
    gained = np.where(known, comparison.gain_rank, np.nan)
    arrived_last = comparison.last[None, :] == np.arange(excess.shape[0])[:, None]
    late_steps = spells.count(late)
    features = {
        "spell_cost": spells.cost / unit / np.maximum(known.sum(axis=1), 1),
        "spell_excess": spells.mean(excess) / unit,
        "spell_late": late_steps / np.maximum(timed, 1.0),
        "spell_late_steps": np.log2(1.0 + late_steps),
        "spell_share": length / n_steps,
        "spell_start": np.where(length > 0, spells.first / n_steps, np.nan),
        "spell_end": np.where(length > 0, spells.past / n_steps, np.nan),
        "spell_outside": _beside(spells, capped(excess, unit)) / unit,
        "spell_gain": spells.mean(gained) / unit,
        "spell_last": spells.count(arrived_last) / np.maximum(timed, 1.0),
        "spell_wait": spells.mean(nan_median(work.wait) - work.wait) / unit,
        "spell_node_mates": _least_of_mates(spells, excess, topology.node) / unit,
        "spell_tensor_mates": _least_of_mates(spells, excess, topology.worker) / unit,
    }
    unknown = np.full(excess.shape[0], np.nan)
    for column in OWN_PHASES:
        seconds = comparison.phase_excess.get(column)
        features[f"{column.removesuffix('_seconds')}_spell"] = (
            unknown if seconds is None else spells.mean(seconds) / unit
        )
    # Of whom nothing was timed nothing is known; that is not being on time.
    seen = known.any(axis=1)
    return {name: np.where(seen, values, np.nan) for name, values in features.items()}


def _beside(spells: Spells, excess: FloatArray) -> FloatArray:
    """Mean of each row beside its spell, shape (n_ranks,); NaN where the spell is all that was timed."""
    outside = np.where(spells.mask(excess.shape[1]), np.nan, excess)
    return nan_mean(outside, axis=1)


def _least_of_mates(spells: Spells, excess: FloatArray, group: IntArray) -> FloatArray:
    """Smallest mean excess of the rest of each rank's group during its spell; NaN where there is none."""
    least = np.full(excess.shape[0], np.nan)
    for members in group_members(group):
        if members.size < 2:
            continue
        mates = spells.of_mates(excess, members)
        mates[np.diag_indices(members.size)] = np.nan
        least[members] = nan_min(mates.T)
    return least


def spell_context(
    work: Work, comparison: Comparison, topology: Topology, per_rank: dict[str, FloatArray]
) -> dict[str, float]:
    """How the costliest spell stands out of the others, and what all lateness costs, capped step by step."""
    cost, unit = per_rank["spell_cost"], work.step_reference
    first, costliest, second = leader_and_runner_up(cost[:, None])
    node = topology.node[costliest[0]]
    apart = cost[topology.node != node] if node >= 0 else cost[:0]
    return {
        "top_spell_cost": float(first[0]),
        "second_spell_cost": float(second[0]),
        "apart_spell_cost": float(nan_max(apart[:, None])[0]),
        "median_spell_cost": float(nan_median(cost[:, None])[0]),
        "capped_lateness": _mean_lateness(comparison.excess, unit),
    }


def phase_bursts(work: Work, comparison: Comparison) -> dict[str, float]:
    """What steps with more of a phase than usual cost: on everybody, and on whoever has most in each step.

    Pauses that another rank has each time, or loaders that hold everybody up now and then, have no stretch.
    """
    unit, found = work.step_reference, {}
    for column in (*OWN_PHASES, "transfer"):
        name = column.removesuffix("_seconds")
        seconds = work.transfer if column == "transfer" else work.phases.get(column)
        found[f"{name}_bursts"] = np.nan if seconds is None else _above_usual(nan_median(seconds), unit)
    for column in OWN_PHASES:
        excess = comparison.phase_excess.get(column)
        name = column.removesuffix("_seconds")
        found[f"{name}_turns"] = np.nan if excess is None else _mean_lateness(excess, unit)
    return found


def _mean_lateness(excess: FloatArray, unit: float) -> float:
    """Mean over the steps of the capped lateness of whoever comes last, relative."""
    return float(nan_mean(capped_lateness(excess, unit)[:, None])[0]) / unit


def _above_usual(series: FloatArray, unit: float) -> float:
    """Mean of what single steps have above the series' lower third, each up to a usual step; relative."""
    usual = nan_quantile(series[None, :], USUAL_QUANTILE, axis=1)[0]
    return float(nan_mean(np.clip(series - usual, 0.0, unit)[:, None])[0]) / unit


def costliest_spell(per_rank: dict[str, FloatArray]) -> dict[str, float]:
    """The spell of the rank that it costs most, for the window's own row."""
    cost = np.nan_to_num(per_rank["spell_cost"], nan=-1.0)
    equal = np.flatnonzero(cost == cost.max())
    # Where nobody has a spell, or several have the same: whoever is later beside it, not the first rank.
    beside = np.nan_to_num(per_rank["spell_outside"][equal], nan=-np.inf)
    rank = int(equal[beside.argmax()])
    return {f"top_{name}": float(per_rank[name][rank]) for name in OF_THE_COSTLIEST}
