"""When a cause may be named, and why an answer abstains: one stable code and one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rca.classify.classifier import Classification, Suspect
from rca.classify.decision_table import (
    CERTAIN_PLACE,
    CERTAINLY_UNKNOWN,
    MIN_COVERAGE,
    MIN_SHARE,
    MIN_STEPS,
    MIN_STEPS_OF_ALARM,
    MOSTLY_OPEN,
    NAME_BY_TIMING,
    OVERWHELMING_CAUSE,
    OVERWHELMING_MODE,
    SHORT_ALARM,
    SHORT_CAUSE,
    SURE_DESPITE_DOUBT,
)
from rca.classify.out_of_distribution import Strangeness
from rca.classify.preconditions import (
    can_show_health,
    idles_between_steps,
    long_enough,
    silent_seconds,
    stages_wait_at_work,
    stalls_together,
    stays_silent,
    works_untimed,
)
from rca.diagnosis.causes import catalogued
from rca.diagnosis.data_quality import listed
from rca.diagnosis.pricing import Pricing
from rca.diagnosis.result import AbstentionCode, AbstentionReason, Cause, Evidence
from rca.diagnosis.slowdown import single_events_sentence
from rca.features import FeatureSet
from rca.probability import probability
from rca.window.causes import CAUSES, UNKNOWN, FailureMode

#: Least probability on either side of the split that makes a signal worth collecting.
MIN_SPLIT = 0.1
#: Rows and devices alone do not show whether a job finished or its scheduler ended it.
LEFT = "all ranks ended together after the same step, without an error: the job finished or was cancelled"
#: Unequal stages look like this, and so do equal stages whose timers include waiting for each other.
WAITING_AT_WORK = (
    "the pipeline stages end together within one timed phase, so own work cannot be separated from waiting"
)
#: Without rows it is unknown whether the job finished.
SILENT = "no rank has step rows in the last {seconds:,.0f} s of the window: the job finished, or it stopped"
#: A process that failed has no more rows, unless it was started again.
FAILURE = "events report that {ranks} failed, but the job goes on: it restarted, or the events are wrong"
#: Evaluation and saves between steps look like a stall, and like rows that stand for several steps.
BETWEEN_STEPS = "{share:.1%} of the time lies between the steps, where nothing is timed"
#: Saves, logging and evaluation inside steps without a timer look like this.
UNTIMED = "some steps take much longer than others outside every timed phase: {seconds:.3g} s per step"
#: Epochs that begin, and caches that are empty, look like a slow storage.
STALLS = "in some steps all ranks wait for input together: {seconds:.3g} s per step"
#: Failure mode that each doubt about a healthy verdict leaves open.
LEFT_OPEN: dict[AbstentionCode, FailureMode] = {
    "fell_silent": "fail_stop",
    "failure_reported": "fail_stop",
    "time_between_steps": "fail_slow",
    "untimed_work": "fail_slow",
    "stalls_together": "fail_slow",
}


def covers_the_loss(cause: Cause, pricing: Pricing) -> bool:
    """Whether the cause explains most of its ranks' excess; true for a stopped job, which has none.

    If most of the time was lost in phases that the cause does not lengthen, the cause is not known.
    """
    shares = [
        priced.coverage
        for priced in pricing.causes
        if priced.removal.cause == cause.cause and list(priced.removal.ranks) == cause.ranks
    ]
    return not shares or max(shares) >= MIN_COVERAGE


def is_certainly_unknown(causes: Sequence[Cause]) -> bool:
    """Whether `unknown` comes first and is likely: then it is the answer where no known cause may be named.

    Its share of the loss does not matter: what stays unexplained has no known cause either.

    Parameters
    ----------
    causes : sequence of Cause
        In the order of the answer.
    """
    return bool(causes) and causes[0].cause == UNKNOWN and causes[0].probability > CERTAINLY_UNKNOWN


def is_certain_place(classification: Classification, suspects: Sequence[Suspect], share: float) -> bool:
    """Whether the job is certainly slow, and its first suspect the reason, whatever the cause.

    Parameters
    ----------
    suspects : sequence of Suspect
        In the order of the answer.
    share : float
        Part of the loss that lies within the steps of the suspects. The rest lies in pauses of the job.
    """
    if classification.mode != "fail_slow" or not classification.decided or not suspects:
        return False
    first = suspects[0].component
    if first.scope != "job" and share < MIN_COVERAGE:
        return False
    return min(classification.probability["fail_slow"], first.probability) >= CERTAIN_PLACE


def objection(causes: Sequence[Cause], pricing: Pricing, threshold: float) -> str | None:
    """The sentence why the first cause of the catalogue may not be named; None if it may.

    Parameters
    ----------
    causes : sequence of Cause
        In the order of the answer.
    threshold : float
        Least probability.
    """
    found = catalogued(causes)
    if not found:
        return "no cause of the suspects explains lost time"
    first = found[0]
    unsure = first.probability < SURE_DESPITE_DOUBT
    doubtful = unsure or first.basis == "timing"
    if doubtful and (against := contradicting_evidence(first)):
        measured = ", ".join(evidence.signal for evidence in against)
        return f"{first.cause} is the likeliest cause, but its own signals are normal: {measured}"
    if first.probability < (max(threshold, NAME_BY_TIMING) if first.basis == "timing" else threshold):
        return f"no cause is certain enough to be named: {_candidates(found)}"
    # Causes of a stopped job have no price, and the stop matters more than crash or hang.
    if first.stops_the_job:
        return None
    if unsure and not covers_the_loss(first, pricing):
        return f"{first.cause} is likely but explains less than half of the delay of its ranks"
    has_an_open_cause = any(cause.cause == UNKNOWN for cause in causes)
    if (doubtful or has_an_open_cause) and _leaves_the_slowdown_open(first, pricing):
        share = f"{first.share or 0.0:.0%} of the slowdown"
        return f"{first.cause} is likely but explains {share}; most of the delay has no known cause"
    return None


def contradicting_evidence(cause: Cause) -> list[Evidence]:
    """The cause's own signals that were measured and are normal."""
    return [evidence for evidence in cause.evidence if evidence.direction == "against"]


