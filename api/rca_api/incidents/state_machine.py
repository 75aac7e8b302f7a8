"""State machine of an incident: a pure function from a state and a window to the next state.

- An incident opens at once if the job stopped. If it is slow, it opens when the last windows that may show
  the same fault are together certain: the chance that all of them are wrong is small. Several faulty windows
  of one place open it, too, whatever their causes.
- Windows that are certain of a fault and not of its cause are suspects. Several of them open a suspected
  incident. The first window with a cause confirms it.
- Exporters alone make suspects, too. Their healthy windows resolve no confirmed incident, and do not count
  for its silence.
- It is resolved by several healthy windows in a row, or when no window arrives for long. A window that shows
  the end of the incident's fault counts as healthy. Windows on which the diagnosis abstained do not count,
  except those after a healthy one that are probably healthy: the time after a fault is short at first.
- It is reopened by a faulty window, or several suspects, soon after its resolution.
- Its cause and place change when confident diagnoses in a row, or suspects of a suspected incident, name the
  same other one. If they name different ones, the incident becomes uncertain.
- The end of a mute is an event that changes nothing: it repeats the present state.

Repeated changes need more windows. Each reopening doubles the healthy windows that resolve the incident. Each
change doubles the windows for the next one, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from rca_api.incidents.observation import Observation, Subject

EventKind = Literal[
    "opened",
    "suspected",
    "confirmed",
    "reopened",
    "cause_changed",
    "place_changed",
    "cause_uncertain",
    "mute_ended",
    "resolved",
]
Reason = Literal["healthy", "silence", "deleted", "closed", "ended"]

#: Limits of the doubled numbers of windows; they fit into the windows that are replayed.
_MAX_HEALTHY = 48
_MAX_CHANGED = 16


@dataclass(frozen=True)
class Hysteresis:
    """Thresholds of the events of an incident.

    Attributes
    ----------
    sure_probability : float
        Certainty of the last windows together that opens an incident of a slow job: one of .999, two of .97.
    opening_windows, opening_of : int
        Number of faulty windows of one place that open an incident, and of the last windows that count.
    reopen_seconds : float
        A faulty window so soon after the last healthy one reopens it.
    healthy_windows : int
        Healthy windows in a row that resolve an incident.
    changed_windows : int
        Confident diagnoses in a row with the same other cause or place that change it.
    uncertain_windows : int
        Confident diagnoses in a row without the incident's cause and place that make it uncertain.
    silence_seconds : float
        Time without a window after which an incident is resolved.
    """

    sure_probability: float = 0.999
    opening_windows: int = 3
    opening_of: int = 3
    reopen_seconds: float = 3600.0
    healthy_windows: int = 3
    changed_windows: int = 2
    uncertain_windows: int = 6
    silence_seconds: float = 6 * 3600.0


@dataclass(frozen=True)
class OpenIncident:
    """An open incident.

    Attributes
    ----------
    last_end : float
        End of its newest window, Unix seconds.
    uncertain : bool
        Whether its diagnoses contradict each other; `subject` is what they have in common.
    reopened, changes : int
        Reopenings, and changes of cause or place, so far.
    healthy_streak : int
        Healthy windows since the last faulty one.
    candidate : Subject or None
        What the last faulty windows named instead of `subject`, `candidate_streak` times in a row.
    others : tuple of Subject
        What faulty windows named since the last one that named `subject`.
    suspected : bool
        Whether no window was certain of a cause yet.
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
    suspected: bool = False


@dataclass(frozen=True)
class NoIncident:
    """No incident is open.

    Attributes
    ----------
    resolved : OpenIncident or None
        The last incident, if healthy windows ended it.
    recent : tuple of Observation
        The last windows since, oldest first, as many as the opening of an incident needs.
    """

    resolved: OpenIncident | None = None
    recent: tuple[Observation, ...] = ()


State = OpenIncident | NoIncident


@dataclass(frozen=True)
class Transition:
    """An announced event.

    Attributes
    ----------
    window_end : float
        End of the window that caused it, Unix seconds.
    diagnosis_id : str or None
        Diagnosis of the last window with this subject; None if no window of the event has it.
    first : tuple of float, optional
        `order` of the first window that led to an opening, or to a reopening by suspects.
    suspected : bool
        Whether no window was certain of a cause yet.
    """

    kind: EventKind
    subject: Subject
    window_end: float
    diagnosis_id: str | None
    previous: Subject | None = None
    reason: Reason | None = None
    first: tuple[float, float] | None = None
    suspected: bool = False


