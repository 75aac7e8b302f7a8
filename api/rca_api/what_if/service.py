"""From a received window or trace to an encoded what-if answer, off the event loop."""

from __future__ import annotations

from fastapi import Request

from rca_api.compute.deadline import Deadline
from rca_api.compute.payload import Sent
from rca_api.decoding import JSON
from rca_api.limits import content_encoding
from rca_api.negotiation import choose
from rca_api.preferences import Preferences
from rca_api.security.principal import Principal
from rca_api.state import State
from rca_api.what_if import work
from rca_api.what_if.body import PARQUET
from rca_api.windows import WINDOW_TYPES, Limits, content_type_of, received

TAKEN = (*WINDOW_TYPES, PARQUET)


async def answer(request: Request, wanted: work.Wanted, caller: Principal) -> bytes:
    """Answer one request."""
    state = State.of(request)
    choose(request.headers.get("accept"), (JSON,))
    content_type = content_type_of(request, TAKEN)
    encoding = content_encoding(request)
    limits = Limits.of(state.settings, content_type)
    granted = state.settings.deadline_seconds
    wait = Preferences.of(request).wait_seconds
    async with received(request, caller.id, limits.sent) as body:
        sent = Sent(body.body, content_type, encoding, limits.decoded)
        deadline = Deadline.after(min(granted, wait or granted))
        content: bytes = await state.pool.run(work.answer, sent, wanted, deadline=deadline)
    return content
