"""Priced causes -> the causes of the answer, with evidence in the user's units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Suspect
from rca.classify.decision_table import TRIFLE
from rca.classify.shared_parts import carrying
from rca.diagnosis.candidates import is_shown
from rca.diagnosis.cause_pooling import PricedCause
from rca.diagnosis.findings import Deviation
from rca.diagnosis.machine_evidence import is_contradicted, most_unlike
from rca.diagnosis.pricing import Pricing
from rca.diagnosis.result import PRICE, Cause, Evidence, Shared
from rca.features import FeatureSet
from rca.features.resource_evidence import RESOURCES, resource_names
from rca.robust import nan_mean, nan_median
from rca.window.catalogue import unit_of_channel
from rca.window.causes import DECIDING, SPECS, UNKNOWN
from rca.window.job import SharedPart, Topology

#: Resource scores from here on are worth showing, in units.
REMARKABLE_SCORE = 1.0
MAX_EVIDENCE = 6
#: What references are of.
PEERS, OTHER_STEPS = "peers", "other steps"


def slow_causes(pricing: Pricing, features: FeatureSet, shown: Sequence[Deviation]) -> list[Cause]:
    """Causes with their Shapley seconds, by expected cost."""
    found = []
    rows = zip(pricing.causes, pricing.attribution.seconds, pricing.attribution.intervals, strict=True)
    for priced, seconds, (low, high) in rows:
        name = priced.removal.cause
        ranks = list(priced.removal.ranks)
        found.append(
            Cause(
                cause=name,
                ranks=ranks,
                nodes=features.topology.nodes_of(ranks),
                probability=priced.belief,
                seconds_per_step=None if priced.without_price else float(seconds),
                interval=None if priced.without_price else (float(low), float(high)),
                share=None
                if priced.without_price
                else share_of(float(seconds), pricing.attribution.slowdown),
                owner=SPECS[name].owner,
                evidence=[
                    *_without_price(priced),
                    *_phase_evidence(priced, features),
                    *_signal_evidence(name, ranks, features, pricing.busy),
                    *_normal_evidence(name, ranks, features, pricing.busy),
                ],
                basis="signals" if is_shown(name, ranks, shown) else "timing",
                shared=shared_part(ranks, name, features),
            )
        )
    return by_expected_cost(found)


def shared_part(ranks: Sequence[int], cause: str | None, features: FeatureSet) -> Shared | None:
    """The part that ranks with a cause share, for the answer."""
    return described(carrying(ranks, cause, features), features.topology)


def described(part: SharedPart | None, topology: Topology) -> Shared | None:
    """A part of the topology, for the answer."""
    if part is None:
        return None
    nodes = topology.nodes_of(part.ranks)
    return Shared(level=part.level, name=part.name, within=part.within, ranks=list(part.ranks), nodes=nodes)


def by_expected_cost(causes: Iterable[Cause]) -> list[Cause]:
    """Causes by expected cost, the largest first: causes of a stop, then seconds times probability."""

    def rank(cause: Cause) -> tuple[bool, float, float, str, list[int]]:
        # A cost below `TRIFLE` is noise: it must not precede a likely cause without a price.
        seconds = cause.seconds_per_step or 0.0 if (cause.share or 0.0) >= TRIFLE else 0.0
        weight = 1.0 if cause.stops_the_job else seconds
        expected = weight * cause.probability
        # Where nothing is priced, the likeliest comes first.
        return not cause.stops_the_job, -expected, -cause.probability, cause.cause, cause.ranks

    return sorted(causes, key=rank)


def catalogued(causes: Iterable[Cause]) -> list[Cause]:
    """The causes of the catalogue: only these have a check and a remedy of their own."""
    return [cause for cause in causes if cause.cause != UNKNOWN]


def named_first(causes: Sequence[Cause]) -> list[Cause]:
    """The causes with the first one of the catalogue at the front."""
    first = catalogued(causes)[:1]
    return [*first, *(cause for cause in causes if cause not in first)]


def without_cost(
    cause: str,
    ranks: list[int],
    nodes: list[str],
    probability: float,
    evidence: list[Evidence],
    *,
    basis: Literal["signals", "timing"] = "signals",
    shared: Shared | None = None,
) -> Cause:
    """A cause of unknown cost, or of a stop."""
    return Cause(
        cause=cause,
        ranks=ranks,
        nodes=nodes,
        probability=probability,
        seconds_per_step=None,
        interval=None,
        share=None,
        owner=SPECS[cause].owner,
        evidence=evidence,
        basis=basis,
        shared=shared,
    )


def opened(causes: Sequence[Cause], ranks: list[int], nodes: list[str]) -> list[Cause]:
    """The causes with `unknown` at the front, for ranks that are certainly slow and whose cause is open.

    Its probability is what the candidates leave. They follow.
    """
    found = next((cause for cause in causes if cause.cause == UNKNOWN and cause.ranks == ranks), None)
    known = [cause for cause in catalogued(causes) if cause.ranks == ranks]
    likeliest = max(known, key=lambda cause: cause.probability, default=None)
    seen = [] if likeliest is None else [each for each in likeliest.evidence if each.direction == "for"]
    left = max(1.0 - sum(cause.probability for cause in known), 0.0)
    first = found or without_cost(UNKNOWN, ranks, nodes, left, seen, basis="timing")
    return [first, *(cause for cause in causes if cause is not found)]


def share_of(seconds: float, slowdown: float) -> float:
    """A cause's part of the slowdown, from 0 to 1."""
    return float(np.clip(seconds / max(slowdown, 1e-12), 0.0, 1.0))


