"""`/v1/nodes`: nodes by lemon probability, and the history of one node."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy.orm import Session

from rca_api.diagnoses.tables import BlameRow, DiagnosisRow
from rca_api.incidents.schemas import moment
from rca_api.incidents.tables import ObservationRow
from rca_api.nodes import repository
from rca_api.nodes.fault_prior import THRESHOLD
from rca_api.nodes.repository import NodeRecord, corrections
from rca_api.nodes.schemas import NodeBlame, NodeHistory, NodePage, read_node
from rca_api.nodes.service import RECORD_AGE, judged
from rca_api.shell.requests.pagination import Paging, content_of, no_cursor, written
from rca_api.shell.requests.parameters import Flag, Name
from rca_api.shell.requests.problems import COMMON, ProblemError, problem_responses
from rca_api.shell.security.access import Reader
from rca_api.shell.state import State
from rca_api.shell.store.base import now

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


@router.get("", summary="Rank nodes", responses=problem_responses(*COMMON))
def list_nodes(
    request: Request,
    _: Reader,
    paging: Paging,
    lemons: Annotated[Flag, Query(description="List only lemons.")] = False,
) -> NodePage:
    """List the nodes of the jobs of the last 90 days, highest lemon probability first.

    A node that several jobs blamed independently is a lemon; a node that was blamed once is not. Every job
    without a blame lowers the probability.
    """
    state, since = State.of(request), now() - RECORD_AGE
    prior = state.settings.node_lemon_prior
    with state.database.reading() as session:
        found = repository.records(session, since=since)
        ranked = [Ranked(record, judged(record, prior)) for record in found]
        kept = [each for each in ranked if each.probability >= THRESHOLD or not lemons]
        listed, following = ranked_page(kept, paging.limit, paging.cursor)
        spans = repository.spans(session, [each.record for each in listed], since=since)
    paging.link(following)
    items = [
        read_node(record, spans[record.node], probability)
        for record, probability in listed
        if record.node in spans
    ]
    return NodePage(items=items, next=following)


@router.get(
    "/{node:name}/history",
    summary="Show the blames of a node",
    responses=problem_responses(*COMMON, "not-found"),
)
def show_history(request: Request, node: Annotated[Name, Path()], _: Reader, paging: Paging) -> NodeHistory:
    """Show all blames of a node with job and time, newest first, and its lemon probability."""
    state, since = State.of(request), now() - RECORD_AGE
    with state.database.reading() as session:
        found = repository.records(session, since=since, nodes=[node])
        span = repository.spans(session, found, since=since).get(node)
        spoken = {each.diagnosis_id for each in corrections(session, since)}
        keys, read = (BlameRow.id,), partial(_read, session, overruled=spoken)
        blames = paging.read(session, repository.history(node), keys, read)
    if not found and not blames.items and paging.cursor is None:
        raise ProblemError("not-found", f"no diagnosis has a verdict about {node!r}")
    summary = None
    if found and span is not None:
        summary = read_node(found[0], span, judged(found[0], state.settings.node_lemon_prior))
    return NodeHistory(node=node, summary=summary, items=blames.items, next=blames.next)


def _read(session: Session, row: BlameRow, overruled: set[str]) -> NodeBlame:
    diagnosis = session.get_one(DiagnosisRow, row.diagnosis_id)
    key = (diagnosis.job_id, diagnosis.window_end, diagnosis.window_start)
    observed = session.get(ObservationRow, key)
    return NodeBlame(
        diagnosis_id=diagnosis.id,
        incident_id=observed.incident_id if observed is not None else None,
        job_id=diagnosis.job_id,
        window_start=moment(diagnosis.window_start),
        window_end=moment(diagnosis.window_end),
        cause=row.cause,
        owner=row.owner,
        probability=row.probability,
        seconds_per_step=row.seconds_per_step,
        abstained=bool(diagnosis.abstained),
        overruled=observed is not None and observed.diagnosis_id in overruled,
    )


class Ranked(NamedTuple):
    """A node and its lemon probability."""

    record: NodeRecord
    probability: float


def ranked_page(nodes: Iterable[Ranked], limit: int, cursor: str | None) -> tuple[list[Ranked], str | None]:
    """Sort nodes by lemon probability, highest first; gives one page and the cursor of the next.

    Raises
    ------
    ProblemError
        422 if the cursor is not valid.
    """
    ordered = sorted(nodes, key=_key)
    if cursor is not None:
        last = _read_cursor(cursor)
        ordered = [node for node in ordered if _key(node) > last]
    more = len(ordered) > limit
    return ordered[:limit], written(_key(ordered[limit - 1])) if more else None


def _key(node: Ranked) -> tuple[float, str]:
    return -node.probability, node.record.node


def _read_cursor(cursor: str) -> tuple[float, str]:
    try:
        probability, name = content_of(cursor)
        if not isinstance(probability, float) or not isinstance(name, str):
            raise TypeError
    except (ValueError, TypeError):
        raise no_cursor() from None
    return probability, name
