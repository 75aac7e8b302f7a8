"""Feedback in the database: current feedback and conflicts."""

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
    """Feedback with one meaning."""

    label: dict[str, Any]
    ids: list[str]


def is_current() -> ColumnElement[bool]:
    """The condition that feedback is the newest of its author on its diagnosis, and not withdrawn.

    So each author has one voice. An author is a caller together with `reported_by`, because many people may
    share one key.
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


def newest_by_author(rows: Iterable[FeedbackRow]) -> list[FeedbackRow]:
    """The newest feedback of each author, oldest first; for feedback on several diagnoses of one window."""
    newest: dict[tuple[str | None, str | None], FeedbackRow] = {}
    for row in sorted(rows, key=lambda row: (row.created_at, row.id)):
        # Moves the author to the end of the dictionary.
        newest.pop((row.given_by, row.reported_by), None)
        newest[row.given_by, row.reported_by] = row
    return list(newest.values())


def current_feedback(session: Session, diagnosis_id: str) -> list[FeedbackRow]:
    """Current feedback on a diagnosis, oldest first."""
    statement = select(FeedbackRow).where(FeedbackRow.diagnosis_id == diagnosis_id, is_current())
    return list(session.scalars(statement.order_by(FeedbackRow.created_at, FeedbackRow.id)))


def sides(rows: Iterable[FeedbackRow]) -> list[Side]:
    """Group feedback by meaning, the largest group first; more than one group is a conflict."""
    grouped: dict[str, list[FeedbackRow]] = {}
    for row in rows:
        grouped.setdefault(row.meaning, []).append(row)
    ordered = sorted(grouped.values(), key=lambda group: (-len(group), group[0].created_at, group[0].id))
    return [Side(group[0].label, [row.id for row in group]) for group in ordered]


def disputed(session: Session, diagnosis_ids: Iterable[str]) -> set[str]:
    """Those of the diagnoses whose feedback disagrees."""
    return set(session.scalars(all_disputed().where(FeedbackRow.diagnosis_id.in_(set(diagnosis_ids)))))


def all_disputed() -> Select[str]:
    """Select the diagnoses with feedback that disagrees."""
    return (
        select(FeedbackRow.diagnosis_id)
        .where(is_current())
        .group_by(FeedbackRow.diagnosis_id)
        .having(func.count(FeedbackRow.meaning.distinct()) > 1)
    )


def has_feedback() -> ColumnElement[bool]:
    """The condition on `WindowRow` that it has feedback: it will be training data."""
    judged = select(DiagnosisRow.window_digest).join(FeedbackRow, FeedbackRow.diagnosis_id == DiagnosisRow.id)
    return exists(judged.where(DiagnosisRow.window_digest == WindowRow.digest))
