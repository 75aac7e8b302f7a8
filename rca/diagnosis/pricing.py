"""From suspects to priced causes: excess over the reference, responsibilities, counterfactual replays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.causal import intervals
from rca.causal.attribution import Attribution, JobWork, RemovedCause, affordable, attribute
from rca.causal.graph import PHASES
from rca.causal.mechanisms import Mechanisms
from rca.causal.responsibility import MIN_BELIEF, decided, responsibilities
from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Suspect
from rca.classify.decision_table import LIKELIER_THAN_NOT, MAIN_SHARE_OF_EXCESS
from rca.diagnosis.cause_pooling import PricedCause, affordable_causes, one_fault_each
from rca.diagnosis.excess_time import Excess, excesses_of, ideal_work, lock_step_waits, transfer_excess
from rca.features import FeatureSet
from rca.robust import nan_mean, nan_median
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window.causes import SLOW_CAUSES, SPECS, UNKNOWN
from rca.window.times.own_work import SERIAL_PHASES

#: A cause that takes less than this off the step is not carried into the replay.
MIN_RELATIVE_SAVING = 1e-3
#: Transfer predicted by a mechanism counts from this share of the step on, up to this share of the transfer.
MIN_PREDICTED = 0.02
MAX_PREDICTED_SHARE = 0.8


@dataclass(frozen=True)
class Pricing:
    """All priced causes, the weightiest first, the totals, and the evidence they were priced with.

    `suspects` are those that it was priced for, in order; of a stopped job what slowed it down before.
    `past` is true if the window has quiet steps to compare the slow ones with. `together` are the seconds per
    step that all ranks lose together (`rca.diagnosis.verdict.lost_together`).
    """

    causes: list[PricedCause]
    attribution: Attribution
    measured: float
    busy: BusyEvidence
    suspects: Sequence[Suspect] = ()
    past: bool = False
    together: float = 0.0

    def interval_group(self, index: int) -> str:
        """The group of margins that widens the interval of one of the causes."""
        share = float(self.attribution.seconds[index]) / max(self.attribution.slowdown, 1e-12)
        return intervals.group_of(past=self.past, belief=self.causes[index].belief, share=share)

    def most_lost(self, index: int) -> float:
        """Upper bound on the cost of one of the causes, seconds per step."""
        return max(float(self.attribution.slowdown_interval[1]), float(self.attribution.seconds[index]))

    def suspects_of(self, cause: str, ranks: Iterable[int]) -> frozenset[int]:
        """Indices of the suspects that a cause on these ranks was priced for; empty if it was not."""
        named = (cause, tuple(ranks))
        priced = (each for each in self.causes if (each.removal.cause, each.removal.ranks) == named)
        return frozenset(suspect for each in priced for suspect in each.suspects)

    @property
    def open_seconds(self) -> float:
        """Seconds per step that no catalogue cause explains."""
        rows = zip(self.causes, self.attribution.seconds, strict=True)
        unknown = sum(float(seconds) for priced, seconds in rows if priced.removal.cause == UNKNOWN)
        return float(self.attribution.unexplained) + unknown


def price(
    features: FeatureSet,
    suspects: list[Suspect],
    busy: BusyEvidence,
    mechanisms: Mechanisms,
    replay: PhaseReplay,
    *,
    since: int | None = None,
) -> Pricing:
    """Price every plausible cause of every suspect.

    Parameters
    ----------
    suspects : list of Suspect
        Empty for healthy and stopped jobs: then only the totals are computed.
    replay : PhaseReplay
        Of the same steps as ``features.work`` (warm-up left out).
    since : int, optional
        Number of the first step that counts. Seconds are means over the steps from it on; the steps before
        only serve as a reference.
    """
    counted = np.ones(replay.measured.size, dtype=bool) if since is None else features.work.steps >= since
    own = np.where(np.isfinite(replay.own), replay.own, np.nan)
    own -= lock_step_waits(suspects, features)
    spare = transfer_excess(features)
    if features.comparison.segment.whole and not spare.any():
        spare = _predicted_transfer(features, suspects, busy, mechanisms, replay.transfer)
    excesses = excesses_of(suspects, features)
    ideal_own, ideal_serial = ideal_work(own, replay.serial, features, excesses)
    for excess in excesses:
        own[list(excess.ranks)] += excess.lag
    work = JobWork(own, replay.transfer, replay.serial)
    ideal = _step_seconds(replay, JobWork(ideal_own, np.maximum(work.transfer - spare, 0.0), ideal_serial))
    causes = [
        cause
        for index, (suspect, excess) in enumerate(zip(suspects, excesses, strict=True))
        for cause in _causes(index, suspect, excess, spare, features)
    ]
    causes = one_fault_each(_share_transfer(causes, spare))
    causes.sort(key=_weight)
    causes = affordable_causes(causes, affordable(own.size))
    removals = [cause.removal for cause in causes]
    attribution = attribute(work, ideal, removals, partial(_step_seconds, replay), counted=counted)
    measured = float(nan_mean(replay.measured[counted]))
    if not np.isfinite(measured):
        measured = float(nan_mean(_step_seconds(replay, work)[counted]))
    past = not features.comparison.segment.whole
    pricing = Pricing(causes, attribution, measured, busy, suspects, past)
    return replace(pricing, attribution=replace(attribution, intervals=_widened(pricing, mechanisms)))


def _widened(pricing: Pricing, mechanisms: Mechanisms) -> FloatArray:
    """The bootstrap intervals with the margins of held-out windows, at most the slowdown."""
    found = [
        intervals.widened(
            mechanisms.margins,
            pricing.interval_group(index),
            float(low),
            float(high),
            pricing.most_lost(index),
        )
        for index, (low, high) in enumerate(pricing.attribution.intervals)
    ]
    return np.array(found, dtype=float).reshape(-1, 2)


def _predicted_transfer(
    features: FeatureSet,
    suspects: list[Suspect],
    busy: BusyEvidence,
    mechanisms: Mechanisms,
    transfer: FloatArray,
) -> FloatArray:
    """Transfer that the suspects' link signals explain, where no quiet step shows the usual transfer.

    All ranks share a collective, so a link that was slow in all steps has neither peers nor a past to compare
    with. Only the fitted mechanism predicts its effect.
    """
    expected = 0.0
    for suspect in suspects:
        scores = nan_median(busy.scores(list(suspect.component.ranks)))
        effects = mechanisms.effects(scores)[PHASES.index("transfer")]
        for cause, belief in suspect.causes.items():
            columns = [mechanisms.resources.index(name) for name in SPECS[cause].resources]
            if "transfer" in SPECS[cause].phases and columns:
                expected += suspect.component.probability * belief * float(np.nansum(effects[columns]))
    usual = float(nan_mean(transfer))
    if expected < MIN_PREDICTED or not usual > 0:
        return np.zeros(transfer.size)
    share = min(expected * features.work.step_reference / usual, MAX_PREDICTED_SHARE)
    return np.nan_to_num(transfer) * share


def _step_seconds(replay: PhaseReplay, work: JobWork) -> FloatArray:
    if not replay.informative:
        return replay.measured
    return replay.evaluate(work.own, work.serial, work.transfer)


def _causes(
    index: int,
    suspect: Suspect,
    excess: Excess,
    spare: FloatArray,
    features: FeatureSet,
) -> list[PricedCause]:
    unit, rows = features.work.step_reference, list(excess.ranks)
    means = _means(excess, spare, features, suspect.steps)
    beliefs = {cause: suspect.causes.get(cause, 0.0) for cause in SLOW_CAUSES}
    weights = responsibilities(beliefs, means, _measured(features, rows))
    charges = _charges(beliefs, weights, means)
    found = []
    for cause, (believed, shares) in charges.items():
        if sum(means[name] for name in shares) <= MIN_RELATIVE_SAVING:
            continue
        seconds = {name: means[name] * share * unit for name, share in shares.items()}
        belief = believed * suspect.component.probability
        coverage = sum(seconds.values()) / max(sum(means.values()) * unit, 1e-12)
        removal = _removal(cause, excess, shares, spare)
        found.append(PricedCause(removal, (index,), belief, seconds, coverage))
    if not found and UNKNOWN in charges:
        beliefs[UNKNOWN] = charges[UNKNOWN][0]
    priced = {each.removal.cause for each in found}
    least = LIKELIER_THAN_NOT if found else MIN_BELIEF
    left = {cause: belief for cause, belief in beliefs.items() if belief >= least and cause not in priced}
    return found + _unpriced(index, suspect, excess, left, spare)


def _means(
    excess: Excess, spare: FloatArray, features: FeatureSet, steps: BoolArray | None
) -> dict[str, float]:
    """Mean excess by phase in some steps, or in the slow segment, relative to a usual step."""
    unit = features.work.step_reference
    inside = features.comparison.segment.mask(features.work.steps.size) if steps is None else steps
    means = {name: float(values[:, inside].mean()) / unit for name, values in excess.parts.items()}
    means["transfer"] = float((spare + excess.lag.max(axis=0))[inside].mean()) / unit
    return means


def _charges(
    beliefs: Mapping[str, float], weights: Mapping[str, Mapping[str, float]], means: Mapping[str, float]
) -> dict[str, tuple[float, dict[str, float]]]:
    """Probability of every cause and its shares of the phases' excess; a likely `unknown` has the rest."""
    charged = decided(weights)
    believed = {cause: _believed(by_phase, means) for cause, by_phase in weights.items()}
    known = [max(belief, believed.get(cause, 0.0)) for cause, belief in beliefs.items()]
    unknown = 1.0 - sum(known)
    found = {cause: (believed[cause], shares) for cause, shares in charged.items()}
    left = _left_over(charged, means)
    # Without excess, or without a known share of it, there is nothing for `unknown` to explain.
    still_open = sum(means[name] * share for name, share in left.items())
    if unknown > max(known) and still_open >= MAIN_SHARE_OF_EXCESS * sum(means.values()):
        found[UNKNOWN] = (unknown, left)
    return found


