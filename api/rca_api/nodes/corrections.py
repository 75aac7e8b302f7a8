"""Corrections by people: feedback that is not contradicted replaces the blames of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

import orjson
from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from rca.sources.labels import LabelledCause
from rca.window.causes import SPECS
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.feedback import labels, repository
from rca_api.feedback.tables import FeedbackRow
from rca_api.incidents.tables import ObservationRow
from rca_api.nodes.fault_prior import WEIGHTS


@dataclass(frozen=True)
class NodeCorrection:
    """The cause of one window as given by people who agree.

    Attributes
    ----------
    diagnosis_id : str
        The diagnosis observed for the window; its blames do not count any more.
    blamed : dict of str to float
        Weight of the blame of each faulty node.
    """

    diagnosis_id: str
    job_id: str
    start: float
    end: float
    blamed: dict[str, float]


def corrections(session: Session, since: datetime, exclude_job: str | None = None) -> list[NodeCorrection]:
    """Corrections of windows observed since a moment, except those of one job."""
    # A window may have several diagnoses. One of them was observed, and feedback may be about another.
    about = and_(
        ObservationRow.job_id == DiagnosisRow.job_id,
        ObservationRow.window_end == DiagnosisRow.window_end,
        ObservationRow.window_start == DiagnosisRow.window_start,
    )
    statement = (
        select(ObservationRow, FeedbackRow)
        .join(DiagnosisRow, about)
        .join(FeedbackRow, FeedbackRow.diagnosis_id == DiagnosisRow.id)
        .where(repository.is_current(), ObservationRow.observed_at >= since)
        .order_by(ObservationRow.diagnosis_id)
    )
    if exclude_job is not None:
        statement = statement.where(ObservationRow.job_id != exclude_job)
    found: list[NodeCorrection] = []
    for _, rows in groupby(session.execute(statement), key=lambda row: row[0].diagnosis_id):
        held = list(rows)
        words = repository.newest_by_author(feedback for _, feedback in held)
        if len({word.meaning for word in words}) == 1:
            found.append(_correction(session, held[0][0], words[-1]))
    return found


def _correction(session: Session, seen: ObservationRow, word: FeedbackRow) -> NodeCorrection:
    blamed: dict[str, float] = {}
    for cause in labels.read(word.label).causes:
        weight = WEIGHTS[SPECS[cause.cause].owner]
        for node in _nodes_of(session, cause, word.diagnosis_id) if weight else ():
            blamed[node] = max(weight, blamed.get(node, 0.0))
    return NodeCorrection(seen.diagnosis_id, seen.job_id, seen.window_start, seen.window_end, blamed)


def _nodes_of(session: Session, cause: LabelledCause, diagnosis_id: str) -> Iterable[str]:
    if cause.nodes or not cause.ranks:
        return cause.nodes
    # One document at a time: they may be large. Labels mostly name nodes.
    document = session.scalar(select(DiagnosisRow.document).where(DiagnosisRow.id == diagnosis_id))
    return () if document is None else labels.nodes_of(cause, orjson.loads(document))
