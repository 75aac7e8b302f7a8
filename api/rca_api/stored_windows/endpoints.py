"""`/v1/windows`: windows that were diagnosed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import run_in_threadpool

from rca.deadline import Deadline
from rca.window.encodings import arrow
from rca_api.diagnoses import work
from rca_api.diagnoses.schemas import TelemetryWindow
from rca_api.shell.requests.decoding import JSON, MULTIPART
from rca_api.shell.requests.negotiation import choose
from rca_api.shell.requests.problems import problem_responses
from rca_api.shell.requests.request_bodies import STORED_WINDOW_PROBLEMS
from rca_api.shell.security.access import Reader
from rca_api.shell.state import State

router = APIRouter(prefix="/v1/windows", tags=["diagnoses"])


@router.get(
    "/{digest}",
    summary="Get a stored window",
    response_class=Response,
    responses={
        200: {
            "description": "The window, in a form that can be posted again. The SHA-256 of the "
            "multipart form is the digest in the address.",
            "model": TelemetryWindow,
            "content": {MULTIPART: {"schema": {"$ref": "#/components/schemas/ArrowWindow"}}},
        },
        **problem_responses(*STORED_WINDOW_PROBLEMS),
    },
)
async def get_window(
    request: Request,
    _: Reader,
    digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")],
) -> Response:
    """Get the window of a diagnosis by its `window_digest`. The service verifies the digest."""
    state = State.of(request)
    accept = choose(request.headers.get("accept"), (MULTIPART, JSON))
    headers = {"Vary": "Accept", "Cache-Control": "private, max-age=31536000, immutable"}
    with state.admission.work():
        if accept == JSON:
            deadline = Deadline.after(state.settings.deadline_seconds)
            content = await state.pool.run(work.window_as_json, digest, deadline=deadline)
            return Response(content, media_type=JSON, headers=headers)
        content = await run_in_threadpool(state.windows.read, digest)
        return Response(content, media_type=arrow.CONTENT_TYPE, headers=headers)
