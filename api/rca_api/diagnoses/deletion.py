"""Deletion of one diagnosis with everything that was derived from it, in one transaction."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete as delete_from
from sqlalchemy import select
from sqlalchemy.orm import Session

from rca_api.diagnoses.repository import QUEUED, RUNNING
from rca_api.diagnoses.tables import DiagnosisRow, WindowRow
from rca_api.feedback.tables import FeedbackRow
from rca_api.incidents import repository as incidents
from rca_api.incidents.service import IncidentTracker
from rca_api.incidents.tables import ObservationRow
from rca_api.nodes import repository as node_records
from rca_api.nodes.service import judged_nodes
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.store.deletion import delete_rows
from rca_api.stored_windows.retention import Retention


def delete(
    session: Session, diagnosis_id: str, tracker: IncidentTracker, windows: Retention, at: datetime
) -> None:
    """Delete a finished diagnosis, and its window unless another diagnosis uses it.

    Its blames, feedback, idempotency key and shadow comparison go with it. Node records no longer count its
    window. An incident that counted it is recounted, and resolved if it has no other window. Its announced
    events stay, without the id.

    Raises
    ------
    ProblemError
        ``not-found``, or ``conflict`` while the diagnosis is queued or running
    """
    known = session.get(DiagnosisRow, diagnosis_id)
    digest = None if known is None else known.window_digest
    # Locked in the order of all others: the window, the diagnosis, the job.
    window = None if digest is None else session.get(WindowRow, digest, with_for_update=True)
    row = session.get(DiagnosisRow, diagnosis_id, with_for_update=True, populate_existing=True)
    if row is None:
        raise ProblemError("not-found", f"there is no diagnosis {diagnosis_id!r}")
    if row.state in (QUEUED, RUNNING):
        raise ProblemError("conflict", f"the diagnosis is {row.state}", hint="delete it when it has ended")
    incidents.follow(session, row.job_id, at)
    seen = session.scalars(
        select(ObservationRow).where(ObservationRow.diagnosis_id == diagnosis_id)
    ).one_or_none()
    counted = None if seen is None else seen.incident_id
    exposed = [] if seen is None else judged_nodes(row)
    session.execute(delete_from(FeedbackRow).where(FeedbackRow.diagnosis_id == diagnosis_id))
    delete_rows(session, DiagnosisRow, [(diagnosis_id,)])
    node_records.unexpose(session, exposed, row.job_id)
    if counted is not None:
        tracker.withdraw(session, counted)
    if window is not None:
        windows.forget_unused(session, window)
