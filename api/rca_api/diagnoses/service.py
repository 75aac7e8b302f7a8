"""From a posted window to a stored answer, and the deletion of a diagnosis."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import delete as delete_from
from sqlalchemy import select
from sqlalchemy.orm import Session

from rca.deadline import Deadline
from rca.sources.read import TABLE_JOB
from rca_api.diagnoses import answers, work
from rca_api.diagnoses.keys import Hold, Key
from rca_api.diagnoses.repository import QUEUED, RUNNING
from rca_api.diagnoses.tables import DiagnosisRow, WindowRow
from rca_api.diagnoses.work import DiagnosisAnswer, StoredWindow
from rca_api.feedback.tables import FeedbackRow
from rca_api.incidents import repository as incidents
from rca_api.incidents.service import IncidentTracker
from rca_api.incidents.tables import ObservationRow
from rca_api.nodes import repository as node_records
from rca_api.nodes.service import judged_nodes
from rca_api.shell.processes.body import Received
from rca_api.shell.requests import request_bodies
from rca_api.shell.requests.admission import content_encoding
from rca_api.shell.requests.decoding import TABLE, Sent
from rca_api.shell.requests.negotiation import Preferences, choose
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.security.principal import Principal
from rca_api.shell.state import State
from rca_api.shell.store import time_limits
from rca_api.shell.store.database import StoreError
from rca_api.shell.store.deletion import delete_rows
from rca_api.stored_windows.retention import Retention

_KEY = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(frozen=True)
class Posted:
    """A received request for a diagnosis."""

    sent: Sent
    accept: str
    preferences: Preferences
    key: Key | None
    deadline: Deadline
    asked_by: str | None
    request_id: str


async def create(request: Request, principal: Principal, job_id: str) -> Response:
    """Answer one window, at once or with `Prefer: respond-async` later; a table gets `job_id`."""
    state = State.of(request)
    receiving = received(request, principal, answers.OFFERED, (*request_bodies.WINDOW_TYPES, TABLE), job_id)
    async with receiving as posted, held(state, posted.key) as hold:
        if isinstance(hold, str):
            response = await run_in_threadpool(answers.replay, state, hold, posted.accept)
        elif posted.preferences.respond_async:
            response = await _later(state, posted, hold)
        else:
            response = await _now(state, posted, hold)
        # For the log line of the request.
        request.state.diagnosis_id = response.headers["location"].rpartition("/")[2]
        return response


async def _now(state: State, posted: Posted, hold: Hold | None) -> Response:
    window, answer = await state.pool.run(
        work.diagnose,
        posted.sent,
        state.models.champion,
        posted.accept,
        state.memory.current,
        deadline=posted.deadline,
    )
    await stored(state, posted, window, answer, hold)
    return answers.finished(answer.diagnosis_id, answer.content, posted.accept)


async def stored(
    state: State, posted: Posted, window: StoredWindow, answer: DiagnosisAnswer, hold: Hold | None
) -> None:
    """Store an answer before it is sent, and let the challenger diagnose the window as well."""
    await run_in_threadpool(
        state.journal.record,
        window,
        answer,
        asked_by=posted.asked_by,
        request_id=posted.request_id,
        hold=hold,
    )
    state.shadow.answered(answer.diagnosis_id, answer.document, window.digest)


async def queued(
    state: State, window: StoredWindow, asked_by: str | None, request_id: str, hold: Hold | None = None
) -> str:
    """Queue the diagnosis of a stored window; gives its id."""
    most = state.settings.max_queued
    diagnosis_id = await run_in_threadpool(
        state.journal.enqueue, window, asked_by=asked_by, request_id=request_id, most=most, hold=hold
    )
    state.dispatcher.wake()
    return diagnosis_id


async def _later(state: State, posted: Posted, hold: Hold | None) -> Response:
    window = await state.pool.run(work.accept_window, posted.sent, deadline=posted.deadline)
    diagnosis_id = await queued(state, window, posted.asked_by, posted.request_id, hold)
    if posted.preferences.wait_seconds:
        await state.dispatcher.wait_for(diagnosis_id, posted.deadline.left())
    response = await run_in_threadpool(answers.current, state, diagnosis_id, posted.accept)
    if response.status_code == answers.ACCEPTED:
        response.headers["Preference-Applied"] = "respond-async"
    return response


@asynccontextmanager
async def received(
    request: Request,
    principal: Principal,
    offered: Sequence[str],
    taken: Sequence[str] = request_bodies.WINDOW_TYPES,
    job_id: str = TABLE_JOB,
) -> AsyncIterator[Posted]:
    """Admit a request and receive its body; both last as long as the context."""
    state = State.of(request)
    # Refuse what the headers allow to refuse before the body is read.
    accept = choose(request.headers.get("accept"), offered)
    content_type = request_bodies.content_type_of(request, taken)
    encoding = content_encoding(request)
    preferences = Preferences.of(request)
    key = _key_of(request)
    limits = request_bodies.limits_of(state.settings, content_type)
    async with request_bodies.received(request, principal.id, limits.sent) as body:
        granted = state.settings.deadline_seconds
        seconds = min(granted, preferences.wait_seconds or granted)
        time_limits.answer_within(seconds)
        yield Posted(
            sent=Sent(body.body, content_type, encoding, limits, job_id),
            accept=accept,
            preferences=preferences,
            key=_bound(key, principal, request, body),
            deadline=Deadline.after(seconds),
            asked_by=principal.id,
            request_id=request.state.request_id,
        )


@asynccontextmanager
async def held(state: State, key: Key | None) -> AsyncIterator[Hold | str | None]:
    """Hold a key while its request is in progress; yields the id of the diagnosis if it has an answer."""
    hold = None if key is None else await run_in_threadpool(state.keys.take, key)
    try:
        yield hold
    except BaseException:
        if isinstance(hold, Hold):
            # If the database is away, the hold expires.
            with suppress(StoreError):
                await asyncio.shield(run_in_threadpool(state.keys.release, hold))
        raise


def _key_of(request: Request) -> str | None:
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1 or not _KEY.fullmatch(given[0]):
        raise ProblemError(
            "invalid-parameters", "Idempotency-Key: needs 1 to 200 visible ASCII characters, in one header"
        )
    return given[0]


def _bound(key: str | None, principal: Principal, request: Request, body: Received) -> Key | None:
    """Bind a key to everything that the answer depends on."""
    if key is None:
        return None
    headers = [request.headers.get(name, "") for name in ("content-type", "content-encoding")]
    request_text = "\n".join([request.url.path + request.url.query, *headers, body.sha256])
    return Key(principal.id or "", key, hashlib.sha256(request_text.encode()).hexdigest())


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
