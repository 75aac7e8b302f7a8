"""The life of an incident: a pure function from one state and one window to the next state.

An incident opens at once where a job stopped or a diagnosis is very sure, else when several of the last
confident windows are sick. It is resolved by healthy windows in a row, or when no window arrives for long;
one healthy window, or any number that the diagnosis would not decide, resolve nothing. A relapse soon after
opens it again. Its cause and its place change when confident diagnoses in a row name the same other one;
where they go on naming different ones, the incident says that it is uncertain.

Whatever comes and goes takes longer each time: with every relapse the healthy windows, with every change
the windows of the next one double, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

Verdict = Literal["healthy", "sick", "unsure"]
Kind = Literal["opened", "reopened", "cause_changed", "place_changed", "cause_uncertain", "resolved"]
Reason = Literal["healthy", "silence"]

#: Limits of what doubles; together with the windows before them they fit into what is replayed.
_MOST_HEALTHY = 48
_MOST_CHANGED = 16


@dataclass(frozen=True)
class Hysteresis:
    """How much it takes to change what was announced.

    Attributes
    ----------
    opening_windows, opening_of : int
        So many sick ones among so many confident windows open an incident of a slow job.
    sure_probability : float
        A single window opens it from this probability on.
    reopen_seconds : float
        A sick window so soon after the last healthy one is a relapse.
    healthy_windows : int
        Healthy windows in a row that resolve an incident.
    changed_windows : int
        Confident diagnoses in a row that name the same other cause or place and so change it.
    uncertain_windows : int
        Confident diagnoses since the last that named the incident's cause and place, which make it
        uncertain.
    silence_seconds : float
        Time without a window after which an incident is over.
    """

    opening_windows: int = 2
    opening_of: int = 3
    sure_probability: float = 0.99
    reopen_seconds: float = 3600.0
    healthy_windows: int = 3
    changed_windows: int = 2
    uncertain_windows: int = 6
    silence_seconds: float = 6 * 3600.0


@dataclass(frozen=True)
class Subject:
    """What is wrong and where; `place` are names of nodes, else of ranks, none if it is not known."""

    failure_mode: str
    cause: str | None
    place: tuple[str, ...] = ()

    def is_as_bad_as(self, other: Subject) -> bool:
        """Whether mode and cause are the same."""
        return (self.failure_mode, self.cause) == (other.failure_mode, other.cause)

    def agrees(self, other: Subject) -> bool:
        """Whether the two may be one: the same cause, and no two places apart from each other."""
        apart = self.place and other.place and set(self.place).isdisjoint(other.place)
        return self.is_as_bad_as(other) and not apart


@dataclass(frozen=True)
class Observation:
    """One diagnosed window of a job.

    Attributes
    ----------
    start, end : float
        Bounds of the window, Unix seconds.
    subject : Subject or None
        Of a sick one.
    probability : float
        Of its failure mode.
    """

    diagnosis_id: str
    start: float
    end: float
    verdict: Verdict
    subject: Subject | None = None
    probability: float = 0.0

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
    uncertain : bool
        Diagnoses went on contradicting each other; `subject` is what they had in common.
    reopened, changes : int
        Relapses, and changes of cause or place, so far.
    healthy_streak : int
        Healthy windows since the last sick one.
    candidate : Subject or None
        What the last sick windows named instead of `subject`, `candidate_streak` times in a row.
    others : tuple of Subject
        What sick windows named since the last one that named `subject`.
    """

    subject: Subject
    last_end: float
    uncertain: bool = False
    reopened: int = 0
    changes: int = 0
    healthy_streak: int = 0
    candidate: Subject | None = None
    candidate_streak: int = 0
    others: tuple[Subject, ...] = ()


@dataclass(frozen=True)
class Quiet:
    """No incident is open.

    Attributes
    ----------
    resolved : Life or None
        The last incident, if healthy windows ended it.
    recent : tuple of Observation
        The last confident windows since, oldest first: no more than the opening of an incident looks at.
    """

    resolved: Life | None = None
    recent: tuple[Observation, ...] = ()


State = Life | Quiet


@dataclass(frozen=True)
class Event:
    """What is announced; `diagnosis_id` and `window_end` tell the window that decided.

    `first` is the `order` of the first window that an opened incident consists of.
    """

    kind: Kind
    subject: Subject
    window_end: float
    diagnosis_id: str | None
    previous: Subject | None = None
    reason: Reason | None = None
    first: tuple[float, float] | None = None


