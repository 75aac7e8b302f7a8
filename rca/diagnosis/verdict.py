"""Stage 4 of a diagnosis: whether a lateness is a fault, and whose.

The probability of a fault is learned from the latenesses of a window (`rca.diagnosis.alarm`). That of one
lateness is the same with only this lateness in the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import FloatArray
from rca.classify.beliefs import at_least, ordered, types_of
from rca.classify.classifier import Classification, Suspect
from rca.classify.components import component_of
from rca.classify.head import Head
from rca.classify.link_evidence import LINK_CAUSES
from rca.classify.preconditions import shows_slowness
from rca.diagnosis.alarm import Explained, alarm_numbers
from rca.diagnosis.explanations import SILENT, chances
from rca.diagnosis.lateness import Lateness
from rca.diagnosis.timeline import Timeline
from rca.window.causes import UNKNOWN

#: Probability of a fault from which the latenesses of a job that looks healthy otherwise raise the alarm.
RAISED = 0.94
#: Where timers of phases exist, the latenesses decide alone from here on, and below it with the head.
ALONE = 0.97
#: Weights of the log-odds of the head and of the latenesses.
#: On 180 healthy windows of fresh simulated jobs and of validation parts three are false alarms, and seven
#: where the latenesses decide alone; on as many without timers the latenesses alone are better.
HEAD, LATENESSES = 0.8, 0.5
#: Least probability in log-odds; what is smaller is as certain.
MIN_CHANCE = 1e-4
#: Probability from which a lateness of some ranks explains one of the whole job, and the least share of the
#: job's late steps that are its own.
LIKELY, SAME_STEPS = 0.5, 0.4
#: Nats of evidence with which a lateness of the whole job stays beside one of some ranks, and with which it
#: stays if it costs more.
OWN_EVIDENCE, OWN_EVIDENCE_OF_COSTLIER = 4.0, 2.5
#: Nats with which a known cause is shown, by what factor its lateness then comes first, and the nats with
#: which it is shown beside other suspects.
SHOWN, SHOWN_FIRST, CERTAINLY_SHOWN = 2.0, 3.0, 4.0
#: The last steps of a stopped job belong to its end: some ranks had finished them, and some had not.
LAST_STEPS = 2
#: Weights of the head's log-probability and of the nats of an explanation, in the pool of both: fitted by
#: likelihood on 796 suspects of fresh simulated jobs and of validation windows. Least values of both.
BELIEF, EXPLANATION = 0.91, 0.35
LEAST_BELIEF, NOT_EXPLAINED = 1e-3, -4.0
#: Kinds of lateness that cost all ranks the same time.
TOGETHER = frozenset({"job", "pace", "transfer", "share"})
#: Probability from which a suspect's cause is that of a further lateness.
POSSIBLE = 0.2
#: Share of the ranks that a suspect and its lateness have in common.
SAME_RANKS = 0.5
#: Least cost of a further lateness, as a share of the first one's: in general, and of a probable one.
FURTHER, FURTHER_PROBABLE, PROBABLE = 0.2, 0.1, 0.8


@dataclass(frozen=True)
class JudgedLateness:
    """A lateness with its explanations and the probability that it is a fault."""

    found: Explained
    probability: float

    @property
    def cause(self) -> str:
        """Of the best explanation."""
        return self.found.explanations[0].cause

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of the best explanation: where the whole job is late, single machines may show why."""
        return self.found.explanations[0].ranks

    @property
    def lead(self) -> float:
        """Nats by which a known cause is likelier than an open one."""
        scores = {each.cause: each.score for each in self.found.explanations}
        return scores[self.cause] - scores.get(UNKNOWN, 0.0)

    @property
    def has_evidence(self) -> bool:
        """Whether a known cause comes first, and signals or the input show it."""
        return self.cause != UNKNOWN and self.found.evidence > SHOWN

    @property
    def weight(self) -> float:
        """Seconds per step; more for a cause that the evidence shows."""
        return self.found.late.seconds * (SHOWN_FIRST if self.has_evidence else 1.0)


