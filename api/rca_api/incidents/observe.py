"""The observation of a window: the verdict of one diagnosis, chosen if the window has several."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
from sqlalchemy.orm import Session

from rca.window.causes import UNKNOWN
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.incidents import repository
from rca_api.incidents.observation import Verdict
from rca_api.incidents.tables import IncidentRow, ObservationRow
from rca_api.shell.store.deletion import insert_if_absent

#: Verdicts in ascending precedence among windows with the same bounds. Two jobs may have the same name, and a
#: window may be posted again with late samples. In both cases a healthy window must not hide a fault.
_PRECEDENCE = ("unsure", "healthy", "suspect", "sick")
#: Reason of abstention without step times.
_UNTIMED = "no_step_times"
#: Reason of abstention where exporters alone show a lasting fault of a machine.
_STANDS_OUT = "machine_stands_out"
#: Reasons of abstention that leave no doubt that the job is slow or stopped, only why.
_CAUSE_IS_OPEN = frozenset({"cause_not_certain", "nobody_stands_out", "no_step_times", "too_short"})
#: Least probability of the failure mode of a suspect.
SUSPECT_PROBABILITY = 0.95
#: A fault is over if it ended so long before the end of a window, seconds.
MIN_AFTER = 30.0
#: Most nodes or ranks that are stored for one window.
_MAX_PLACES = 64


def record(session: Session, row: DiagnosisRow, at: datetime, skew_seconds: float) -> ObservationRow | None:
    """Store the observation of a diagnosis; None if it is not new.

    A window with the same content is not new, even with another diagnosis. Other content with the same bounds
    is new if its verdict has precedence.
    """
    if row.document is None:
        return None
    key = {"job_id": row.job_id, "window_end": row.window_end, "window_start": row.window_start}
    ahead = row.window_end > at.timestamp() + skew_seconds
    document = orjson.loads(row.document)
    verdict = {
        **verdict_of(document),
        "onset": _onset(document, row.window_start),
        "over": _over(document, row.window_end),
    }
    values = {"diagnosis_id": row.id, "observed_at": at, "ahead": ahead, **verdict}
    if insert_if_absent(session, ObservationRow, **key, **values):
        return session.get_one(ObservationRow, tuple(key.values()))
    held = session.get_one(ObservationRow, tuple(key.values()), populate_existing=True)
    before = session.get(DiagnosisRow, held.diagnosis_id)
    more = _PRECEDENCE.index(values["verdict"]) > _PRECEDENCE.index(held.verdict)
    if before is None or before.window_digest == row.window_digest or not more:
        return None
    for name, value in values.items():
        setattr(held, name, value)
    session.flush()
    if held.incident_id is not None:
        repository.recount(session, session.get_one(IncidentRow, held.incident_id))
    return held


def verdict_of(document: dict[str, Any]) -> dict[str, Any]:
    """What a diagnosis says about its window: columns of `ObservationRow`."""
    healthy, suspect = document["failure_mode"] == "healthy", _is_suspect(document)
    named = not suspect or _reason(document) == _STANDS_OUT
    slow, steps = document["slowdown"], document["quality"]["steps_used"]
    return {
        "verdict": _certainty(document),
        "failure_mode": document["failure_mode"],
        "probability": document["failure_mode_probability"][document["failure_mode"]],
        "cause": document["causes"][0]["cause"] if document["causes"] and named else None,
        "place": _place(document),
        "untimed": document["quality"]["steps_used"] == 0,
        # Unknown numbers are null in the document.
        "seconds_lost": 0.0 if healthy else max(0.0, slow["seconds_per_step"] or 0.0) * steps,
        "gpu_hours_lost": 0.0 if healthy else max(0.0, slow["gpu_hours_lost"] or 0.0),
    }


def _certainty(document: dict[str, Any]) -> Verdict:
    if _reason(document) == _UNTIMED and document.get("until") is not None:
        # What exporters showed is over.
        return "healthy"
    if document["abstained"] or _cause_is_unknown(document):
        return "suspect" if _is_suspect(document) else "unsure"
    return "healthy" if document["failure_mode"] == "healthy" else "sick"


def _is_suspect(document: dict[str, Any]) -> bool:
    """Whether the diagnosis is certain of a fault, and does not name its cause."""
    mode, reason = document["failure_mode"], _reason(document)
    if mode == "healthy":
        return False
    open_cause = _cause_is_unknown(document) or reason in _CAUSE_IS_OPEN
    certain = document["failure_mode_probability"][mode] >= SUSPECT_PROBABILITY
    return reason == _STANDS_OUT or bool(open_cause and certain)


def _reason(document: dict[str, Any]) -> str | None:
    """Code of the reason of abstention; None for a decided answer."""
    reason = document.get("abstention_reason")
    return None if reason is None else reason["code"]


def _cause_is_unknown(document: dict[str, Any]) -> bool:
    """Whether the answer is that no known cause explains the slowness: it names none for the incident."""
    causes = document["causes"]
    return bool(causes and not document["abstained"] and causes[0]["cause"] == UNKNOWN)


def _onset(document: dict[str, Any], window_start: float) -> float | None:
    """When the stragglers of a faulty window began to be late, else its begin; None without a fault."""
    if _certainty(document) not in ("sick", "suspect"):
        return None
    since = document.get("since")
    return window_start if since is None else datetime.fromisoformat(since).timestamp()


def _over(document: dict[str, Any], window_end: float) -> float | None:
    """When the fault of a faulty window was over; None if that is not certain."""
    until = document.get("until")
    if until is None or _certainty(document) not in ("sick", "suspect"):
        return None
    over = datetime.fromisoformat(until).timestamp()
    return over if window_end - over >= MIN_AFTER else None


def _place(document: dict[str, Any]) -> list[str] | None:
    """Nodes, else ranks, of the first cause, else of the first straggler."""
    first = next(iter([*document["causes"], *document["stragglers"]]), None)
    if first is None:
        return None
    places = sorted(first["nodes"]) or [f"rank {rank}" for rank in sorted(first["ranks"])]
    return places[:_MAX_PLACES] or None