def stop_causes(suspects: list[Suspect], features: FeatureSet) -> list[Cause]:
    """Causes of a stopped job. Their cost is the job itself, so no seconds per step are claimed."""
    found = []
    for suspect in suspects:
        ranks = list(suspect.component.ranks)
        nodes, evidence = features.topology.nodes_of(ranks), _ending_evidence(ranks, features)
        found += [
            without_cost(name, ranks, nodes, chance * suspect.component.probability, evidence)
            for name, chance in suspect.causes.items()
        ]
    return by_expected_cost(found)


def _without_price(priced: PricedCause) -> list[Evidence]:
    """Evidence that explains why the cost of a cause is unknown."""
    if not priced.without_price:
        return []
    note = (
        "no peer and no other step is faster in the phases that this cause lengthens, so its cost is unknown"
    )
    return [Evidence(signal=PRICE, value=None, reference=None, unit="s", note=note)]


def _phase_evidence(priced: PricedCause, features: FeatureSet) -> list[Evidence]:
    """Mean phase times of the ranks inside the slow segment, or of whole steps, with their reference."""
    if not features.work.phases:
        return _step_evidence(features)
    inside = features.comparison.segment.mask(features.work.steps.size)
    rows = list(priced.removal.ranks)
    found = []
    for phase, answered in sorted(priced.phases.items(), key=lambda item: -item[1]):
        column = f"{phase}_seconds"
        if answered <= 0.002 * features.work.step_reference:
            continue
        if phase == "transfer":
            found.append(_transfer_evidence(rows, features))
        elif column in features.work.phases:
            seconds = features.work.phases[column][rows][:, inside]
            value = float(np.nanmean(seconds))
            excess = float(np.nanmean(features.comparison.phase_excess[column][rows][:, inside]))
            found.append(
                Evidence(
                    signal=column,
                    value=value,
                    reference=value - excess,
                    unit="s",
                    note="mean per slow step",
                    compared_with=PEERS,
                )
            )
        else:
            found.append(
                Evidence(
                    signal="own_work",
                    value=answered,
                    reference=None,
                    unit="s",
                    note="time per step that no measured phase covers",
                )
            )
    return found[:3]


def _step_evidence(features: FeatureSet) -> list[Evidence]:
    """Steps inside the slow segment against the other steps, where no phase is timed."""
    segment, step = features.comparison.segment, features.work.job_step
    if segment.whole:
        return []
    inside = segment.mask(step.size)
    value, reference = (float(nan_mean(step[part])) for part in (inside, ~inside))
    return [
        Evidence(
            signal="step_seconds",
            value=value,
            reference=reference,
            unit="s",
            note="mean over the slow steps",
            compared_with=OTHER_STEPS,
        )
    ]


def _transfer_evidence(rows: list[int], features: FeatureSet) -> Evidence:
    """Transfer in the slow steps against the other steps, or, without these, against all ranks."""
    segment = features.comparison.segment
    inside = segment.mask(features.work.steps.size)
    group = nan_median(features.work.transfer)
    value = float(nan_mean(group[inside]))
    note, against = "mean over the slow steps", OTHER_STEPS
    if segment.whole:
        own = nan_mean(features.work.transfer[rows][:, inside].ravel()[:, None])
        value, reference, note, against = float(own[0]), value, "mean transfer", "all ranks"
    else:
        reference = float(nan_mean(group[~inside]))
    return Evidence(
        signal="communication_transfer_seconds",
        value=value if np.isfinite(value) else None,
        reference=reference if np.isfinite(reference) else None,
        unit="s",
        note=note,
        compared_with=against,
    )