def with_latenesses(
    classification: Classification,
    line: Timeline,
    found: Sequence[Explained],
    alarm: Head | None,
    max_alarm: float = 1.0,
) -> Classification:
    """The classification of the heads with what the latenesses of the window show.

    They raise the alarm for a job that looks healthy otherwise. In a slow job they explain the suspects and
    add further ones. Where no timer shows who is late, they are the suspects.

    Parameters
    ----------
    found : sequence of Explained
        Every lateness of the window.
    alarm : Head or None
        Of the bundle; without one only the explanations count.
    max_alarm : float
        Probability of a fault from which the job is faulty at the latest.
    """
    if classification.mode == "fail_slow":
        judged = _judged(line, found, alarm)
        suspects = [
            _at_its_place(_explained(each, line, judged), line, judged) for each in classification.suspects
        ]
        faults = [] if alarm is None else _faults(judged)
        if not line.localises and all(each.component.scope == "job" for each in suspects):
            suspects = [_suspect(each, line) for each in faults if each.has_evidence] or suspects
        elif suspects:
            suspects += _further(suspects, faults, line, judged)
        else:
            suspects = [_suspect(each, line) for each in faults if each.probability >= RAISED]
        return replace(classification, suspects=suspects)
    found = [each for each in found if not _may_be_its_design(each)]
    if alarm is None or not found or classification.mode != "healthy" or classification.events:
        return classification
    chance = float(alarm.probabilities(alarm_numbers(line, found)[None, :])[0, 1])
    if line.localises and chance < ALONE:
        chance = _pooled(classification, chance)
    if chance < min(RAISED, max_alarm) or not shows_slowness(np.array(line.n_judged), np.array(chance)):
        if chance < LIKELY:
            return classification
        probability = at_least(classification.probability, "fail_slow", chance)
        return replace(classification, probability=probability, decided=False)
    suspects = [_suspect(each, line) for each in _faults(_judged(line, found, alarm))]
    if not suspects:
        return classification
    probability = at_least(classification.probability, "fail_slow", chance)
    return replace(
        classification, mode="fail_slow", probability=probability, decided=True, suspects=suspects, events=()
    )


def _pooled(classification: Classification, latenesses: float) -> float:
    """Probability that a job is slow, by the head and by its latenesses."""
    slow, healthy = (classification.probability[mode] for mode in ("fail_slow", "healthy"))
    odds = HEAD * _log_odds(slow / max(slow + healthy, MIN_CHANCE)) + LATENESSES * _log_odds(latenesses)
    return float(1.0 / (1.0 + np.exp(-odds)))


def _log_odds(chance: float) -> float:
    certain = float(np.clip(chance, MIN_CHANCE, 1.0 - MIN_CHANCE))
    return float(np.log(certain / (1.0 - certain)))


def slow_before_the_end(line: Timeline, found: Sequence[Explained], alarm: Head | None) -> list[Suspect]:
    """Certain faults with a shown cause that slowed a stopped job down before its end."""
    end = np.arange(line.n_steps) >= line.n_steps - LAST_STEPS
    before = [each for each in found if not each.late.steps[end].sum() >= max(each.late.steps.sum(), 1)]
    return [
        _suspect(each, line)
        for each in _faults(_judged(line, before, alarm))
        if each.probability >= RAISED and _is_certain_place(each, line)
    ]


def _may_be_its_design(each: Explained) -> bool:
    """Whether a job only spends much of its steps in transfer: some jobs do by their design."""
    return _is_share_of_transfer(each.late) and each.evidence < SILENT


def _is_share_of_transfer(late: Lateness) -> bool:
    return late.kind == "share" and "transfer" in late.phases


