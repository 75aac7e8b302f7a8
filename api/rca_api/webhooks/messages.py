"""The body of a delivery in the form of its receiver: ours, Slack, Alertmanager or PagerDuty."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

import orjson

from rca.runbook.slack import slack, without_links
from rca.runbook.summary import Summary
from rca_api.incidents.schemas import IncidentNotification, IncidentSummary

Form = Literal["standard", "slack", "alertmanager", "pagerduty"]
#: How long Alertmanager shows an alert without news of its incident.
ALERT_LASTS = timedelta(days=7)
ALERT_NAME = "TrainingJobIncident"
#: Limits of PagerDuty's Events API v2, in characters.
_SUMMARY, _DETAIL = 1024, 4000
#: Most places in one line.
_NAMED = 4
_MODES = {"fail_slow": "slow", "fail_stop": "stopped"}
_STATES = {
    "opened": "is {mode}",
    "suspected": "is suspected to be {mode}",
    "confirmed": "is {mode}, and the cause is certain",
    "reopened": "is {mode} again",
    "cause_changed": "is {mode} for another cause",
    "place_changed": "is {mode} in another place",
    "cause_uncertain": "is {mode}, and its diagnoses contradict each other",
    "mute_ended": "is still {mode} at the end of the mute",
}
_RESOLVED = {
    "healthy": "is healthy again",
    "silence": "sends no more windows",
    "deleted": "has no diagnoses left",
    "closed": "has no open incident: a person closed it",
    "ended": "ended, so its suspected incident is over",
}


def body_for(form: str, message: IncidentNotification, summary: Summary | None = None) -> bytes:
    """The bytes that a receiver gets.

    Parameters
    ----------
    form : {"standard", "slack", "alertmanager", "pagerduty"}
    summary : Summary, optional
        Of the diagnosis that caused the event.

    Returns
    -------
    bytes
        JSON; for PagerDuty without the routing key, which is added when it is sent.
    """
    if form == "slack":
        return orjson.dumps(_slack(message, summary))
    if form == "alertmanager":
        return orjson.dumps(_alerts(message))
    if form == "pagerduty":
        return orjson.dumps(_page(message))
    return message.model_dump_json().encode()


def with_routing_key(body: bytes, routing_key: str | None) -> bytes:
    """The body with the present key of its receiver, which no stored message holds."""
    return body if routing_key is None else orjson.dumps({"routing_key": routing_key, **orjson.loads(body)})


def title(message: IncidentNotification) -> str:
    """What happened, in one line: ``llama-17 is slow: nic_degradation on node-12``."""
    job, event = message.data.incident.job_id, message.data.event
    if event.kind == "resolved":
        return f"{job} {_RESOLVED[event.reason or 'silence']}"
    state = _STATES[event.kind].format(mode=_MODES[event.failure_mode])
    where = f" on {_places(event.place)}" if event.place else ""
    return f"{job} {state}: {event.cause or 'unknown cause'}{where}"


def _places(place: list[str]) -> str:
    more = f" and {len(place) - _NAMED} more" if len(place) > _NAMED else ""
    return ", ".join(place[:_NAMED]) + more


def _slack(message: IncidentNotification, summary: Summary | None) -> dict[str, Any]:
    """Block Kit for an incoming webhook: what happened, then the summary of the diagnosis."""
    data, head = message.data, title(message)
    told: dict[str, Any] = {} if summary is None else orjson.loads(slack(summary, data.incident.job_id))
    blocks: list[dict[str, Any]] = [
        {"type": "section", "text": {"type": "plain_text", "text": _cut(head, 3000)}}
    ]
    if data.url is not None:
        link = {"type": "mrkdwn", "text": f"<{data.url}|incident {data.incident.id[:8]}>"}
        blocks.append({"type": "context", "elements": [link]})
    return {**told, "text": without_links(head), "blocks": blocks}


def _alerts(message: IncidentNotification) -> list[dict[str, Any]]:
    """Alerts of Alertmanager's API v2; labels identify an alert, so a changed cause ends one alert."""
    event = message.data.event
    ends = message.timestamp if event.kind == "resolved" else message.timestamp + ALERT_LASTS
    alerts = [_alert(message, event.cause, ends)]
    if (
        event.kind in ("confirmed", "cause_changed", "cause_uncertain")
        and event.previous_cause != event.cause
    ):
        alerts.append(_alert(message, event.previous_cause, message.timestamp))
    return alerts


def _alert(message: IncidentNotification, cause: str | None, ends: datetime) -> dict[str, Any]:
    incident, event, told = message.data.incident, message.data.event, message.data.summary
    labels = {
        "alertname": ALERT_NAME,
        "job_id": incident.job_id,
        "incident_id": incident.id,
        "cause": cause or "unknown",
    }
    annotations = {
        "summary": title(message),
        "place": ", ".join(event.place),
        "seconds_lost": f"{incident.seconds_lost:.6g}",
        "gpu_hours_lost": f"{incident.gpu_hours_lost:.6g}",
        **({} if told is None else _details(told)),
    }
    alert: dict[str, Any] = {
        "labels": labels,
        "annotations": {name: text for name, text in annotations.items() if text},
        "startsAt": min(incident.opened_at, ends).isoformat(),
        "endsAt": ends.isoformat(),
    }
    return alert if message.data.url is None else {**alert, "generatorURL": message.data.url}


def _page(message: IncidentNotification) -> dict[str, Any]:
    """An event of PagerDuty's Events API v2; the incident is its deduplication key."""
    incident, event = message.data.incident, message.data.event
    found: dict[str, Any] = {
        "event_action": "resolve" if event.kind == "resolved" else "trigger",
        "dedup_key": incident.id,
        "client": "straggler-rca",
        "payload": {
            "summary": _cut(title(message), _SUMMARY),
            "source": _cut(event.place[0] if event.place else incident.job_id, _SUMMARY),
            "severity": "critical" if event.failure_mode == "fail_stop" else "error",
            "timestamp": message.timestamp.isoformat(),
            "group": incident.job_id,
            "class": event.cause or event.failure_mode,
        },
    }
    if message.data.summary is not None:
        details = _details(message.data.summary)
        found["payload"]["custom_details"] = {name: _cut(text, _DETAIL) for name, text in details.items()}
    if message.data.url is not None:
        found["client_url"] = message.data.url
        found["links"] = [{"href": message.data.url, "text": "The incident"}]
    return found


def _details(told: IncidentSummary) -> dict[str, str]:
    """Parts of the summary by name, such as ``do_this``."""
    parts = {each.title.lower().replace(" ", "_"): "\n".join(each.lines) for each in told.parts}
    return {"headline": told.headline, **parts}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