def next_state(
    state: State, observation: Observation, settings: Hysteresis
) -> tuple[State, tuple[Transition, ...]]:
    """Process one window, which must be newer than those before.

    Returns
    -------
    state : OpenIncident or NoIncident
    events : tuple of Transition
        At most two: the resolution of a silent incident, and the opening of the next one.
    """
    if isinstance(state, NoIncident):
        return _without_incident(state, observation, settings)
    if not counts(observation, confirmed=not state.suspected):
        return state, ()
    if observation.start - state.last_end > settings.silence_seconds:
        after, events = next_state(NoIncident(), observation, settings)
        return after, (ended_by_silence(state), *events)
    state = replace(state, last_end=max(state.last_end, observation.end))
    found = observation.subject
    if _shows_health(state, observation):
        return _after_healthy(state, observation, settings)
    if observation.verdict == "suspect":
        if not state.suspected or found is None or found.cause is None:
            return replace(state, healthy_streak=0), ()
        return _after_faulty(state, observation, found, settings)
    if observation.verdict == "sick" and found is not None:
        return _after_faulty(state, observation, found, settings)
    return state, ()


def _shows_health(incident: OpenIncident, observation: Observation) -> bool:
    found = observation.subject
    confirms = incident.suspected and observation.verdict == "sick"
    over = observation.over is not None and not confirms
    ended = over and found is not None and found.may_be(incident.subject)
    leans = observation.probably_healthy and incident.healthy_streak > 0
    return observation.verdict == "healthy" or ended or leans


def _is_known(before: OpenIncident | None, observation: Observation) -> bool:
    """Whether a window shows nothing but the fault of the last incident, which was over before its end."""
    found, over = observation.subject, observation.over
    return (
        before is not None
        and found is not None
        and over is not None
        and over <= before.last_end
        and found.may_be(before.subject)
    )


def counts(observation: Observation, *, confirmed: bool) -> bool:
    """Whether a window says something about an open incident.

    Exporters do not show whether steps are fast again. So without steps a confirmed incident is silent.
    """
    return not (confirmed and observation.untimed and observation.verdict == "healthy")


def ended_by_silence(incident: OpenIncident) -> Transition:
    """The event that resolves a silent incident."""
    return Transition("resolved", incident.subject, incident.last_end, None, reason="silence")


def replay(
    state: State, observations: Iterable[Observation], settings: Hysteresis
) -> Iterator[tuple[Observation, State, tuple[Transition, ...]]]:
    """Process several windows in their order; gives the state after each, and its events."""
    for each in sorted(observations, key=lambda found: found.order):
        state, events = next_state(state, each, settings)
        yield each, state, events


def _without_incident(
    state: NoIncident, observation: Observation, settings: Hysteresis
) -> tuple[State, tuple[Transition, ...]]:
    if _is_known(state.resolved, observation):
        return state, ()
    recent = [each for each in state.recent if observation.start - each.end <= settings.silence_seconds] + [
        observation
    ]
    recent = recent[-max(settings.opening_of, settings.opening_windows) :]
    state, subject = replace(state, recent=tuple(recent)), observation.subject
    if subject is None:
        return state, ()
    before = state.resolved
    faulty = [each for each in recent if each.subject is not None and each.subject.meets(subject)]
    if observation.verdict == "suspect":
        return _after_suspect(state, observation, faulty, settings)
    if before is not None and _is_relapse(before, observation, settings):
        again = OpenIncident(subject, observation.end, reopened=before.reopened + 1, changes=before.changes)
        return again, (_event("reopened", subject, observation, previous=before.subject),)
    doubt = prod(1.0 - each.probability for each in faulty if each.subject and each.subject.may_be(subject))
    at_once = subject.failure_mode == "fail_stop" or doubt <= 1.0 - settings.sure_probability
    if not at_once and len(faulty) < settings.opening_windows:
        return state, ()
    return OpenIncident(subject, observation.end), (
        _event("opened", subject, observation, first=faulty[0].order),
    )


