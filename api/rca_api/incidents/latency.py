"""How long each stage took from the onset of a fault to its announcement, on the service's clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.incidents.schemas import Delay, Incident, IncidentEvent
from rca_api.jobs.tables import SegmentRow


def delays(session: Session, incident: Incident, timeline: Sequence[IncidentEvent]) -> list[Delay]:
    """The stages of the diagnosis that opened an incident; empty without one.

    The service's clock is compared with that of the job, which has the onset.

    Parameters
    ----------
    timeline : sequence of IncidentEvent
        In the order of their announcement.
    """
    first = next((each for each in timeline if each.diagnosis_id is not None), None)
    row = None if first is None else session.get(DiagnosisRow, first.diagnosis_id)
    if first is None or row is None:
        return []
    # Later merges of segments keep the arrival of their newest row.
    arrived: datetime | None = session.scalar(
        select(func.max(SegmentRow.received_at)).where(
            SegmentRow.job_id == row.job_id,
            SegmentRow.begin <= row.window_end,
            SegmentRow.received_at <= row.created_at,
        )
    )
    reached = {
        "arrived": row.created_at if arrived is None else arrived,
        "noticed": row.created_at,
        "diagnosed": row.finished_at or first.at,
        "announced": first.at,
    }
    return [
        Delay.model_validate({"name": name, "at": at, "seconds": (at - incident.began).total_seconds()})
        for name, at in reached.items()
    ]
