"""The one pipeline: window -> features -> classification -> priced causes -> diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from os import PathLike
from typing import NamedTuple
from uuid import uuid4

import numpy as np

from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Classification, Suspect
from rca.classify.decision_table import MIN_PROBABILITY, MIN_TO_ACT_ON, SLOW_BEFORE_STOP, TRIFLE
from rca.classify.operator_inputs import checked_node_odds, checked_priors
from rca.classify.uncertainty import Doubt
from rca.diagnosis.abstention import (
    LEFT_OPEN,
    abstention,
    contradicting_evidence,
    covers_the_loss,
    is_certain_place,
    is_certainly_unknown,
    objection,
)
from rca.diagnosis.advice import look_at, removals
from rca.diagnosis.alarm import explained
from rca.diagnosis.answer_limits import within_limits
from rca.diagnosis.baseline_window import Outline, with_earlier, without_gap
from rca.diagnosis.bundle import Bundle, baseline
from rca.diagnosis.candidates import SLOWING, max_alarm
from rca.diagnosis.causes import catalogued, named_first, opened, slow_causes, stop_causes
from rca.diagnosis.data_quality import quality, with_history_notes, with_unusable_signals
from rca.diagnosis.evidence_devices import with_devices
from rca.diagnosis.exporters_only import diagnose_exporters
from rca.diagnosis.failure_events import diagnose_events
from rca.diagnosis.failure_origin import tells_origin
from rca.diagnosis.findings import MAX_DATED, Deviation, Scores, deviations, deviations_in_events, findings
from rca.diagnosis.planning import with_actions, with_replayed_actions
from rca.diagnosis.pricing import Pricing, price
from rca.diagnosis.result import (
    AbstentionReason,
    Cause,
    Diagnosis,
    Interval,
    ModelVersion,
    Straggler,
)
from rca.diagnosis.slowdown import slowdown_of
from rca.diagnosis.step_time_fallback import priced_by_step_time
from rca.diagnosis.stopped_collective import diagnose_collectives
from rca.diagnosis.stragglers import straggler
from rca.diagnosis.verdict import lost_together, slow_before_the_end, with_latenesses
from rca.diagnosis.when_and_where import completed
from rca.errors import InvalidInput
from rca.features import FeatureSet, extract
from rca.features.resource_evidence import missing_resources
from rca.features.work import OWN_PHASES
from rca.recovery.site import Site
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window.baseline_window import refuse_incomparable
from rca.window.memory import MAX_MEMORY_BYTES, refuse_large
from rca.window.signals.signal_arrays import SignalArrays
from rca.window.window import Window

#: Note on an earlier window that is of no use.
NOT_COMPARED = "the earlier window was not used, because this one has no steps"


def diagnose(
    window: Window,
    *,
    bundle: Bundle | str | PathLike[str] | None = None,
    priors: Mapping[str, float] | None = None,
    node_odds: Mapping[str, float] | None = None,
    earlier: Window | None = None,
    site: Site | None = None,
    max_memory_bytes: int | None = MAX_MEMORY_BYTES,
) -> Diagnosis:
    """Diagnose one telemetry window.

    Parameters
    ----------
    window : Window
        Validated; see `rca.read_window`.
    bundle : Bundle or path, optional
        A loaded bundle or a bundle folder; the shipped baseline if absent.
    priors : mapping of cause to float, optional
        How often each slow cause occurs on this cluster, in any unit; see
        `rca.classify.operator_inputs`. By default as often as in the training data.
    node_odds : mapping of node to float, optional
        Odds of each node to be at fault, relative to an ordinary node, from its fault history; see
        `rca.classify.operator_inputs`. Failure modes do not depend on it.
    earlier : Window, optional
        A healthy window of the same job that ends before `window` begins. It shows a fault that acts in all
        steps of `window`; see `rca.diagnosis.baseline_window`.
    site : Site, optional
        Costs and limits of recovery, by which actions are chosen; see `rca.recovery.site`.
    max_memory_bytes : int, optional
        Windows that need more memory are refused before any work; None for no limit. See
        `rca.window.memory`.

    Returns
    -------
    Diagnosis
        Healthy, fail-slow or fail-stop; the stragglers and their types; causes with seconds per step.

    Raises
    ------
    InvalidInput
        If `earlier` has other ranks or ends after `window` begins.
    TooLarge
        If the windows need more than `max_memory_bytes`.
    """
    if not isinstance(window, Window):
        raise InvalidInput(
            f"a {type(window).__name__} is no window",
            hint="rca.read_window makes one of a path, a file or a data frame",
        )
    refuse_large(window, max_memory_bytes, earlier=earlier)
    if not isinstance(bundle, Bundle):
        bundle = baseline() if bundle is None else Bundle.load(bundle)
    odds = None if node_odds is None else checked_node_odds(node_odds)
    site = site or Site()
    if earlier is not None:
        refuse_incomparable(window, earlier)
    if window.steps.num_rows == 0:
        if earlier is not None:
            window = replace(window, notes=(*window.notes, NOT_COMPARED))
        alone = _without_steps(window)
        diagnosis = alone(window, bundle.model)
        diagnosis = with_unusable_signals(with_actions(diagnosis, window, site=site), window)
        return within_limits(with_devices(completed(diagnosis, window), window))
    loaded = bundle

    def once(part: Window, since: int | None = None) -> tuple[Diagnosis, FeatureSet, PhaseReplay]:
        found = analyse(part, loaded, priors, odds, since=since)
        return _assemble(part, loaded, found, since), found.features, found.replay

    diagnosis, features, replay = once(window)
    outline = Outline.of(features)
    diagnosis = with_replayed_actions(diagnosis, replay, window.job, site)
    del features, replay
    if earlier is not None:
        diagnosis = with_earlier(
            diagnosis, window, outline, earlier, lambda both, since: once(both, since)[:2]
        )
    diagnosis = with_unusable_signals(with_actions(diagnosis, window, site=site), window)
    diagnosis = with_devices(completed(diagnosis, window), window)
    return within_limits(diagnosis if odds is None else with_history_notes(diagnosis, odds))


def _without_steps(window: Window) -> Callable[[Window, ModelVersion], Diagnosis]:
    """The diagnosis of a window without steps: of the most telling table that it has."""
    if window.collectives.num_rows:
        return diagnose_events if tells_origin(window) else diagnose_collectives
    return diagnose_exporters if window.metrics.num_rows else diagnose_events


class Analysis(NamedTuple):
    """The parts of a diagnosis; `shown` are the deviations of machines and in events."""

    features: FeatureSet
    classification: Classification
    pricing: Pricing
    replay: PhaseReplay
    shown: list[Deviation]
    signals: SignalArrays


def analyse(
    window: Window,
    bundle: Bundle,
    priors: Mapping[str, float] | None = None,
    node_odds: Mapping[str, float] | None = None,
    *,
    since: int | None = None,
) -> Analysis:
    """The parts of a diagnosis; training measures its intervals on them.

    `node_odds` are from `rca.classify.operator_inputs.checked_node_odds`; `since` is as in `price`,
    the first step after an earlier window.
    """
    features, replay = features_and_replay(window, since)
    shares = None if priors is None else checked_priors(priors)
    busy = BusyEvidence.from_features(features, bundle.mechanisms)
    shown = [*deviations(Scores.of_a_job(features, busy), features.topology), *deviations_in_events(window)]
    classification = bundle.classifier.classify(
        features, shares, node_odds, max_alarm=max_alarm(shown, features.topology)
    )
    signals, late = explained(window, features, replay, since)
    line = signals.line
    if classification.mode == "fail_stop":
        suspects = slow_before_the_end(line, late, bundle.alarm)
    else:
        classification = with_latenesses(
            classification, line, late, bundle.alarm, max_alarm(shown, features.topology, SLOWING)
        )
        suspects = classification.suspects
    timed, priced = priced_by_step_time(features, suspects, replay)
    pricing = price(timed, suspects, busy, bundle.mechanisms, priced, since=since)
    together = 0.0 if classification.mode == "fail_stop" else lost_together(late)
    pricing = replace(pricing, together=together)
    return Analysis(features, classification, pricing, replay, shown, signals.signals)


def features_and_replay(window: Window, since: int | None) -> tuple[FeatureSet, PhaseReplay]:
    """Features of a window and the replay of its steps; `since` is the first step after an earlier window."""
    features = extract(window)
    if since is not None:
        features = without_gap(features, since)
    return features, PhaseReplay.from_arrays(features.phases.without_first(features.work.warmup), window.job)


def _assemble(window: Window, bundle: Bundle, found_by: Analysis, since: int | None) -> Diagnosis:
    features, classification, pricing, _, shown, signals = found_by
    everything = _causes(classification, features, pricing, shown)
    of_machines = [each for each in shown if each.against != "events"]
    found = catalogued(everything)
    missing = missing_signals(features)
    doubt, thresholds = bundle.classifier.doubt, bundle.classifier.thresholds
    against = objection(everything, pricing, thresholds["name"])
    named = against is None
    unexplained = not named and is_certainly_unknown(everything)
    slowdown = slowdown_of(window, features, pricing, since, together=pricing.together)
    lost = slowdown.seconds_per_step or 0.0
    share = pricing.attribution.slowdown / lost if lost > 0 else 1.0
    unknown = unexplained or (not named and is_certain_place(classification, pricing.suspects, share))
    if unknown and not unexplained:
        ranks = list(pricing.suspects[0].component.ranks)
        everything = opened(everything, ranks, features.topology.nodes_of(ranks))
    strangeness = None if doubt.familiarity is None else doubt.familiarity.judge(features.window)
    answered = everything if unknown else found
    reason = abstention(classification, features, answered, strangeness, None if unknown else against)
    healthy = classification.mode == "healthy" and reason is None
    left_out = {"stragglers": classification.left_out, "findings": max(len(of_machines) - MAX_DATED, 0)}
    if healthy and pricing.together > 0:
        # What all ranks share is the pace of a healthy job.
        slowdown = slowdown_of(window, features, pricing, since)
    return Diagnosis(
        diagnosis_id=uuid4().hex,
        window_id=window.job.window_id,
        job_id=window.job.job_id,
        created_at=datetime.now(UTC),
        model=bundle.model,
        failure_mode=classification.mode,
        failure_mode_probability=classification.probability,
        slowdown=slowdown,
        stragglers=_stragglers(bundle, features, classification, everything, pricing),
        causes=everything if reason or unknown else named_first(everything),
        findings=findings(of_machines, features.evidence, features.topology, window, signals),
        unexplained_seconds_per_step=(slowdown.seconds_per_step or 0.0)
        - sum(cause.seconds_per_step or 0.0 for cause in everything),
        abstained=reason is not None,
        next_check=look_at(
            classification,
            features,
            found,
            missing,
            named=named,
            abstained=reason is not None,
            unexplained=everything[0] if unexplained else None,
        ),
        actions=[],
        recovery=removals([cause for cause in found if _worth_acting_on(cause, pricing)], _alone(pricing)),
        missing_signals=missing,
        quality=quality(window, features, classification.mode, strangeness),
        set_level=None if doubt.sets is None else doubt.sets.level,
        failure_mode_set=_modes_left(doubt, classification, reason),
        abstention_reason=reason,
        left_out={name: number for name, number in left_out.items() if number},
    )


def _modes_left(doubt: Doubt, classification: Classification, reason: AbstentionReason | None) -> list[str]:
    """The failure modes that are not ruled out, with the one that an abstention leaves open."""
    if doubt.sets is None:
        return []
    left = doubt.sets.plausible("mode", classification.probability, classification.mode)
    possible = None if reason is None else LEFT_OPEN.get(reason.code)
    return left if possible is None or possible in left else [*left, possible]


def _worth_acting_on(cause: Cause, pricing: Pricing) -> bool:
    likely = cause.probability >= MIN_TO_ACT_ON
    return likely and covers_the_loss(cause, pricing) and not contradicting_evidence(cause)


def _stragglers(
    bundle: Bundle,
    features: FeatureSet,
    classification: Classification,
    everything: list[Cause],
    pricing: Pricing,
) -> list[Straggler]:
    sets = bundle.classifier.doubt.sets
    stopped = [] if classification.mode != "fail_stop" else classification.suspects
    found = []
    for place, suspect in enumerate([*stopped, *pricing.suspects], start=-len(stopped)):
        own = [cause for cause in everything if _is_on(place, suspect, cause, pricing)]
        named = next((cause.cause for cause in catalogued(own)), None)
        question = "stop_cause" if place < 0 else "cause"
        plausible = [] if sets is None else sets.plausible(question, suspect.causes, named)
        first = own[0].cause if own else None
        if place < 0 or own or classification.mode != "fail_stop":
            found.append(straggler(suspect, features, first, plausible))
    return found


def _is_on(place: int, suspect: Suspect, cause: Cause, pricing: Pricing) -> bool:
    """Whether a cause is on exactly this suspect's ranks, or was priced for it among others.

    Parameters
    ----------
    place : int
        Of the suspect among the priced ones; negative for one that stopped the job.
    """
    exactly = cause.ranks == list(suspect.component.ranks) and cause.stops_the_job == (place < 0)
    return exactly or place in pricing.suspects_of(cause.cause, cause.ranks)


def _causes(
    classification: Classification, features: FeatureSet, pricing: Pricing, shown: Sequence[Deviation]
) -> list[Cause]:
    found = slow_causes(pricing, features, shown)
    if classification.mode == "fail_stop":
        slower = [cause for cause in catalogued(found) if cause.probability >= SLOW_BEFORE_STOP]
        found = [*stop_causes(classification.suspects, features), *slower]
    return [
        cause for cause in found if (cause.share or 0.0) >= TRIFLE or cause.probability >= MIN_PROBABILITY
    ]


def _alone(pricing: Pricing) -> dict[tuple[str, tuple[int, ...]], tuple[float, Interval]]:
    """Seconds saved by removing one cause alone, with the interval scaled up to at most the slowdown."""
    table = {}
    attribution = pricing.attribution
    lost = float(attribution.slowdown_interval[1])
    for index, priced in enumerate(pricing.causes):
        if priced.without_price:
            continue
        share, saved = float(attribution.seconds[index]), float(attribution.alone[index])
        low, high = attribution.intervals[index] * (saved / share if share > 0 else 0.0)
        table[priced.removal.cause, priced.removal.ranks] = (
            saved,
            (min(float(low), saved), min(float(high), max(lost, saved))),
        )
    return table


def missing_signals(features: FeatureSet) -> list[str]:
    """Phases and resources that the window lacks; absent is not healthy."""
    phases = [name for name in OWN_PHASES if name not in features.work.phases]
    if not np.isfinite(features.work.wait).any():
        phases.append("communication_wait_seconds")
    if not np.isfinite(features.work.own).any():
        phases.append("phases")
    return phases + missing_resources(features.evidence)
