"""Feedback in the database, and who disagrees with whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, exists, func, select, tuple_
from sqlalchemy.orm import Session, aliased

from rca_api.diagnoses.tables import DiagnosisRow, WindowRow
from rca_api.feedback.tables import FeedbackRow


@dataclass(frozen=True)
class Side:
    """Feedback that says the same."""

    label: dict[str, Any]
    ids: list[str]


def stands() -> ColumnElement[bool]:
    """The condition that feedback is its author's last word on its diagnosis, withdrawn words aside.

    Who confirms six times is one voice, and who corrects oneself contradicts nobody. An author is a caller
    together with the person it reports for: many people may share one key.
    """
    newer = aliased(FeedbackRow)
    same_author = and_(
        newer.diagnosis_id == FeedbackRow.diagnosis_id,
        newer.given_by.is_not_distinct_from(FeedbackRow.given_by),
        newer.reported_by.is_not_distinct_from(FeedbackRow.reported_by),
    )
    later = tuple_(newer.created_at, newer.id) > tuple_(FeedbackRow.created_at, FeedbackRow.id)
    superseded = exists().where(newer.withdrawn_at.is_(None), same_author, later)
    return and_(FeedbackRow.withdrawn_at.is_(None), ~superseded)


def last_words(rows: Iterable[FeedbackRow]) -> list[FeedbackRow]:
    """Keep each author's newest feedback, oldest first: for feedback on several diagnoses of one window."""
    newest: dict[tuple[str | None, str | None], FeedbackRow] = {}
    for row in sorted(rows, key=lambda row: (row.created_at, row.id)):
        # Put at the end, where its newer word belongs.
        newest.pop((row.given_by, row.reported_by), None)
        newest[row.given_by, row.reported_by] = row
    return list(newest.values())


def standing(session: Session, diagnosis_id: str) -> list[FeedbackRow]:
    """Feedback on a diagnosis that stands, oldest first."""
    statement = select(FeedbackRow).where(FeedbackRow.diagnosis_id == diagnosis_id, stands())
    return list(session.scalars(statement.order_by(FeedbackRow.created_at, FeedbackRow.id)))


def sides(rows: Iterable[FeedbackRow]) -> list[Side]:
    """Group feedback by what it says, the side with most voices first; more than one side is a conflict."""
    grouped: dict[str, list[FeedbackRow]] = {}
    for row in rows:
        grouped.setdefault(row.meaning, []).append(row)
    ordered = sorted(grouped.values(), key=lambda group: (-len(group), group[0].created_at, group[0].id))
    return [Side(group[0].label, [row.id for row in group]) for group in ordered]


def disputed(session: Session, diagnosis_ids: Iterable[str]) -> set[str]:
    """Those of the diagnoses on which feedback disagrees."""
    return set(session.scalars(all_disputed().where(FeedbackRow.diagnosis_id.in_(set(diagnosis_ids)))))


def all_disputed() -> Select[str]:
    """Select the diagnoses on which feedback disagrees."""
    return (
        select(FeedbackRow.diagnosis_id)
        .where(stands())
        .group_by(FeedbackRow.diagnosis_id)
        .having(func.count(FeedbackRow.meaning.distinct()) > 1)
    )


def has_feedback() -> ColumnElement[bool]:
    """The condition on `WindowRow` that somebody judged a diagnosis of it: it is training data to come."""
    judged = select(DiagnosisRow.window_digest).join(FeedbackRow, FeedbackRow.diagnosis_id == DiagnosisRow.id)
    return exists(judged.where(DiagnosisRow.window_digest == WindowRow.digest))
