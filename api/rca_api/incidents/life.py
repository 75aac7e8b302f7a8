"""The life of an incident: a pure function from one state and one observation to the next state.

An incident opens at the first confident diagnosis of a slow or stopped job. It is resolved by several
healthy windows in a row, or when no window arrives for long; one healthy window, or any number that the
diagnosis would not decide, resolve nothing. Its cause changes when several confident diagnoses in a row
name the same other one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

Verdict = Literal["healthy", "sick", "unsure"]
Kind = Literal["opened", "cause_changed", "resolved"]
Reason = Literal["healthy", "silence"]


@dataclass(frozen=True)
class Hysteresis:
    """How much it takes to change what was announced.

    Attributes
    ----------
    healthy_windows : int
        Healthy windows in a row that resolve an incident.
    changed_windows : int
        Confident diagnoses in a row of one other cause that change an incident's cause.
    silence_seconds : float
        Time without a window after which an incident is over.
    """

    healthy_windows: int = 3
    changed_windows: int = 2
    silence_seconds: float = 6 * 3600.0


@dataclass(frozen=True)
class Subject:
    """What is wrong; two subjects with the same words are the same."""

    failure_mode: str
    cause: str | None


@dataclass(frozen=True)
class Observation:
    """One diagnosed window of a job.

    Attributes
    ----------
    start, end : float
        Bounds of the window, Unix seconds.
    subject : Subject or None
        Of a sick one.
    """

    diagnosis_id: str
    start: float
    end: float
    verdict: Verdict
    subject: Subject | None = None

    @property
    def order(self) -> tuple[float, float]:
        """Place among the windows of the job."""
        return self.end, self.start


@dataclass(frozen=True)
class Life:
    """An open incident.

    Attributes
    ----------
    last_end : float
        End of its newest window, Unix seconds.
    healthy_streak : int
        Healthy windows since the last sick one.
    candidate : Subject or None
        What the last sick windows named instead of `subject`, `candidate_streak` times in a row.
    """

    subject: Subject
    last_end: float
    healthy_streak: int = 0
    candidate: Subject | None = None
    candidate_streak: int = 0


@dataclass(frozen=True)
class Event:
    """What is announced; `diagnosis_id` and `window_end` tell the window that decided."""

    kind: Kind
    subject: Subject
    window_end: float
    diagnosis_id: str | None
    previous: Subject | None = None
    reason: Reason | None = None


def next_state(
    incident: Life | None, observation: Observation, settings: Hysteresis
) -> tuple[Life | None, tuple[Event, ...]]:
    """Take in one window, which must be newer than those before.

    Parameters
    ----------
    incident : Life or None
        The job's open incident.

    Returns
    -------
    incident : Life or None
    events : tuple of Event
        At most two: an incident that ended in silence, and the one that the window opens.
    """
    if incident is not None and observation.start - incident.last_end > settings.silence_seconds:
        after, events = next_state(None, observation, settings)
        return after, (ended_in_silence(incident), *events)
    if incident is None:
        return _perhaps_opened(observation)
    incident = replace(incident, last_end=max(incident.last_end, observation.end))
    if observation.verdict == "unsure":
        return incident, ()
    if observation.verdict == "healthy":
        return _healthier(incident, observation, settings)
    return _sick(incident, observation, settings)


def ended_in_silence(incident: Life) -> Event:
    """Build the event of an incident of which nothing was heard for too long."""
    return Event("resolved", incident.subject, incident.last_end, None, reason="silence")


def replay(
    incident: Life | None, observations: Iterable[Observation], settings: Hysteresis
) -> Iterator[tuple[Observation, Life | None, tuple[Event, ...]]]:
    """Take in several windows in their order; gives the state after each, and what it announced."""
    for each in sorted(observations, key=lambda found: found.order):
        incident, events = next_state(incident, each, settings)
        yield each, incident, events


def _perhaps_opened(observation: Observation) -> tuple[Life | None, tuple[Event, ...]]:
    if observation.verdict != "sick" or observation.subject is None:
        return None, ()
    opened = Event("opened", observation.subject, observation.end, observation.diagnosis_id)
    return Life(observation.subject, observation.end), (opened,)


def _healthier(
    incident: Life, observation: Observation, settings: Hysteresis
) -> tuple[Life | None, tuple[Event, ...]]:
    streak = incident.healthy_streak + 1
    if streak < settings.healthy_windows:
        return replace(incident, healthy_streak=streak, candidate=None, candidate_streak=0), ()
    resolved = Event(
        "resolved", incident.subject, observation.end, observation.diagnosis_id, reason="healthy"
    )
    return None, (resolved,)


def _sick(incident: Life, observation: Observation, settings: Hysteresis) -> tuple[Life, tuple[Event, ...]]:
    found = observation.subject
    incident = replace(incident, healthy_streak=0)
    if found is None or found == incident.subject:
        return replace(incident, candidate=None, candidate_streak=0), ()
    streak = incident.candidate_streak + 1 if found == incident.candidate else 1
    if streak < settings.changed_windows:
        return replace(incident, candidate=found, candidate_streak=streak), ()
    changed = Event(
        "cause_changed", found, observation.end, observation.diagnosis_id, previous=incident.subject
    )
    return Life(found, incident.last_end), (changed,)
