"""From suspects to priced causes: excess over the reference, responsibilities, counterfactual replays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.causal.attribution import Attribution, Removal, affordable, attribute
from rca.causal.mechanisms import Mechanisms
from rca.causal.responsibility import UNMEASURED, responsibilities
from rca.causal.scores import resource_scores
from rca.classify.classifier import Suspect
from rca.features import FeatureSet
from rca.robust import FloatArray, nan_mean, nan_median, nan_quantile
from rca.telemetry.causes import SLOW_CAUSES
from rca.whatif.coarse import PhaseReplay

#: A cause that takes less than this off the step is not carried into the replay.
MIN_RELATIVE_SAVING = 1e-3


@dataclass(frozen=True)
class PricedCause:
    """One removal with what the replay said about it.

    Attributes
    ----------
    suspect : int
        Index of the suspect it belongs to.
    belief : float
        Probability that these ranks are to blame and this is why, after the mechanisms were consulted.
    phases : dict of str to float, seconds per step
        Mean excess per phase that the cause answers for, on its ranks.
    """

    removal: Removal
    suspect: int
    belief: float
    phases: dict[str, float]


@dataclass(frozen=True)
class Pricing:
    """All priced causes (largest first in `order`) and the totals."""

    causes: list[PricedCause]
    attribution: Attribution
    measured: float


@dataclass(frozen=True)
class _Excess:
    """A component's time above its reference; arrays of shape (n_ranks_of_component, n_steps), seconds."""

    ranks: tuple[int, ...]
    total: FloatArray
    phases: dict[str, FloatArray]
    reference: FloatArray


def price(
    features: FeatureSet, suspects: list[Suspect], mechanisms: Mechanisms, replay: PhaseReplay
) -> Pricing:
    """Price every plausible cause of every suspect.

    Parameters
    ----------
    features : FeatureSet
    suspects : list of Suspect
        Empty for healthy and stopped jobs: then only the totals are computed.
    mechanisms : Mechanisms
    replay : PhaseReplay
        Of the same steps as ``features.work`` (warm-up left out).
    """
    own = np.where(np.isfinite(replay.own), replay.own, np.nan)
    spare = _transfer_excess(features)
    excesses = [_excess(suspect, features) for suspect in suspects]
    ideal_own = _ideal(own, features, excesses)
    ideal = replay.step_seconds_own(ideal_own, np.maximum(replay.transfer - spare, 0.0))
    unit = features.work.step_reference
    causes = [
        cause
        for index, (suspect, excess) in enumerate(zip(suspects, excesses, strict=True))
        for cause in _causes(index, suspect, excess, spare, features, mechanisms)
    ]
    causes = _share_transfer(causes, spare)
    causes = [cause for cause in causes if _size(cause.removal) > MIN_RELATIVE_SAVING * unit]
    causes.sort(key=lambda cause: (-_size(cause.removal) * cause.belief, cause.removal.cause))
    causes = causes[: affordable(own.size)]
    attribution = attribute(
        own, replay.transfer, ideal, [cause.removal for cause in causes], replay.step_seconds_own
    )
    measured = float(nan_mean(replay.measured[:, None])[0])
    if not np.isfinite(measured):
        measured = float(nan_mean(replay.step_seconds_own(own, replay.transfer)[:, None])[0])
    return Pricing(causes, attribution, measured)


def _transfer_excess(features: FeatureSet) -> FloatArray:
    """Transfer above the job's own quiet level, seconds, shape (n_steps,); 0 where there is none."""
    transfer = nan_median(features.work.transfer)
    segment = features.comparison.segment
    if segment.whole:
        return np.zeros(transfer.size)
    inside = segment.mask(transfer.size)
    quiet = nan_median(transfer[~inside][:, None])[0]
    above = np.where(inside, transfer - quiet, 0.0)
    return np.where(np.isfinite(above), np.maximum(above, 0.0), 0.0)


def _excess(suspect: Suspect, features: FeatureSet) -> _Excess:
    """Time above the reference that fits the component: peers, other stages, or the job's own usual."""
    ranks = suspect.component.ranks
    rows = list(ranks)
    work, comparison = features.work, features.comparison
    own = work.own[rows]
    reference = comparison.reference[rows]
    phases = {name: excess[rows] for name, excess in comparison.phase_excess.items()}
    if suspect.component.scope == "stage":
        reference = np.fmin(reference, _other_stages(features, rows))
        phases = {name: _above_usual(seconds, rows, features) for name, seconds in work.phases.items()}
    elif suspect.component.scope == "job":
        reference = np.fmin(reference, nan_quantile(own, 0.35, axis=1)[:, None])
        phases = {
            name: seconds[rows] - nan_quantile(seconds[rows], 0.35, axis=1)[:, None]
            for name, seconds in work.phases.items()
        }
    total = np.maximum(np.where(np.isfinite(own - reference), own - reference, 0.0), 0.0)
    positive = {
        name.removesuffix("_seconds"): np.maximum(np.where(np.isfinite(values), values, 0.0), 0.0)
        for name, values in phases.items()
    }
    return _Excess(ranks, total, positive, reference)


