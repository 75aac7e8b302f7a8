"""Exposures and blames of nodes in the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

from sqlalchemy import ColumnElement, Select, Table, case, func, select
from sqlalchemy.orm import Session

from rca_api.diagnoses.tables import BlameRow, DiagnosisRow
from rca_api.nodes.lemons import Blame
from rca_api.nodes.tables import NodeExposureRow
from rca_api.store.upsert import insert_of

#: What a blame weighs where it is as likely the workload's fault (a crash, a hang).
EITHER = 0.5


@dataclass
class Record:
    """What is known of one node."""

    node: str
    jobs: int
    windows: int
    first_seen: float
    last_seen: float
    blames: list[Blame] = field(default_factory=list)
    highest_seconds_per_step: float = 0.0


def expose(session: Session, nodes: Sequence[str], row: DiagnosisRow, at: datetime) -> None:
    """Note that a window of a job ran on nodes."""
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


def against_node() -> list[ColumnElement[bool]]:
    """Conditions of a blame that counts against its node: confident, and not the workload's business."""
    return [
        BlameRow.node.is_not(None),
        BlameRow.owner != "workload",
        DiagnosisRow.state == "done",
        DiagnosisRow.abstained.is_(False),
    ]


def records(
    session: Session, *, since: datetime, nodes: Sequence[str] | None = None, besides: str | None = None
) -> list[Record]:
    """What jobs watched since a moment say about nodes.

    Parameters
    ----------
    nodes : sequence of str, optional
        All nodes if not given.
    besides : str, optional
        Job that is left out.
    """
    exposures = (
        select(
            NodeExposureRow.node,
            func.count(),
            func.sum(NodeExposureRow.windows),
            func.min(NodeExposureRow.first_seen),
            func.max(NodeExposureRow.last_seen),
        )
        .where(NodeExposureRow.updated_at >= since)
        .group_by(NodeExposureRow.node)
    )
    if nodes is not None:
        exposures = exposures.where(NodeExposureRow.node.in_(nodes))
    if besides is not None:
        exposures = exposures.where(NodeExposureRow.job_id != besides)
    found = {row[0]: Record(*row) for row in session.execute(exposures)}
    for node, start, end, probability, seconds in session.execute(_blames(since, nodes, besides)):
        if node in found:
            found[node].blames.append(Blame(start, end, probability))
            found[node].highest_seconds_per_step = max(found[node].highest_seconds_per_step, seconds)
    return list(found.values())


def _blames(
    since: datetime, nodes: Sequence[str] | None, besides: str | None
) -> Select[str | None, float, float, float, float]:
    """One row per node and job in which it was blamed."""
    weight = case((BlameRow.owner == "either", EITHER), else_=1.0)
    statement = (
        select(
            BlameRow.node,
            func.min(DiagnosisRow.window_start),
            func.max(DiagnosisRow.window_end),
            func.max(BlameRow.probability * weight),
            func.max(BlameRow.seconds_per_step),
        )
        .join(DiagnosisRow, DiagnosisRow.id == BlameRow.diagnosis_id)
        .where(*against_node(), DiagnosisRow.created_at >= since)
        .group_by(BlameRow.node, DiagnosisRow.job_id)
        .order_by(BlameRow.node, DiagnosisRow.job_id)
    )
    if nodes is not None:
        statement = statement.where(BlameRow.node.in_(nodes))
    if besides is not None:
        statement = statement.where(DiagnosisRow.job_id != besides)
    return statement


def history(node: str) -> Select[BlameRow]:
    """Select every blame of a node, the workload's included."""
    return (
        select(BlameRow)
        .join(DiagnosisRow, DiagnosisRow.id == BlameRow.diagnosis_id)
        .where(BlameRow.node == node, DiagnosisRow.state == "done")
    )
