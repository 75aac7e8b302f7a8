"""Responses with a diagnosis: finished, queued, running or failed."""

from __future__ import annotations

import orjson
from fastapi import Response
from sqlalchemy.orm import Session

from rca_api.diagnoses import repository
from rca_api.diagnoses.schemas import PendingDiagnosis
from rca_api.diagnoses.stored import read_stored
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.diagnoses.work import HTML, MARKDOWN, rendered
from rca_api.shell.requests.decoding import JSON
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.state import State

OFFERED = (JSON, MARKDOWN, HTML)
ACCEPTED = 202
_RETRY_AFTER_SECONDS = "1"
#: How a stored document of the present format begins.
_PRESENT = b'{"format":2,'


def place(diagnosis_id: str) -> str:
    """Path of a diagnosis."""
    return f"/v1/diagnoses/{diagnosis_id}"


def finished(diagnosis_id: str, content: bytes, media_type: str) -> Response:
    """Answer with a diagnosis."""
    headers = {"Location": place(diagnosis_id), "Vary": "Accept"}
    return Response(content, media_type=media_type, headers=headers)


def current(state: State, diagnosis_id: str, accept: str) -> Response:
    """Answer with a stored diagnosis: 200 if it is finished, 202 if it is queued or running.

    Raises
    ------
    ProblemError
        ``not-found``, or ``diagnosis-failed`` with the problem of the diagnosis.
    """
    with state.database.reading() as session:
        row = repository.find(session, diagnosis_id)
    if row is None:
        raise ProblemError("not-found", f"there is no diagnosis {diagnosis_id!r}")
    if row.state == repository.FAILED:
        problem = orjson.loads(row.problem or b"{}")
        raise ProblemError("diagnosis-failed", problem.get("detail", "it failed"), problem=problem)
    if row.document is None:
        return _pending(row)
    return finished(row.id, _written(row.document, accept), accept)


def replay(state: State, diagnosis_id: str, accept: str) -> Response:
    """Answer a repeated request with the diagnosis of the first one."""
    response = current(state, diagnosis_id, accept)
    response.headers["Idempotency-Replayed"] = "true"
    return response


def _pending(row: DiagnosisRow) -> Response:
    content = PendingDiagnosis(
        diagnosis_id=row.id,
        state="running" if row.state == repository.RUNNING else "queued",
        created_at=row.created_at,
        job_id=row.job_id,
        window_id=row.window_id,
        problem=None if row.problem is None else orjson.loads(row.problem),
    )
    headers = {"Location": place(row.id), "Retry-After": _RETRY_AFTER_SECONDS}
    return Response(content.model_dump_json(), ACCEPTED, headers, JSON)


def _written(document: bytes, accept: str) -> bytes:
    """The stored document in a media type: an older format in the present one, a later one only as stored."""
    if accept == JSON and document.startswith(_PRESENT):
        return document
    try:
        diagnosis = read_stored(document)
    except ProblemError:
        if accept == JSON:
            return document
        raise
    return rendered(diagnosis, accept)


def finished_row(session: Session, diagnosis_id: str, otherwise: str) -> tuple[DiagnosisRow, bytes]:
    """A finished diagnosis and its document.

    Parameters
    ----------
    otherwise : str
        Ends the message about one that is not finished; its state comes before.

    Raises
    ------
    ProblemError
        ``not-found``, or ``conflict`` if it is not finished.
    """
    row = repository.find(session, diagnosis_id)
    if row is None:
        raise ProblemError("not-found", f"there is no diagnosis {diagnosis_id}")
    if row.state != repository.DONE or row.document is None:
        raise ProblemError("conflict", f"the diagnosis is {row.state}; {otherwise}")
    return row, row.document
