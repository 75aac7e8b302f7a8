"""Exposures and blames of nodes in the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple, cast

import orjson
from sqlalchemy import Index, Select, String, Table, and_, case, delete, func, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from rca.sources.labels import LabelledCause
from rca.window.causes import SPECS
from rca_api.diagnoses.tables import BlameRow, DiagnosisRow
from rca_api.feedback import labels, repository
from rca_api.feedback.tables import FeedbackRow
from rca_api.incidents.tables import ObservationRow
from rca_api.nodes.fault_prior import WEIGHTS, JobBlame
from rca_api.shell.store.base import Base, UtcDateTime
from rca_api.shell.store.deletion import insert_of


class NodeExposureRow(Base):
    """A node with a verdict in the diagnosed windows of a job."""

    __tablename__ = "node_exposures"
    #: Holds all that the list of nodes needs, so that it does not read the rows themselves.
    __table_args__ = (
        Index("ix_node_exposures_summary", "node", "updated_at", "windows", "first_seen", "last_seen"),
    )

    node: Mapped[str] = mapped_column(String(256), primary_key=True)
    job_id: Mapped[str] = mapped_column(String(256), primary_key=True)
    #: Begin of the earliest and end of the latest window, Unix seconds.
    first_seen: Mapped[float]
    last_seen: Mapped[float]
    windows: Mapped[int]
    #: Service's clock; decides which rows are recent.
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


@dataclass
class NodeRecord:
    """What a node is judged by: the number of jobs with a verdict about it, and its blames."""

    node: str
    jobs: int
    blames: list[JobBlame] = field(default_factory=list)
    highest_seconds_per_step: float = 0.0


class Span(NamedTuple):
    """Windows with a verdict about a node; begin of the first and end of the last one, Unix seconds."""

    windows: int
    first_seen: float
    last_seen: float


def expose(session: Session, nodes: Sequence[str], row: DiagnosisRow, at: datetime) -> None:
    """Record that a window of a job has a verdict about these nodes."""
    session.flush()
    insert = insert_of(session, cast("Table", NodeExposureRow.__table__))
    held, new = NodeExposureRow, insert.excluded
    changed = {
        "first_seen": case((new.first_seen < held.first_seen, new.first_seen), else_=held.first_seen),
        "last_seen": case((new.last_seen > held.last_seen, new.last_seen), else_=held.last_seen),
        "windows": held.windows + 1,
        "updated_at": new.updated_at,
    }
    window = {"first_seen": row.window_start, "last_seen": row.window_end, "windows": 1, "updated_at": at}
    rows = [{"node": node, "job_id": row.job_id, **window} for node in nodes]
    if rows:
        session.execute(insert.on_conflict_do_update(index_elements=["node", "job_id"], set_=changed), rows)


def unexpose(session: Session, nodes: Sequence[str], job_id: str) -> None:
    """Take back what `expose` has recorded for one window, which is no longer observed."""
    row = NodeExposureRow
    mine = and_(row.node.in_(nodes), row.job_id == job_id)
    session.execute(delete(row).where(mine, row.windows <= 1))
    seen = ObservationRow
    rest = select(func.min(seen.window_start), func.max(seen.window_end)).where(
        seen.job_id == job_id, seen.verdict.in_(("healthy", "sick"))
    )
    first, last = session.execute(rest).one()
    changed: dict[str, Any] = {"windows": row.windows - 1}
    if first is not None:
        changed["first_seen"] = case((row.first_seen < first, first), else_=row.first_seen)
        changed["last_seen"] = case((row.last_seen > last, last), else_=row.last_seen)
    session.execute(update(row).where(mine).values(changed))


def records(
    session: Session, *, since: datetime, nodes: Sequence[str] | None = None, exclude_job: str | None = None
) -> list[NodeRecord]:
    """Records of nodes from jobs observed since a moment.

    Parameters
    ----------
    nodes : sequence of str, optional
        All nodes if not given.
    exclude_job : str, optional
        Job whose diagnoses do not count.
    """
    # Only the count, which takes half of the time: a year has hundreds of thousands of these rows.
    exposures = (
        select(NodeExposureRow.node, func.count())
        .where(NodeExposureRow.updated_at >= since)
        .group_by(NodeExposureRow.node)
    )
    if nodes is not None:
        exposures = exposures.where(NodeExposureRow.node.in_(nodes))
    if exclude_job is not None:
        exposures = exposures.where(NodeExposureRow.job_id != exclude_job)
    found = {row[0]: NodeRecord(*row) for row in session.execute(exposures)}
    words = corrections(session, since, exclude_job)
    spoken = [word.diagnosis_id for word in words]
    for node, job, end, start, probability, seconds in session.execute(
        _blames(since, nodes, exclude_job).where(BlameRow.diagnosis_id.not_in(spoken))
    ):
        if node in found:
            found[node].blames.append(JobBlame(job, end, start, probability))
            found[node].highest_seconds_per_step = max(found[node].highest_seconds_per_step, seconds)
    _correct(session, found, words, None if nodes is None else set(nodes))
    return list(found.values())


def spans(session: Session, found: Sequence[NodeRecord], *, since: datetime) -> dict[str, Span]:
    """When the nodes of records were seen in jobs observed since a moment.

    A node that only feedback blames has no window; its span is that of the first blame. A node that lost
    all of its rows since it was read is left out.
    """
    held = NodeExposureRow
    rows = (
        select(held.node, func.sum(held.windows), func.min(held.first_seen), func.max(held.last_seen))
        .where(held.updated_at >= since, held.node.in_([record.node for record in found]))
        .group_by(held.node)
    )
    blamed = {
        each.node: Span(0, each.blames[0].last_start, each.blames[0].first_end)
        for each in found
        if each.blames
    }
    return blamed | {row[0]: Span(*row[1:]) for row in session.execute(rows)}


def _blames(
    since: datetime, nodes: Sequence[str] | None, exclude_job: str | None
) -> Select[str | None, str, float, float, float, float]:
    """Select the blames of nodes; those of one job with the same probability are one row."""
    weight = case(WEIGHTS, value=BlameRow.owner)
    level = func.round(BlameRow.probability * weight * 100)
    statement = (
        select(
            BlameRow.node,
            ObservationRow.job_id,
            func.min(ObservationRow.window_end),
            func.max(ObservationRow.window_start),
            func.max(BlameRow.probability * weight),
            func.max(BlameRow.seconds_per_step),
        )
        .join(ObservationRow, ObservationRow.diagnosis_id == BlameRow.diagnosis_id)
        .where(
            BlameRow.node.is_not(None),
            BlameRow.owner != "workload",
            ObservationRow.verdict == "sick",
            ObservationRow.observed_at >= since,
        )
        .group_by(BlameRow.node, ObservationRow.job_id, level)
        .order_by(BlameRow.node, ObservationRow.job_id, level)
    )
    if nodes is not None:
        statement = statement.where(BlameRow.node.in_(nodes))
    if exclude_job is not None:
        statement = statement.where(ObservationRow.job_id != exclude_job)
    return statement


def _correct(
    session: Session, found: dict[str, NodeRecord], words: Sequence[NodeCorrection], wanted: set[str] | None
) -> None:
    """Add the blames by people, also for nodes without a verdict in that job."""
    blaming = [word for word in words if word.blamed]
    if not blaming:
        return
    judged = select(NodeExposureRow.node, NodeExposureRow.job_id).where(
        NodeExposureRow.node.in_({node for word in blaming for node in word.blamed}),
        NodeExposureRow.job_id.in_({word.job_id for word in blaming}),
    )
    jobs = {(node, job) for node, job in session.execute(judged)}
    for word in blaming:
        for node in set(word.blamed) if wanted is None else wanted.intersection(word.blamed):
            record = found.setdefault(node, NodeRecord(node, 0))
            record.jobs += (node, word.job_id) not in jobs
            jobs.add((node, word.job_id))
            record.blames.append(JobBlame(word.job_id, word.end, word.start, word.blamed[node]))


def history(node: str) -> Select[BlameRow]:
    """Select all blames of a node, including causes of the workload."""
    return (
        select(BlameRow)
        .join(DiagnosisRow, DiagnosisRow.id == BlameRow.diagnosis_id)
        .where(BlameRow.node == node, DiagnosisRow.state == "done")
    )


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