def _signal_evidence(
    cause: str, ranks: list[int], features: FeatureSet, busy: BusyEvidence
) -> list[Evidence]:
    """The channel with the largest score in each of the cause's resources, if it is remarkable.

    Scores that a rank's waiting explains do not count: an idle GPU has a low clock.
    """
    found = []
    evidence = features.evidence
    loudest = np.fmax(busy.versus_peers[ranks], busy.versus_past[ranks])
    if len(ranks) == features.topology.n_ranks:
        # All ranks are affected alike, so only the nominal values of a machine are left to compare with.
        loudest = np.fmax(loudest, evidence.versus_nominal[ranks])
    for name in SPECS[cause].resources:
        column = resource_names().index(name)
        scores = loudest[:, column]
        if not np.isfinite(scores).any() or np.nanmax(scores) < REMARKABLE_SCORE:
            continue
        worst = ranks[int(np.nanargmax(scores))]
        channel = RESOURCES[name][int(evidence.worst_channel[worst, column])].channel
        value = evidence.values[channel][worst]
        reference = evidence.references[channel][worst]
        found.append(
            Evidence(
                signal=channel,
                value=float(value),
                reference=float(reference) if np.isfinite(reference) else None,
                unit=unit_of_channel(channel),
                note=f"rank {worst}, mean over the slow steps",
                compared_with=_against(channel, worst, features),
            )
        )
    return found[:MAX_EVIDENCE]


def _against(channel: str, rank: int, features: FeatureSet) -> str | None:
    """What a channel's reference is of."""
    evidence = features.evidence
    if channel not in evidence.of_peers:
        return None
    if evidence.of_peers[channel][rank]:
        return PEERS
    return OTHER_STEPS if evidence.of_past[channel][rank] else "healthy machine"


def _normal_evidence(
    cause: str, ranks: list[int], features: FeatureSet, busy: BusyEvidence
) -> list[Evidence]:
    """One channel of each resource that the cause always affects, if all of these are normal."""
    if not is_contradicted(cause, most_unlike(ranks, features, busy)):
        return []
    evidence, found = features.evidence, []
    for name in DECIDING[cause]:
        channel = next(each.channel for each in RESOURCES[name] if each.channel in evidence.values)
        value = float(nan_mean(evidence.values[channel][ranks]))
        reference = float(nan_mean(evidence.references[channel][ranks]))
        found.append(
            Evidence(
                signal=channel,
                value=value if np.isfinite(value) else None,
                reference=reference if np.isfinite(reference) else None,
                unit=unit_of_channel(channel),
                note="measured and normal; mean over the slow steps",
                direction="against",
                compared_with=_against(channel, ranks[0], features),
            )
        )
    return found


def _ending_evidence(ranks: list[int], features: FeatureSet) -> list[Evidence]:
    job_end = features.job_end
    rank = ranks[0]
    found = [
        *_behind(rank, features),
        Evidence(
            signal="steps_since_progress",
            value=float(job_end.steps_since_progress) if np.isfinite(job_end.steps_since_progress) else None,
            reference=0.0,
            unit="steps",
            note="steps from the last progress to the end of the window",
        ),
    ]
    if job_end.fatal[rank] or job_end.origin[rank]:
        found.append(
            Evidence(
                signal="events",
                value=1.0,
                reference=0.0,
                unit="events",
                note=f"by the events the stop began with rank {rank}"
                if job_end.origin[rank]
                else f"a fatal event names rank {rank} or its node",
            )
        )
    return found


def _behind(rank: int, features: FeatureSet) -> list[Evidence]:
    """How many steps before the other ranks it stopped; empty if it did not."""
    behind = features.job_end.behind[rank]
    if behind >= 0:
        return []
    known = bool(np.isfinite(behind))
    return [
        Evidence(
            signal="steps_behind",
            value=float(-behind) if known else None,
            reference=0.0,
            unit="steps",
            note=f"steps before the other ranks at which rank {rank} stopped"
            if known
            else f"rank {rank} reported no step at all",
        )
    ]
