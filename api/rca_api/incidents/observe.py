"""What a diagnosis says about its window, and which of several diagnoses of one window is believed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
from sqlalchemy.orm import Session

from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.incidents import repository
from rca_api.incidents.tables import IncidentRow, ObservationRow
from rca_api.store.upsert import insert_if_absent

#: Verdicts by what they are believed against others of the same bounds. Two jobs that use one name, or a
#: window that was posted again with its late samples, must not hide a fault behind a healthy window.
_BELIEVED = ("unsure", "healthy", "sick")
#: Nodes or ranks that are remembered of one window.
_MOST_PLACES = 64


def note(session: Session, row: DiagnosisRow, at: datetime, skew_seconds: float) -> ObservationRow | None:
    """Note what a diagnosis said about its window; None if that is nothing new.

    The same content again, whatever is said of it this time, is nothing new; other content with the same
    bounds is, if its verdict is believed more.
    """
    if row.document is None:
        return None
    key = {"job_id": row.job_id, "window_end": row.window_end, "window_start": row.window_start}
    ahead = row.window_end > at.timestamp() + skew_seconds
    told = _said(orjson.loads(row.document))
    said = {"diagnosis_id": row.id, "observed_at": at, "ahead": ahead, **told}
    if insert_if_absent(session, ObservationRow, **key, **said):
        return session.get_one(ObservationRow, tuple(key.values()))
    held = session.get_one(ObservationRow, tuple(key.values()), populate_existing=True)
    before = session.get_one(DiagnosisRow, held.diagnosis_id)
    more = _BELIEVED.index(said["verdict"]) > _BELIEVED.index(held.verdict)
    if before.window_digest == row.window_digest or not more:
        return None
    for name, value in said.items():
        setattr(held, name, value)
    session.flush()
    if held.incident_id is not None:
        repository.recount(session, session.get_one(IncidentRow, held.incident_id))
    return held


def _said(told: dict[str, Any]) -> dict[str, Any]:
    healthy = told["failure_mode"] == "healthy"
    slow, steps = told["slowdown"], told["quality"]["steps_used"]
    return {
        "verdict": "unsure" if told["abstained"] else "healthy" if healthy else "sick",
        "failure_mode": told["failure_mode"],
        "probability": told["failure_mode_probability"][told["failure_mode"]],
        "cause": told["causes"][0]["cause"] if told["causes"] else None,
        "place": _place(told),
        # A number that is not known is null in the document.
        "seconds_lost": 0.0 if healthy else max(0.0, slow["seconds_per_step"] or 0.0) * steps,
        "gpu_hours_lost": 0.0 if healthy else max(0.0, slow["gpu_hours_lost"] or 0.0),
    }


def _place(told: dict[str, Any]) -> list[str] | None:
    """Where the first cause is, else the first straggler: its nodes, else its ranks."""
    first = next(iter([*told["causes"], *told["stragglers"]]), None)
    if first is None:
        return None
    places = sorted(first["nodes"]) or [f"rank {rank}" for rank in sorted(first["ranks"])]
    return places[:_MOST_PLACES] or None