def _believed(by_phase: Mapping[str, float], means: Mapping[str, float]) -> float:
    """Mean weight over the phases the cause may lengthen.

    It is the probability of the cause, not its share of the loss.
    """
    possible = sum(means[name] for name in by_phase)
    if possible <= MIN_RELATIVE_SAVING:
        return 0.0
    return min(sum(means[name] * weight for name, weight in by_phase.items()) / possible, 1.0)


def _left_over(charged: Mapping[str, Mapping[str, float]], phases: Iterable[str]) -> dict[str, float]:
    """Shares of every phase's excess that no cause is charged with."""
    return {name: 1.0 - sum(by_phase.get(name, 0.0) for by_phase in charged.values()) for name in phases}


def _unpriced(
    index: int, suspect: Suspect, excess: Excess, beliefs: Mapping[str, float], spare: FloatArray
) -> list[PricedCause]:
    """Causes of unknown cost: no peer and no other step was faster in the phases that they lengthen.

    The ranks and the cause may still be clear, so they are shown. Their cost stays unexplained.
    """
    nothing = np.zeros(excess.total.shape)
    return [
        PricedCause(
            RemovedCause(cause, excess.ranks, nothing, np.zeros(spare.size), nothing),
            (index,),
            belief * suspect.component.probability,
            {},
            1.0,
        )
        for cause, belief in beliefs.items()
    ]