def _after_suspect(
    state: NoIncident, observation: Observation, faulty: list[Observation], settings: Hysteresis
) -> tuple[State, tuple[Transition, ...]]:
    """Open an incident when enough windows are faulty or suspects; a single suspect never opens one.

    Suspects alone reopen the incident before, with the subject that it had.
    """
    if len(faulty) < max(settings.opening_windows, 2):
        return state, ()
    first, end, before = faulty[0].order, observation.end, state.resolved
    named = next((each for each in reversed(faulty) if each.verdict == "sick"), None)
    if named is None and before is not None and _is_relapse(before, observation, settings):
        suspected, subject = before.suspected, before.subject
        reopened, changes = before.reopened + 1, before.changes
        again = OpenIncident(subject, end, reopened=reopened, changes=changes, suspected=suspected)
        # A suspect's own diagnosis does not name the cause of a confirmed incident.
        found = observation.diagnosis_id if suspected else None
        event = Transition("reopened", subject, end, found, subject, first=first, suspected=suspected)
        return again, (event,)
    named_subject = (named or observation).subject
    if named_subject is None:
        return state, ()
    kind: EventKind = "suspected" if named is None else "opened"
    found = (named or observation).diagnosis_id
    event = Transition(kind, named_subject, end, found, first=first, suspected=named is None)
    return OpenIncident(named_subject, end, suspected=named is None), (event,)


def _is_relapse(before: OpenIncident, observation: Observation, settings: Hysteresis) -> bool:
    return abs(observation.start - before.last_end) < settings.reopen_seconds


def _after_healthy(
    incident: OpenIncident, observation: Observation, settings: Hysteresis
) -> tuple[State, tuple[Transition, ...]]:
    streak = incident.healthy_streak + 1
    if streak < _doubled(settings.healthy_windows, incident.reopened, _MAX_HEALTHY):
        return replace(incident, healthy_streak=streak, candidate=None, candidate_streak=0), ()
    return NoIncident(incident), (_event("resolved", incident.subject, observation, reason="healthy"),)


def _after_faulty(
    incident: OpenIncident, observation: Observation, found: Subject, settings: Hysteresis
) -> tuple[OpenIncident, tuple[Transition, ...]]:
    incident = replace(incident, healthy_streak=0)
    subject = incident.subject
    if incident.suspected and observation.verdict == "sick":
        confirmed = replace(_changed(incident, found), changes=incident.changes)
        return confirmed, (_event("confirmed", found, observation, previous=subject),)
    # An uncertain subject would agree with any other.
    if found == subject if incident.uncertain else found.agrees(subject):
        return replace(incident, candidate=None, candidate_streak=0, others=()), ()
    goes_on = incident.candidate is not None and found.agrees(incident.candidate)
    streak = incident.candidate_streak + 1 if goes_on else 1
    needed = _doubled(settings.changed_windows, incident.changes, _MAX_CHANGED)
    if streak >= needed:
        kind: EventKind = "place_changed" if found.is_same_fault(subject) else "cause_changed"
        event = _event(kind, found, observation, previous=subject, suspected=incident.suspected)
        return replace(_changed(incident, found), suspected=incident.suspected), (event,)
    others = (*incident.others, found)
    if not incident.uncertain and len(others) >= max(settings.uncertain_windows, needed):
        causes = {each.cause for each in others}
        common = Subject(found.failure_mode, found.cause if len(causes) == 1 else None)
        event = _event("cause_uncertain", common, observation, previous=subject, suspected=incident.suspected)
        return replace(_changed(incident, common), uncertain=True, suspected=incident.suspected), (event,)
    return replace(incident, candidate=found, candidate_streak=streak, others=others), ()


def _changed(incident: OpenIncident, subject: Subject) -> OpenIncident:
    """The incident with another subject, and streaks reset."""
    return OpenIncident(subject, incident.last_end, reopened=incident.reopened, changes=incident.changes + 1)


def _doubled(windows: int, times: int, limit: int) -> int:
    return max(windows, min(windows << min(times, 6), limit))


def _event(
    kind: EventKind,
    subject: Subject,
    observation: Observation,
    *,
    previous: Subject | None = None,
    reason: Reason | None = None,
    first: tuple[float, float] | None = None,
    suspected: bool = False,
) -> Transition:
    return Transition(
        kind, subject, observation.end, observation.diagnosis_id, previous, reason, first, suspected
    )