def lost_together(found: Sequence[Explained]) -> float:
    """Seconds per step that all ranks lose together in timed phases or whole steps, against the usual step.

    Neither planned work nor more input counts, and of the transfer only what it grew. Changes add up, because
    each has what the others leave; a share of the step may hold them.
    """
    counted = [
        each.late
        for each in found
        if each.late.kind in TOGETHER
        and not (each.late.planned or each.late.more_input)
        and not _is_share_of_transfer(each.late)
    ]
    changes = sum(late.seconds for late in counted if late.kind != "share")
    return max([changes, *(late.seconds for late in counted if late.kind == "share")])


def _further(
    suspects: Sequence[Suspect],
    faults: Sequence[JudgedLateness],
    line: Timeline,
    judged: Sequence[JudgedLateness],
) -> list[Suspect]:
    """Certain faults of some ranks with a shown cause that no suspect has."""
    taken = [late for each in suspects if (late := _lateness_of(each.component.ranks, judged)) is not None]
    new: list[Suspect] = []
    for each in faults:
        known = any(each is late for late in taken)
        if (
            _is_certain_place(each, line)
            and not known
            and not any(_has(suspect, each) for suspect in (*suspects, *new))
        ):
            new.append(_suspect(each, line))
    return new


def _is_certain_place(each: JudgedLateness, line: Timeline) -> bool:
    """Whether a known cause is clearly shown on some ranks."""
    if each.probability >= RAISED and each.lead > SHOWN and not each.found.late.of_all:
        return True
    some = len(each.ranks) < line.topology.n_ranks
    return some and each.probability >= LIKELY and each.lead >= CERTAINLY_SHOWN


def _has(suspect: Suspect, each: JudgedLateness) -> bool:
    """Whether the suspect is the lateness: its ranks are among the suspect's, and the cause is likely."""
    if not set(each.ranks) & set(suspect.component.ranks):
        return False
    # All ranks share the transfer, so two links are not distinguished.
    links = suspect.by_link and each.cause in LINK_CAUSES
    return links or suspect.causes.get(each.cause, 0.0) >= POSSIBLE


def _explained(suspect: Suspect, line: Timeline, judged: Sequence[JudgedLateness]) -> Suspect:
    """The suspect with causes that its lateness explains as well: a log-linear pool of both beliefs.

    It is at least as likely as its lateness is a fault. Where no timer shows who is late, its cause is at
    least as likely as the findings make it. Without a lateness on its ranks it stays as it is.
    """
    late = _lateness_of(suspect.component.ranks, judged)
    if late is None:
        return suspect
    scores = {each.cause: each.score for each in late.found.explanations}
    names = sorted({*suspect.causes, *scores})
    pooled = np.array(
        [
            BELIEF * np.log(max(suspect.causes.get(name, 0.0), LEAST_BELIEF))
            + EXPLANATION * max(scores.get(name, NOT_EXPLAINED), NOT_EXPLAINED)
            for name in names
        ]
    )
    weights = np.exp(pooled - pooled.max())
    causes = dict(zip(names, (weights / weights.sum()).tolist(), strict=True))
    if not line.localises and late.has_evidence:
        causes = at_least(causes, late.cause, chances(late.found.explanations)[late.cause])
    causes = ordered(causes)
    likely = max(suspect.component.probability, late.probability)
    component = replace(suspect.component, probability=likely)
    steps = late.found.late.steps
    return replace(
        suspect,
        component=component,
        causes=causes,
        types=types_of(causes),
        steps=steps if steps.any() else suspect.steps,
    )


def _at_its_place(suspect: Suspect, line: Timeline, judged: Sequence[JudgedLateness]) -> Suspect:
    """A suspect of the whole job on the ranks whose signals certainly show why the job is late."""
    late = _lateness_of(suspect.component.ranks, judged)
    if suspect.component.scope != "job" or late is None or late.probability < LIKELY:
        return suspect
    best, *others = late.found.explanations
    of_all = max((each.score for each in others if len(each.ranks) == line.topology.n_ranks), default=0.0)
    certain = best.cause != UNKNOWN and best.score - of_all >= CERTAINLY_SHOWN
    return _suspect(late, line) if certain and len(best.ranks) < line.topology.n_ranks else suspect