def next_state(
    state: State, observation: Observation, settings: Hysteresis
) -> tuple[State, tuple[Event, ...]]:
    """Take in one window, which must be newer than those before.

    Returns
    -------
    state : Life or Quiet
    events : tuple of Event
        At most two: an incident that ended in silence, and the one that the window opens.
    """
    if isinstance(state, Quiet):
        return _quiet(state, observation, settings)
    if observation.start - state.last_end > settings.silence_seconds:
        after, events = next_state(Quiet(), observation, settings)
        return after, (ended_in_silence(state), *events)
    state = replace(state, last_end=max(state.last_end, observation.end))
    if observation.verdict == "sick" and observation.subject is not None:
        return _sick(state, observation, observation.subject, settings)
    if observation.verdict == "healthy":
        return _healthier(state, observation, settings)
    return state, ()


def ended_in_silence(incident: Life) -> Event:
    """Build the event of an incident of which nothing was heard for too long."""
    return Event("resolved", incident.subject, incident.last_end, None, reason="silence")


def replay(
    state: State, observations: Iterable[Observation], settings: Hysteresis
) -> Iterator[tuple[Observation, State, tuple[Event, ...]]]:
    """Take in several windows in their order; gives the state after each, and what it announced."""
    for each in sorted(observations, key=lambda found: found.order):
        state, events = next_state(state, each, settings)
        yield each, state, events


def _quiet(state: Quiet, observation: Observation, settings: Hysteresis) -> tuple[State, tuple[Event, ...]]:
    if observation.verdict == "unsure":
        return state, ()
    recent = [each for each in state.recent if observation.start - each.end <= settings.silence_seconds] + [
        observation
    ]
    recent = recent[-max(settings.opening_of, settings.opening_windows) :]
    subject = observation.subject
    if observation.verdict == "healthy" or subject is None:
        return replace(state, recent=tuple(recent)), ()
    before = state.resolved
    if before is not None and abs(observation.start - before.last_end) < settings.reopen_seconds:
        again = Life(subject, observation.end, reopened=before.reopened + 1, changes=before.changes)
        return again, (_event("reopened", subject, observation, previous=before.subject),)
    sick = [each for each in recent if each.verdict == "sick"]
    at_once = subject.failure_mode == "fail_stop" or observation.probability >= settings.sure_probability
    if not at_once and len(sick) < settings.opening_windows:
        return replace(state, recent=tuple(recent)), ()
    return Life(subject, observation.end), (_event("opened", subject, observation, first=sick[0].order),)


def _healthier(
    incident: Life, observation: Observation, settings: Hysteresis
) -> tuple[State, tuple[Event, ...]]:
    streak = incident.healthy_streak + 1
    if streak < _grown(settings.healthy_windows, incident.reopened, _MOST_HEALTHY):
        return replace(incident, healthy_streak=streak, candidate=None, candidate_streak=0), ()
    return Quiet(incident), (_event("resolved", incident.subject, observation, reason="healthy"),)


def _sick(
    incident: Life, observation: Observation, found: Subject, settings: Hysteresis
) -> tuple[Life, tuple[Event, ...]]:
    incident = replace(incident, healthy_streak=0)
    subject = incident.subject
    # What is uncertain would agree with anything.
    if found == subject if incident.uncertain else found.agrees(subject):
        return replace(incident, candidate=None, candidate_streak=0, others=()), ()
    goes_on = incident.candidate is not None and found.agrees(incident.candidate)
    streak = incident.candidate_streak + 1 if goes_on else 1
    needed = _grown(settings.changed_windows, incident.changes, _MOST_CHANGED)
    if streak >= needed:
        kind: Kind = "place_changed" if found.is_as_bad_as(subject) else "cause_changed"
        return _now(incident, found), (_event(kind, found, observation, previous=subject),)
    others = (*incident.others, found)
    if not incident.uncertain and len(others) >= max(settings.uncertain_windows, needed):
        causes = {each.cause for each in others}
        common = Subject(found.failure_mode, found.cause if len(causes) == 1 else None)
        event = _event("cause_uncertain", common, observation, previous=subject)
        return replace(_now(incident, common), uncertain=True), (event,)
    return replace(incident, candidate=found, candidate_streak=streak, others=others), ()


def _now(incident: Life, subject: Subject) -> Life:
    """Begin anew with another subject."""
    return Life(subject, incident.last_end, reopened=incident.reopened, changes=incident.changes + 1)


def _grown(windows: int, times: int, most: int) -> int:
    return max(windows, min(windows << min(times, 6), most))


def _event(
    kind: Kind,
    subject: Subject,
    observation: Observation,
    *,
    previous: Subject | None = None,
    reason: Reason | None = None,
    first: tuple[float, float] | None = None,
) -> Event:
    return Event(kind, subject, observation.end, observation.diagnosis_id, previous, reason, first)
