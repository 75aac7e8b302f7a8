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
from rca.classify.preconditions import shows_slowness
from rca.diagnosis.alarm import Explained, alarm_numbers
from rca.diagnosis.explanations import chances
from rca.diagnosis.timeline import Timeline
from rca.window.causes import UNKNOWN

#: Probability from which the latenesses of a job that looks healthy otherwise raise the alarm.
RAISED = 0.92
#: Probability from which a lateness of some ranks explains one of the whole job, and the least share of the
#: job's late steps that are its own.
LIKELY, SAME_STEPS = 0.5, 0.4
#: Nats of evidence with which a lateness of the whole job stays beside one of some ranks, and with which it
#: stays if it costs more.
OWN_EVIDENCE, OWN_EVIDENCE_OF_COSTLIER = 4.0, 2.5
#: Nats with which a known cause is shown, and by what factor its lateness then comes first.
SHOWN, SHOWN_FIRST = 2.0, 3.0
#: Least cost of a further lateness, as a share of the first one's: in general, and of a probable one.
FURTHER, FURTHER_PROBABLE, PROBABLE = 0.2, 0.1, 0.8


@dataclass(frozen=True)
class Judged:
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
    def weight(self) -> float:
        """Seconds per step; more for a cause that the evidence shows."""
        shown = self.cause != UNKNOWN and self.found.evidence > SHOWN
        return self.found.late.seconds * (SHOWN_FIRST if shown else 1.0)


def with_latenesses(
    classification: Classification, line: Timeline, found: Sequence[Explained], alarm: Head | None
) -> Classification:
    """The classification with the alarm of the latenesses, where the job looks healthy otherwise.

    Parameters
    ----------
    found : sequence of Explained
        Every lateness of the window.
    alarm : Head or None
        Of the bundle; without one nothing changes.
    """
    if alarm is None or not found or classification.mode != "healthy" or classification.events:
        return classification
    chance = float(alarm.probabilities(alarm_numbers(line, found)[None, :])[0, 1])
    steps = np.array(line.n_steps if line.since is None else line.n_steps - line.since)
    if chance < RAISED or not shows_slowness(steps, np.array(chance)):
        return classification
    suspects = [_suspect(each, line) for each in _faults(_judged(line, found, alarm))]
    if not suspects:
        return classification
    probability = at_least(classification.probability, "fail_slow", chance)
    return replace(
        classification, mode="fail_slow", probability=probability, decided=True, suspects=suspects, events=()
    )


def _judged(line: Timeline, found: Sequence[Explained], alarm: Head) -> list[Judged]:
    """The latenesses that may be faults, each with its probability."""
    kept = [each for each in found if each.may_be_a_fault]
    if not kept:
        return []
    numbers: FloatArray = np.array([alarm_numbers(line, [each]) for each in kept])
    return [
        Judged(each, float(chance))
        for each, chance in zip(kept, alarm.probabilities(numbers)[:, 1], strict=True)
    ]


def _faults(judged: Sequence[Judged]) -> list[Judged]:
    """The latenesses to answer, the weightiest first."""
    local = [each for each in judged if not each.found.late.of_all and each.probability >= LIKELY]
    found: list[Judged] = []
    for each in sorted(judged, key=lambda each: -each.weight):
        if _is_explained(each, local) or any(_is_the_same(each, other) for other in found):
            continue
        share = FURTHER_PROBABLE if each.probability > PROBABLE else FURTHER
        if not found or each.weight >= share * found[0].weight:
            found.append(each)
    return found


def _is_explained(each: Judged, local: Sequence[Judged]) -> bool:
    """Whether some ranks' lateness in the same steps explains one of the whole job."""
    late = each.found.late
    if not late.of_all or not local:
        return False
    shared = max(int((late.steps & other.found.late.steps).sum()) for other in local)
    if shared <= SAME_STEPS * max(int(late.steps.sum()), 1):
        return False
    costlier = late.seconds > max(other.found.late.seconds for other in local)
    return each.found.evidence < (OWN_EVIDENCE_OF_COSTLIER if costlier else OWN_EVIDENCE)


def _is_the_same(each: Judged, weightier: Judged) -> bool:
    """Whether a weightier lateness in the same steps, of ranks among which these are, explains this one."""
    late, other = each.found.late, weightier.found.late
    shared = int((late.steps & other.steps).sum())
    if shared <= SAME_STEPS * max(int(late.steps.sum()), 1) or not set(each.ranks) <= set(weightier.ranks):
        return False
    return each.cause in (UNKNOWN, weightier.cause)


def _suspect(each: Judged, line: Timeline) -> Suspect:
    """The lateness as a suspect on the ranks of its best explanation."""
    causes = ordered(chances(each.found.explanations))
    return Suspect(component_of(each.ranks, each.probability, line.topology), types_of(causes), {}, causes)