def _leaves_the_slowdown_open(first: Cause, pricing: Pricing) -> bool:
    total = pricing.attribution.slowdown
    if total <= 0:
        return False
    return (first.share or 0.0) < MIN_SHARE and pricing.open_seconds > MOSTLY_OPEN * total


def _candidates(found: Sequence[Cause]) -> str:
    chances: dict[str, float] = {}
    for cause in found:
        chances[cause.cause] = max(chances.get(cause.cause, 0.0), cause.probability)
    likeliest = sorted(chances.items(), key=lambda item: (-item[1], item[0]))[:3]
    return ", ".join(f"{name} ({probability(chance)})" for name, chance in likeliest)


def deciding_resource(beliefs: Mapping[str, float], missing: Sequence[str]) -> str | None:
    """The unmeasured resource that would best decide between the candidates.

    Parameters
    ----------
    beliefs : mapping of cause to float
    missing : sequence of str
        Resources that the window lacks.

    Returns
    -------
    str or None
        The resource that splits the probability most evenly into causes that affect it and others. None if no
        missing resource splits it by `MIN_SPLIT`.
    """
    total = sum(beliefs.values())
    best, most = None, MIN_SPLIT
    for resource in missing:
        affecting = sum(belief for cause, belief in beliefs.items() if resource in CAUSES[cause].resources)
        split = min(affecting, total - affecting) / max(total, 1e-12)
        if split > most:
            best, most = resource, split
    return best


def abstention(
    classification: Classification,
    features: FeatureSet,
    causes: Sequence[Cause],
    strangeness: Strangeness | None,
    objection: str | None,
) -> AbstentionReason | None:
    """The reason for an abstention; None if there is a verdict.

    Parameters
    ----------
    causes : sequence of Cause
        In the order of the answer.
    strangeness : Strangeness or None
        None where the bundle lacks the ranges of its training windows.
    objection : str or None
        Why the first cause may not be named (`rca.diagnosis.abstention.objection`).
    """
    mode, chance = classification.mode, classification.probability[classification.mode]
    if classification.events:
        return _reason("single_event", single_events_sentence(classification, features))
    if mode == "healthy" and features.job_end.all_released:
        return _reason("left_at_once", LEFT)
    if not classification.decided:
        return (
            _insufficient(mode, features)
            or _if_strange(strangeness)
            or _reason("undecided_mode", _undecided(classification))
        )
    if (doubtful := _doubts_mode(mode, features)) is not None:
        return doubtful
    if mode != "healthy" and not classification.suspects:
        # That a job stopped can be certain although nothing shows where.
        if mode == "fail_stop" and chance >= OVERWHELMING_MODE:
            return None
        return _reason("nobody_stands_out", "no rank, node or stage explains the slowdown or the stop")
    if mode != "healthy" and objection is not None:
        return _reason("cause_not_certain", objection)
    if mode == "fail_slow" and not long_enough(features) and causes[0].probability < SHORT_CAUSE:
        steps = int(features.work.steps.size)
        return _reason(
            "too_short",
            f"{steps} finished steps show that the job is slow, but are too few to name the cause",
        )
    # That the job stopped matters more than whether by a crash or a hang.
    sure = mode != "fail_slow" or causes[0].probability >= OVERWHELMING_CAUSE
    if chance < OVERWHELMING_MODE or not sure:
        return _if_strange(strangeness)
    return None