def _other_stages(features: FeatureSet, rows: list[int]) -> FloatArray:
    """Median own work of the other stages, per step."""
    stage = features.topology.stage
    others = features.work.own[~np.isin(stage, stage[rows])]
    return nan_median(others)[None, :]


def _above_usual(seconds: FloatArray, rows: list[int], features: FeatureSet) -> FloatArray:
    stage = features.topology.stage
    return seconds[rows] - nan_median(seconds[~np.isin(stage, stage[rows])])[None, :]


def _ideal(own: FloatArray, features: FeatureSet, excesses: list[_Excess]) -> FloatArray:
    """Own work had nobody been above the reference; whoever was below stays as fast as they were."""
    ideal = np.where(np.isfinite(own), np.fmin(own, features.comparison.reference), np.nan)
    for excess in excesses:
        rows = list(excess.ranks)
        ideal[rows] = np.fmin(ideal[rows], np.where(np.isfinite(own[rows]), excess.reference, np.nan))
    return ideal


def _causes(
    index: int,
    suspect: Suspect,
    excess: _Excess,
    spare: FloatArray,
    features: FeatureSet,
    mechanisms: Mechanisms,
) -> list[PricedCause]:
    unit = features.work.step_reference
    inside = features.comparison.segment.mask(features.work.steps.size)
    parts = _parts(excess)
    means = {name: float(values[:, inside].mean()) / unit for name, values in parts.items()}
    means["transfer"] = float(spare[inside].mean()) / unit
    rows = list(excess.ranks)
    scores = nan_median(
        resource_scores(features.evidence.versus_peers[rows], features.evidence.versus_past[rows])
    )
    beliefs = {cause: suspect.causes.get(cause, 0.0) for cause in SLOW_CAUSES}
    weights = responsibilities(beliefs, mechanisms, scores, means, _measured(features, rows))
    found = []
    for cause, by_phase in weights.items():
        own = sum(
            (parts[name] * weight for name, weight in by_phase.items() if name in parts),
            np.zeros(excess.total.shape),
        )
        # Over the phases the cause may lengthen: how sure we are of it is not how much of the loss it is.
        possible = sum(means[name] for name in by_phase)
        believed = sum(means[name] * weight for name, weight in by_phase.items()) / max(possible, 1e-12)
        removal = Removal(cause, excess.ranks, own, spare * by_phase.get("transfer", 0.0))
        seconds = {name: means[name] * weight * unit for name, weight in by_phase.items()}
        belief = min(believed, 1.0) * suspect.component.probability
        found.append(PricedCause(removal, index, belief, seconds))
    return found


def _measured(features: FeatureSet, rows: list[int]) -> set[str]:
    columns = {**features.work.phases, "transfer_seconds": features.work.transfer}
    return {name.removesuffix("_seconds") for name, held in columns.items() if np.isfinite(held[rows]).any()}


def _parts(excess: _Excess) -> dict[str, FloatArray]:
    """Split the total excess over the phases in proportion to theirs; what none covers is unmeasured."""
    covered = sum(excess.phases.values(), np.zeros(excess.total.shape))
    scale = np.where(covered > 0, np.minimum(excess.total / np.maximum(covered, 1e-12), 1.0), 0.0)
    parts = {name: values * scale for name, values in excess.phases.items()}
    parts[UNMEASURED] = np.maximum(excess.total - covered * scale, 0.0)
    return parts


def _share_transfer(causes: list[PricedCause], spare: FloatArray) -> list[PricedCause]:
    """Several suspects may claim the collectives' slowness; together they get at most all of it."""
    claimed = sum((cause.removal.transfer for cause in causes), np.zeros(spare.size))
    scale = np.where(claimed > spare, spare / np.maximum(claimed, 1e-12), 1.0)
    if (scale >= 1).all():
        return causes
    return [
        PricedCause(
            Removal(
                cause.removal.cause, cause.removal.ranks, cause.removal.own, cause.removal.transfer * scale
            ),
            cause.suspect,
            cause.belief,
            cause.phases,
        )
        for cause in causes
    ]


def _size(removal: Removal) -> float:
    """Rough saving, seconds per step: the worst rank's own part plus the transfer part."""
    own = removal.own.mean(axis=1).max() if removal.own.size else 0.0
    return float(own + (removal.transfer.mean() if removal.transfer.size else 0.0))