def _removal(cause: str, excess: Excess, shares: Mapping[str, float], spare: FloatArray) -> RemovedCause:
    own, serial = excess.lag * shares.get("transfer", 0.0), np.zeros(excess.total.shape)
    for name, share in shares.items():
        if name in excess.parts:
            own += excess.parts[name] * share
            if f"{name}_seconds" in SERIAL_PHASES:
                serial += excess.parts[name] * share
    return RemovedCause(cause, excess.ranks, own, spare * shares.get("transfer", 0.0), serial)


def _measured(features: FeatureSet, rows: list[int]) -> set[str]:
    columns = {**features.work.phases, "transfer_seconds": features.work.transfer}
    return {
        name.removesuffix("_seconds") for name, seconds in columns.items() if np.isfinite(seconds[rows]).any()
    }


def _share_transfer(causes: list[PricedCause], spare: FloatArray) -> list[PricedCause]:
    """Several suspects may claim the collectives' slowness; together they get at most all of it."""
    claimed = sum((cause.removal.transfer for cause in causes), np.zeros(spare.size))
    scale = np.where(claimed > spare, spare / np.maximum(claimed, 1e-12), 1.0)
    if (scale >= 1).all():
        return causes
    return [
        replace(cause, removal=replace(cause.removal, transfer=cause.removal.transfer * scale))
        for cause in causes
    ]


def _weight(cause: PricedCause) -> tuple[bool, float, str]:
    """Sort key: which causes are priced first, if not all can be."""
    likely = cause.belief > LIKELIER_THAN_NOT and cause.removal.cause != UNKNOWN
    return not likely, -_size(cause.removal) * cause.belief, cause.removal.cause


def _size(removal: RemovedCause) -> float:
    """Rough saving, seconds per step: the worst rank's own part plus the transfer part."""
    own = removal.own.mean(axis=1).max() if removal.own.size else 0.0
    return float(own + (removal.transfer.mean() if removal.transfer.size else 0.0))