def _lateness_of(ranks: Sequence[int], judged: Sequence[JudgedLateness]) -> JudgedLateness | None:
    """The costliest lateness on mostly these ranks."""
    alike = [
        (max(_overlap(ranks, each.found.late.ranks), _overlap(ranks, each.ranks)), each) for each in judged
    ]
    near = [(share * (each.found.late.seconds + 1e-9), each) for share, each in alike if share >= SAME_RANKS]
    return max(near, key=lambda pair: pair[0])[1] if near else None


def _overlap(one: Sequence[int], other: Sequence[int]) -> float:
    return len(set(one) & set(other)) / max(len(set(one) | set(other)), 1)


def _judged(line: Timeline, found: Sequence[Explained], alarm: Head | None) -> list[JudgedLateness]:
    """The latenesses that may be faults, each with its probability; 0 without an alarm."""
    kept = [each for each in found if each.may_be_a_fault]
    if alarm is None or not kept:
        return [JudgedLateness(each, 0.0) for each in kept]
    numbers: FloatArray = np.array([alarm_numbers(line, [each]) for each in kept])
    judged = [
        JudgedLateness(each, float(chance))
        for each, chance in zip(kept, alarm.probabilities(numbers)[:, 1], strict=True)
    ]
    return [_with_the_job(each, judged) for each in judged]


def _faults(judged: Sequence[JudgedLateness]) -> list[JudgedLateness]:
    """The latenesses to answer, the weightiest first."""
    local = [each for each in judged if not each.found.late.of_all and each.probability >= LIKELY]
    found: list[JudgedLateness] = []
    for each in sorted(judged, key=lambda each: -each.weight):
        if _is_explained(each, local) or any(_is_the_same(each, other) for other in found):
            continue
        share = FURTHER_PROBABLE if each.probability > PROBABLE else FURTHER
        if not found or each.weight >= share * found[0].weight:
            found.append(each)
    return found


def _with_the_job(each: JudgedLateness, judged: Sequence[JudgedLateness]) -> JudgedLateness:
    """A place at least as likely as the lateness of the whole job that it explains."""
    if each.found.late.kind != "place":
        return each
    same = [
        other.probability
        for other in judged
        if other.found.late.of_all and (other.ranks, other.cause) == (each.ranks, each.cause)
    ]
    return replace(each, probability=max(each.probability, *same)) if same else each


def _is_explained(each: JudgedLateness, local: Sequence[JudgedLateness]) -> bool:
    """Whether some ranks' lateness in the same steps explains one of the whole job."""
    late = each.found.late
    if not late.of_all or not local:
        return False
    shared = max(int((late.steps & other.found.late.steps).sum()) for other in local)
    if shared <= SAME_STEPS * max(int(late.steps.sum()), 1):
        return False
    costlier = late.seconds > max(other.found.late.seconds for other in local)
    return each.found.evidence < (OWN_EVIDENCE_OF_COSTLIER if costlier else OWN_EVIDENCE)


def _is_the_same(each: JudgedLateness, weightier: JudgedLateness) -> bool:
    """Whether a weightier lateness in the same steps, of ranks among which these are, explains this one."""
    late, other = each.found.late, weightier.found.late
    shared = int((late.steps & other.steps).sum())
    if shared <= SAME_STEPS * max(int(late.steps.sum()), 1) or not set(each.ranks) <= set(weightier.ranks):
        return False
    return each.cause in (UNKNOWN, weightier.cause)


def _suspect(each: JudgedLateness, line: Timeline) -> Suspect:
    """The lateness as a suspect on the ranks of its best explanation."""
    causes = ordered(chances(each.found.explanations))
    component = component_of(each.ranks, each.probability, line.topology)
    steps = each.found.late.steps
    return Suspect(component, types_of(causes), causes, steps if steps.any() else None)