def _doubts_mode(mode: str, features: FeatureSet) -> AbstentionReason | None:
    """What a healthy verdict does not explain, and a slow one not if the job is silent."""
    if mode != "fail_stop" and stays_silent(features):
        return _reason("fell_silent", SILENT.format(seconds=silent_seconds(features)))
    if mode != "healthy":
        return None
    failed = features.job_end.failed
    if failed.any():
        return _reason("failure_reported", FAILURE.format(ranks=listed(np.flatnonzero(failed).tolist())))
    if idles_between_steps(features):
        share = features.work.share_between_steps
        return _reason("time_between_steps", BETWEEN_STEPS.format(share=share))
    if stalls_together(features):
        return _reason("stalls_together", STALLS.format(seconds=features.work.stalls.seconds))
    if works_untimed(features):
        return _reason("untimed_work", UNTIMED.format(seconds=features.work.untimed.seconds))
    return None


def _insufficient(mode: str, features: FeatureSet) -> AbstentionReason | None:
    """Why the window is too small to decide anything but a stop."""
    if mode == "fail_stop":
        return None
    steps = int(features.work.steps.size)
    if not np.isfinite(features.work.step_reference):
        return _reason("no_step_times", "no finished step has a duration, so the speed of the job is unknown")
    if not long_enough(features):
        counted = f"{steps} finished step{'s' if steps != 1 else ''}"
        needed = f"of at least {MIN_STEPS} that a verdict needs"
        chance = probability(SHORT_ALARM)
        unless = f"; from {MIN_STEPS_OF_ALARM} steps on, a fault needs a probability of {chance}"
        return _reason("too_short", f"{counted}, {needed}{unless}")
    if mode == "healthy" and not can_show_health(features):
        seen = np.isfinite(features.work.own)
        ranks, total = int(seen.any(axis=1).sum()), seen.shape[0]
        if 2 * ranks < total:
            return _reason(
                "too_few_ranks",
                f"{ranks:,} of {total:,} ranks have phase timings; a healthy verdict needs half of them",
            )
        if stages_wait_at_work(features):
            return _reason("too_few_ranks", WAITING_AT_WORK)
        timed = int(seen.any(axis=0).sum())
        return _reason(
            "too_short", f"phases were timed in {timed} steps; a healthy verdict needs {MIN_STEPS}"
        )
    return None


def _if_strange(strangeness: Strangeness | None) -> AbstentionReason | None:
    if strangeness is None or not strangeness.out_of_distribution:
        return None
    return _reason(
        "out_of_distribution",
        "the window is unlike those the model learned from, and its evidence is too weak",
    )


def _undecided(classification: Classification) -> str:
    chances = sorted(classification.probability.items(), key=lambda item: -item[1])
    first = chances[0][0]
    both = [f"{_label(mode)} ({probability(chance)})" for mode, chance in chances[:2]]
    sentence = f"undecided between {' and '.join(both)}"
    if first == classification.mode:
        return sentence
    # In thousandths, as the limits are: rounded more, a chance may look like its limit.
    faulty = 1.0 - classification.probability["healthy"]
    return f"{sentence}; an alarm needs {classification.alarm:.3f} for a fault, which has {faulty:.3f}"


def _label(mode: str) -> str:
    return mode.replace("_", "-")


def _reason(code: AbstentionCode, sentence: str) -> AbstentionReason:
    return AbstentionReason(code=code, sentence=sentence)
