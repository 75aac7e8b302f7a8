"""Several windows in one request: each is stored and answered on its own."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import structlog
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool

from rca.errors import RcaError
from rca_api.diagnoses import answers, work
from rca_api.diagnoses.keys import Hold, Key
from rca_api.diagnoses.service import Posted, held, queued, received, stored
from rca_api.diagnoses.work import StoredWindow
from rca_api.shell.observability import tracing
from rca_api.shell.requests.decoding import JSON
from rca_api.shell.requests.problems import (
    CATALOGUE,
    ProblemError,
    from_rca_error,
    internal_error,
    problem_document,
)
from rca_api.shell.security.principal import Principal
from rca_api.shell.state import State
from rca_api.shell.store.base import new_id

_log = structlog.stdlib.get_logger("rca_api")


async def create(request: Request, principal: Principal) -> Response:
    """Answer a batch: each item has the status and content of a single request."""
    state = State.of(request)
    async with received(request, principal, (JSON,)) as posted:
        kept = await state.pool.run(
            work.accept_batch, posted.sent, state.settings.batch_limit, deadline=posted.deadline
        )
        # The request itself was counted before.
        await run_in_threadpool(state.authority.count, principal, len(kept) - 1)
        # One task per process of the pool at a time, so that single requests do not wait for the batch.
        slots = asyncio.Semaphore(state.settings.processes)

        async def one(number: int, window: StoredWindow | RcaError) -> dict[str, Any]:
            async with slots:
                with tracing.collecting():
                    return await _item(state, posted, number, window)

        items = await asyncio.gather(*(one(number, window) for number, window in enumerate(kept)))
    return Response(orjson.dumps({"items": items}), media_type=JSON)


async def _item(state: State, posted: Posted, number: int, window: StoredWindow | RcaError) -> dict[str, Any]:
    try:
        if isinstance(window, RcaError):
            raise window
        async with held(state, _item_key(posted.key, number, window)) as hold:
            response = await _answered(state, posted, window, hold)
        return {
            "status": response.status_code,
            "location": response.headers["location"],
            "diagnosis": orjson.Fragment(bytes(response.body)),
        }
    except (ProblemError, RcaError) as error:
        problem = error if isinstance(error, ProblemError) else from_rca_error(error, 1)
    except Exception:
        _log.exception("an item of a batch failed")
        problem = internal_error()
    document = problem_document(problem, f"/v1/diagnoses/batch#{number}")
    return {"status": CATALOGUE[problem.code].status, "problem": orjson.Fragment(document)}


async def _answered(state: State, posted: Posted, window: StoredWindow, hold: Hold | str | None) -> Response:
    if isinstance(hold, str):
        return await run_in_threadpool(answers.replay, state, hold, JSON)
    if posted.preferences.respond_async:
        diagnosis_id = await queued(state, window, posted.asked_by, posted.request_id, hold)
        return await run_in_threadpool(answers.current, state, diagnosis_id, JSON)
    answer = await state.pool.run(
        work.diagnose_stored,
        window.digest,
        state.models.champion,
        new_id(),
        state.memory.current,
        deadline=posted.deadline,
    )
    await stored(state, posted, window, answer, hold)
    return answers.finished(answer.diagnosis_id, answer.content, JSON)


def _item_key(key: Key | None, number: int, window: StoredWindow) -> Key | None:
    """The key of an item, so that a repeated batch diagnoses only what is missing.

    Keys of callers have no spaces, so they differ from keys of items.
    """
    return None if key is None else Key(key.caller, f"batch {number} {key.key}", window.digest)
