"""From a posted body to an answer: admitted, received, diagnosed in the pool, stored, and only then told."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool

from rca_api import request_bodies
from rca_api.admission import content_encoding
from rca_api.compute.body import Received
from rca_api.compute.deadline import Deadline
from rca_api.decoding import Sent
from rca_api.diagnoses import answers, work
from rca_api.diagnoses.keys import Hold, Key
from rca_api.diagnoses.work import Answer, Kept
from rca_api.negotiation import Preferences, choose
from rca_api.problems import ProblemError
from rca_api.security.principal import Principal
from rca_api.state import State
from rca_api.store.database import StoreError

_KEY = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(frozen=True)
class Asked:
    """A received request."""

    sent: Sent
    accept: str
    preferences: Preferences
    key: Key | None
    deadline: Deadline
    asked_by: str | None
    request_id: str


async def create(request: Request, principal: Principal) -> Response:
    """Answer one window: at once, or later if the caller prefers that."""
    state = State.of(request)
    async with received(request, principal, answers.OFFERED) as asked, held(state, asked.key) as hold:
        if isinstance(hold, str):
            response = await run_in_threadpool(answers.replay, state, hold, asked.accept)
        elif asked.preferences.respond_async:
            response = await _later(state, asked, hold)
        else:
            response = await _now(state, asked, hold)
        # For the request's line in the log.
        request.state.diagnosis_id = response.headers["location"].rpartition("/")[2]
        return response


async def _now(state: State, asked: Asked, hold: Hold | None) -> Response:
    window, answer = await state.pool.run(
        work.diagnose,
        asked.sent,
        state.models.champion,
        asked.accept,
        state.memory.current,
        deadline=asked.deadline,
    )
    await stored(state, asked, window, answer, hold)
    return answers.finished(answer.diagnosis_id, answer.content, asked.accept)


async def stored(state: State, asked: Asked, window: Kept, answer: Answer, hold: Hold | None) -> None:
    """Store an answer, so that it may be told, and let the challenger answer as well."""
    await run_in_threadpool(
        state.journal.record,
        window,
        answer,
        asked_by=asked.asked_by,
        request_id=asked.request_id,
        hold=hold,
    )
    state.shadow.answered(answer.diagnosis_id, answer.document, window.digest)


async def _later(state: State, asked: Asked, hold: Hold | None) -> Response:
    window = await state.pool.run(work.accept_window, asked.sent, deadline=asked.deadline)
    diagnosis_id = await run_in_threadpool(
        state.journal.enqueue,
        window,
        asked_by=asked.asked_by,
        request_id=asked.request_id,
        most=state.settings.max_queued,
        hold=hold,
    )
    state.dispatcher.wake()
    if asked.preferences.wait_seconds:
        await state.dispatcher.wait_for(diagnosis_id, asked.deadline.left())
    response = await run_in_threadpool(answers.current, state, diagnosis_id, asked.accept)
    if response.status_code == answers.ACCEPTED:
        response.headers["Preference-Applied"] = "respond-async"
    return response


@asynccontextmanager
async def received(request: Request, principal: Principal, offered: tuple[str, ...]) -> AsyncIterator[Asked]:
    """Admit a request and receive its body; both last as long as the context."""
    state = State.of(request)
    # Everything that can be refused from the headers alone is, before the body is touched.
    accept = choose(request.headers.get("accept"), offered)
    content_type = request_bodies.content_type_of(request, request_bodies.WINDOW_TYPES)
    encoding = content_encoding(request)
    preferences = Preferences.of(request)
    key = _key_of(request)
    limits = request_bodies.Limits.of(state.settings, content_type)
    async with request_bodies.received(request, principal.id, limits.sent) as body:
        granted = state.settings.deadline_seconds
        yield Asked(
            sent=Sent(body.body, content_type, encoding, limits.decoded),
            accept=accept,
            preferences=preferences,
            key=_bound(key, principal, request, body),
            deadline=Deadline.after(min(granted, preferences.wait_seconds or granted)),
            asked_by=principal.id,
            request_id=request.state.request_id,
        )


@asynccontextmanager
async def held(state: State, key: Key | None) -> AsyncIterator[Hold | str | None]:
    """Hold a key while its request is worked on; gives the diagnosis' id if it was answered before."""
    hold = None if key is None else await run_in_threadpool(state.keys.take, key)
    try:
        yield hold
    except BaseException:
        if isinstance(hold, Hold):
            # Where the database is away, the hold runs out by itself.
            with suppress(StoreError):
                await asyncio.shield(run_in_threadpool(state.keys.release, hold))
        raise


def _key_of(request: Request) -> str | None:
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1 or not _KEY.fullmatch(given[0]):
        raise ProblemError(
            "invalid-parameters", "Idempotency-Key: needs 1 to 200 visible ASCII characters, once"
        )
    return given[0]


def _bound(key: str | None, principal: Principal, request: Request, body: Received) -> Key | None:
    """Bind a key to all that the answer depends on."""
    if key is None:
        return None
    headers = [request.headers.get(name, "") for name in ("content-type", "content-encoding")]
    asked = "\n".join([request.url.path, *headers, body.sha256])
    return Key(principal.id or "", key, hashlib.sha256(asked.encode()).hexdigest())
