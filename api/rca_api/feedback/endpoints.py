"""`/v1/diagnoses/{id}/feedback` and `/v1/feedback`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, status
from sqlalchemy import Select, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from rca_api.diagnoses.repository import DONE, find
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.feedback import labels, repository
from rca_api.feedback.schemas import (
    DiagnosisFeedback,
    Feedback,
    FeedbackPage,
    NewFeedback,
    Verdict,
    read_feedback,
    read_side,
)
from rca_api.feedback.tables import FeedbackRow
from rca_api.shell.requests.pagination import AskedPage, Page, Paging
from rca_api.shell.requests.parameters import Flag, Moment
from rca_api.shell.requests.problems import COMMON, ProblemError, problem_responses
from rca_api.shell.requests.request_bodies import BODY_PROBLEMS, SmallBodies
from rca_api.shell.security.access import FeedbackGiver
from rca_api.shell.security.principal import Principal
from rca_api.shell.state import State
from rca_api.shell.store.base import now

router = APIRouter(prefix="/v1", tags=["feedback"], route_class=SmallBodies)

DiagnosisId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
_ONE = problem_responses(*COMMON, "not-found")
_JUDGED = problem_responses(*COMMON, "not-found", "conflict")


@router.post(
    "/diagnoses/{diagnosis_id}/feedback",
    status_code=status.HTTP_201_CREATED,
    summary="Confirm or correct a diagnosis",
    responses=problem_responses(*COMMON, *BODY_PROBLEMS, "not-found", "conflict"),
)
def give_feedback(
    request: Request, diagnosis_id: DiagnosisId, given: NewFeedback, caller: FeedbackGiver
) -> Feedback:
    """Confirm a diagnosis, or correct it with a label.

    All feedback is kept with its author. Of each author the newest counts. If authors disagree, all sides are
    shown and none is used in training.
    """
    try:
        with State.of(request).database.session() as session:
            return _given(session, diagnosis_id, given, caller)
    except IntegrityError:
        # It was deleted meanwhile.
        raise _unknown(diagnosis_id) from None


def _given(session: Session, diagnosis_id: str, given: NewFeedback, caller: Principal) -> Feedback:
    diagnosis = _done(find(session, diagnosis_id), diagnosis_id)
    label = labels.checked(given.label, diagnosis) if given.label is not None else labels.confirmed(diagnosis)
    row = FeedbackRow(
        diagnosis_id=diagnosis_id,
        verdict=given.verdict,
        label=label.model_dump(mode="json"),
        meaning=labels.meaning(label),
        given_by=caller.id,
        given_by_name=caller.name,
        reported_by=given.reported_by,
        note=given.note,
    )
    session.add(row)
    session.flush()
    return read_feedback(row, conflict=bool(repository.disputed(session, [diagnosis_id])))


@router.get("/diagnoses/{diagnosis_id}/feedback", summary="List feedback on a diagnosis", responses=_JUDGED)
def list_diagnosis_feedback(
    request: Request, diagnosis_id: DiagnosisId, _: FeedbackGiver, paging: Paging
) -> DiagnosisFeedback:
    """List all feedback on a diagnosis, withdrawn feedback included, and the sides of a conflict."""
    with State.of(request).database.reading() as session:
        _done(session.get(DiagnosisRow, diagnosis_id), diagnosis_id)
        statement = select(FeedbackRow).where(FeedbackRow.diagnosis_id == diagnosis_id)
        found = _page(session, statement, paging)
        sides = repository.sides(repository.current_feedback(session, diagnosis_id))
    return DiagnosisFeedback(
        conflict=len(sides) > 1, sides=[read_side(side) for side in sides], items=found.items, next=found.next
    )


@router.delete(
    "/diagnoses/{diagnosis_id}/feedback/{feedback_id}",
    summary="Withdraw feedback",
    responses=_ONE,
)
def withdraw_feedback(
    request: Request, diagnosis_id: DiagnosisId, feedback_id: DiagnosisId, caller: FeedbackGiver
) -> Feedback:
    """Withdraw your own feedback. It stays in the lists and is no longer used in training."""
    with State.of(request).database.session() as session:
        statement = select(FeedbackRow).where(
            FeedbackRow.id == feedback_id, FeedbackRow.diagnosis_id == diagnosis_id
        )
        row = session.scalars(statement.with_for_update()).one_or_none()
        if row is None:
            raise ProblemError("not-found", f"there is no feedback {feedback_id} on this diagnosis")
        if row.given_by != caller.id:
            raise ProblemError("forbidden", "only its author may withdraw feedback")
        row.withdrawn_at = row.withdrawn_at or now()
        session.flush()
        return read_feedback(row, conflict=bool(repository.disputed(session, [diagnosis_id])))


@router.get("/feedback", summary="List all feedback", responses=problem_responses(*COMMON))
def list_feedback(
    request: Request,
    _: FeedbackGiver,
    paging: Paging,
    verdict: Annotated[Verdict | None, Query()] = None,
    conflict: Annotated[
        Flag | None, Query(description="true: only on diagnoses with a conflict; false: only on the others.")
    ] = None,
    since: Annotated[Moment | None, Query(description="Only feedback from this time or later.")] = None,
) -> FeedbackPage:
    """List feedback on all diagnoses, newest first."""
    statement = select(FeedbackRow)
    if verdict is not None:
        statement = statement.where(FeedbackRow.verdict == verdict)
    if since is not None:
        statement = statement.where(FeedbackRow.created_at >= since)
    if conflict is not None:
        is_disputed = FeedbackRow.diagnosis_id.in_(repository.all_disputed())
        statement = statement.where(is_disputed if conflict else ~is_disputed)
    with State.of(request).database.reading() as session:
        found = _page(session, statement, paging)
    return FeedbackPage(items=found.items, next=found.next)


def _page(session: Session, statement: Select[FeedbackRow], paging: AskedPage) -> Page[Feedback]:
    keys = (FeedbackRow.created_at, FeedbackRow.id)
    found: Page[FeedbackRow] = paging.read(session, statement, keys, lambda row: row)
    disputed = repository.disputed(session, [row.diagnosis_id for row in found.items])
    items = [read_feedback(row, conflict=row.diagnosis_id in disputed) for row in found.items]
    return Page(items, found.next)


def _done(row: DiagnosisRow | None, diagnosis_id: str) -> DiagnosisRow:
    if row is None:
        raise _unknown(diagnosis_id)
    if row.state != DONE:
        raise ProblemError("conflict", f"the diagnosis is {row.state}; feedback needs a finished one")
    return row


def _unknown(diagnosis_id: str) -> ProblemError:
    return ProblemError("not-found", f"there is no diagnosis {diagnosis_id}")
