"""An incident as a page for people."""

from __future__ import annotations

from datetime import datetime

from rca.runbook.numbers import probability, seconds
from rca_api.incidents.schemas import IncidentDetail, IncidentEvent, IncidentWindow

_WORDS = {"fail_slow": "fail-slow", "fail_stop": "fail-stop"}


def page(incident: IncidentDetail) -> str:
    """Write the page; ends with a newline."""
    cause = _text(incident.cause or "cause not known")
    what = f"{_text(incident.job_id)} is {_WORDS[incident.failure_mode]}, {cause}"
    blocks = [
        f"# {incident.state.upper()}: {what}",
        "\n".join(_facts(incident)),
        "## Timeline",
        "\n".join(map(_event, incident.timeline)),
    ]
    if incident.diagnoses:
        rows = ["| window ends | verdict | cause | lost | diagnosis |", "|---|---|---|---|---|"]
        blocks += ["## Diagnoses", "\n".join([*rows, *map(_row, incident.diagnoses)])]
    return "\n\n".join(blocks) + "\n"


def _facts(incident: IncidentDetail) -> list[str]:
    lost = f"{seconds(incident.seconds_lost)} of the job, {incident.gpu_hours_lost:,.2f} GPU-hours"
    facts = [
        f"- Lost so far: {lost}, in {incident.windows:,} window{'' if incident.windows == 1 else 's'}.",
        f"- From {_when(incident.began)} to {_when(incident.ended)}, on the job's clock.",
    ]
    if incident.resolved_at is not None:
        how = "healthy again" if incident.resolution == "healthy" else "no window arrived any more"
        facts.append(f"- Resolved {_when(incident.resolved_at)}: {how}.")
    if incident.nodes:
        named = (f"{_text(each.node)} ({probability(each.probability)})" for each in incident.nodes)
        facts.append(f"- Nodes blamed: {', '.join(named)}.")
    facts += [
        f"- {_text(each.node)} was at fault in other jobs, too: lemon with {probability(each.probability)}."
        for each in incident.lemons
    ]
    return facts


def _event(event: IncidentEvent) -> str:
    cause = _text(event.cause or "cause not known")
    if event.kind == "cause_changed":
        what = f"cause changed from {_text(event.previous_cause or 'not known')} to {cause}"
    elif event.kind == "resolved":
        what = f"resolved ({event.reason})"
    else:
        what = f"opened: {_WORDS[event.failure_mode]}, {cause}"
    return f"- {_when(event.window_end)} {what}"


def _row(window: IncidentWindow) -> str:
    cells = (
        _when(window.window_end),
        window.verdict,
        _text(window.cause or ""),
        seconds(window.seconds_lost),
        window.diagnosis_id,
    )
    return f"| {' | '.join(cells)} |"


def _when(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _text(text: str) -> str:
    """Names come from callers: none of them may start a link, a table cell or a tag."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*[]<>|&#" else letter for letter in text)
    return " ".join(escaped.split())
