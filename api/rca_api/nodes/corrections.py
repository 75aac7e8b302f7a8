"""What people agree on about a window takes the place of what its diagnosis blamed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

import orjson
from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from rca.telemetry.causes import SPECS
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.feedback import labels, repository
from rca_api.feedback.tables import FeedbackRow
from rca_api.incidents.tables import ObservationRow
from rca_api.nodes.fault_prior import WEIGHTS


@dataclass(frozen=True)
class Correction:
    """The truth about one window, by people none of whom disagrees.

    Attributes
    ----------
    diagnosis_id : str
        The diagnosis that spoke for the window; its blames no longer count.
    blamed : dict of str to float
        Weight of the blame of each node that was at fault.
    """

    diagnosis_id: str
    job_id: str
    start: float
    end: float
    blamed: dict[str, float]


def corrections(session: Session, since: datetime, besides: str | None = None) -> list[Correction]:
    """What people agree on about windows taken in since a moment, of all jobs but one."""
    # A window may have been diagnosed several times: one of them spoke, and people may mean another.
    about = and_(
        ObservationRow.job_id == DiagnosisRow.job_id,
        ObservationRow.window_end == DiagnosisRow.window_end,
        ObservationRow.window_start == DiagnosisRow.window_start,
    )
    statement = (
        select(ObservationRow, FeedbackRow, DiagnosisRow.document)
        .join(DiagnosisRow, about)
        .join(FeedbackRow, FeedbackRow.diagnosis_id == DiagnosisRow.id)
        .where(repository.is_current(), ObservationRow.observed_at >= since)
        .order_by(ObservationRow.diagnosis_id)
    )
    if besides is not None:
        statement = statement.where(ObservationRow.job_id != besides)
    found: list[Correction] = []
    for _, rows in groupby(session.execute(statement), key=lambda row: row[0].diagnosis_id):
        held = list(rows)
        documents = {feedback.id: document for _, feedback, document in held}
        words = repository.newest_by_author(feedback for _, feedback, _ in held)
        if len({word.meaning for word in words}) == 1:
            found.append(_correction(held[0][0], words[-1], documents[words[-1].id]))
    return found


def _correction(seen: ObservationRow, word: FeedbackRow, document: bytes | None) -> Correction:
    told = orjson.loads(document or b'{"causes": [], "stragglers": []}')
    blamed: dict[str, float] = {}
    for cause in labels.read(word.label).causes:
        weight = WEIGHTS[SPECS[cause.cause].owner]
        for node in labels.nodes_of(cause, told) if weight else ():
            blamed[node] = max(weight, blamed.get(node, 0.0))
    return Correction(seen.diagnosis_id, seen.job_id, seen.window_start, seen.window_end, blamed)
