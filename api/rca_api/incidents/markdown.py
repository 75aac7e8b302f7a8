"""An incident as a Markdown page."""

from __future__ import annotations

from datetime import datetime

from rca.probability import probability
from rca.runbook.numbers import seconds
from rca_api.actions.schemas import TakenAction
from rca_api.incidents.schemas import IncidentDetail, IncidentEvent, IncidentWindow
from rca_api.shell.store.base import now

#: Most nodes or ranks in one line.
_NAMED = 4
_WORDS = {"healthy": "healthy", "fail_slow": "fail-slow", "fail_stop": "fail-stop"}
#: Windows without a certain cause; the others are named after their failure mode.
_VERDICTS = {"suspect": "fault, cause not certain", "unsure": "undecided", "healthy": "healthy"}
_RESOLVED = {
    "healthy": "healthy again",
    "silence": "no more windows arrived",
    "deleted": "all its diagnoses were deleted",
    "closed": "closed by a person",
    "ended": "the job ended",
}


def page(incident: IncidentDetail) -> str:
    """Write the page; ends with a newline."""
    where = _where(incident.cause, incident.place)
    what = f"{_text(incident.job_id)} is {_WORDS[incident.failure_mode]}, {where}"
    blocks = [
        f"# {incident.state.upper()}: {what}",
        "\n".join([*_summary(incident), *_facts(incident)]),
        "## Timeline",
        "\n".join(map(_event, incident.timeline)),
    ]
    if incident.actions:
        rows = ["| taken | action | outcome | predicted | observed |", "|---|---|---|---|---|"]
        blocks += ["## Actions", "\n".join([*rows, *map(_taken, incident.actions)])]
    if incident.diagnoses:
        rows = ["| window ends | verdict | cause | lost | diagnosis |", "|---|---|---|---|---|"]
        blocks += ["## Diagnoses", "\n".join([*rows, *map(_row, incident.diagnoses)])]
    return "\n\n".join(blocks) + "\n"


def _summary(incident: IncidentDetail) -> list[str]:
    """The summary of its newest diagnosis, as on the page of that diagnosis.

    Two parts are the incident's own: the onset, since the newest window may begin later, and the runbook,
    which is filled from the newest window with its cause.
    """
    lines = [f"- **Since:** {_when(incident.began)}, last seen {_when(incident.ended)}, on the job's clock."]
    for part in () if incident.summary is None else incident.summary.parts:
        if part.title == "Since" or (part.title == "Runbook" and incident.runbook is not None):
            continue
        first, *more = map(_text, part.lines)
        lines += [f"- **{part.title}:** {first}", *(f"  - {each}" for each in more)]
    return lines


def _facts(incident: IncidentDetail) -> list[str]:
    lost = f"{seconds(incident.seconds_lost)} of the job, {incident.gpu_hours_lost:,.2f} GPU-hours"
    facts = [
        f"- Lost so far: {lost}, in {incident.windows:,} window{'' if incident.windows == 1 else 's'}.",
    ]
    reached = [
        f"{each.name} after {seconds(each.seconds)}" for each in incident.stages if each.seconds is not None
    ]
    if reached:
        facts.append(f"- Stages: {', '.join(reached)}.")
    if incident.delays:
        told = ", ".join(f"{each.name} after {seconds(each.seconds)}" for each in incident.delays)
        facts.append(f"- Delays since the onset: {told}.")
    if incident.suspected:
        facts.append("- Suspected: no window is certain of the cause with timed steps yet.")
    facts += _people(incident)
    if incident.uncertain:
        facts.append("- Uncertain: its diagnoses name different causes or places.")
    if incident.reopened:
        facts.append(f"- Relapses: {incident.reopened}.")
    if incident.resolved_at is not None:
        how = _RESOLVED[incident.resolution or "silence"]
        why = f": {_text(incident.closing_note)}" if incident.closing_note else ""
        facts.append(f"- Resolved {_when(incident.resolved_at)}: {how}{why}.")
    if incident.runbook is not None:
        facts.append(f"- Runbook: `rca runbook {_text(incident.cause or '')}`, or `GET {incident.runbook}`.")
    if incident.nodes:
        named = (f"{_text(each.node)} ({probability(each.probability)})" for each in incident.nodes)
        facts.append(f"- Nodes blamed: {', '.join(named)}.")
    facts += [
        f"- {_text(each.node)} had faults in other jobs as well (lemon, {probability(each.probability)})."
        for each in incident.lemons
    ]
    return facts


def _people(incident: IncidentDetail) -> list[str]:
    """What people have said about it."""
    facts = []
    if incident.acknowledged_at is not None:
        by = _text(incident.acknowledged_by or "")
        facts.append(f"- Acknowledged {_when(incident.acknowledged_at)} by {by}.")
    if incident.assigned_to:
        facts.append(f"- Assigned to {_text(incident.assigned_to)}.")
    if incident.muted_until is not None and incident.muted_until > now():
        facts.append(f"- No messages until {_when(incident.muted_until)}.")
    return facts


def _event(event: IncidentEvent) -> str:
    now = _where(event.cause, event.place)
    before = _where(event.previous_cause, event.previous_place)
    what = {
        "opened": f"opened: {_WORDS[event.failure_mode]}, {now}",
        "suspected": f"suspected: {_WORDS[event.failure_mode]}, {now}",
        "confirmed": f"confirmed: {_WORDS[event.failure_mode]}, {now}",
        "reopened": f"reopened: {_WORDS[event.failure_mode]}, {now}",
        "cause_changed": f"cause changed from {before} to {now}",
        "place_changed": f"moved from {before} to {now}",
        "cause_uncertain": f"uncertain: no longer {before}",
        "mute_ended": f"mute ended: still {_WORDS[event.failure_mode]}, {now}",
        "resolved": f"resolved ({event.reason})",
    }
    return f"- {_when(event.window_end)} {what[event.kind]}"


def _where(cause: str | None, place: list[str]) -> str:
    named = _text(cause or "unknown cause")
    more = f" and {len(place) - _NAMED} more" if len(place) > _NAMED else ""
    return f"{named} on {', '.join(map(_text, place[:_NAMED]))}{more}" if place else named


def _row(window: IncidentWindow) -> str:
    cells = (
        _when(window.window_end),
        _VERDICTS.get(window.verdict) or _WORDS[window.failure_mode],
        _text(window.cause or ""),
        seconds(window.seconds_lost),
        window.diagnosis_id,
    )
    return f"| {' | '.join(cells)} |"


def _taken(action: TakenAction) -> str:
    """One action with its gains, in seconds per step."""
    gains = (action.predicted, action.observed)
    saved = ("" if gain is None else f"{seconds(gain.seconds_per_step_saved)} per step" for gain in gains)
    outcome = action.outcome.replace("_", " ")
    return f"| {' | '.join((_when(action.taken_at), action.action, outcome, *saved))} |"


def _when(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _text(text: str) -> str:
    """Escape a name from a caller, so that it cannot start a link, a table cell or a tag."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*[]<>|&#" else letter for letter in text)
    return " ".join(escaped.split())
