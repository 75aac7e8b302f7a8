"""`POST /v1/what-if`: from a received window or trace to an encoded answer."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from rca.deadline import Deadline
from rca_api.shell.requests.admission import content_encoding
from rca_api.shell.requests.decoding import JSON, MULTIPART, Sent
from rca_api.shell.requests.negotiation import WAIT_PARAMETER, Preferences, choose
from rca_api.shell.requests.parameters import WHOLE, Flag
from rca_api.shell.requests.problems import problem_responses
from rca_api.shell.requests.request_bodies import (
    WINDOW_BODY,
    WINDOW_PROBLEMS,
    WINDOW_TYPES,
    content_type_of,
    limits_of,
    received,
)
from rca_api.shell.security.access import Diagnoser
from rca_api.shell.state import State
from rca_api.what_if import work
from rca_api.what_if.schemas import WhatIfAnswer
from rca_api.what_if.work import PARQUET, SCENARIOS, TRACE, Form, WhatIfOptions

router = APIRouter(prefix="/v1/what-if", tags=["what-if"])

Size = Annotated[
    Annotated[int, Field(ge=1), WHOLE] | None,
    Query(description="Size of the job in this dimension; for bare traces only."),
]

ACCEPTED_TYPES = (*WINDOW_TYPES, PARQUET)
_WINDOW_CONTENT: dict[str, Any] = WINDOW_BODY["requestBody"]["content"]


def _with_scenarios(media_type: str) -> dict[str, Any]:
    """The schema of a window with scenarios."""
    scenarios = {"$ref": "#/components/schemas/AskedScenarios"}
    return {"schema": {"allOf": [_WINDOW_CONTENT[media_type]["schema"], scenarios]}}


_BODY: dict[str, Any] = {
    "parameters": [*WINDOW_BODY["parameters"], WAIT_PARAMETER],
    "requestBody": {
        "required": True,
        "description": "A telemetry window, or a bare operation trace as Parquet. The operations of a "
        "window are replayed, or its phases if it has none. `scenarios` is a member of the JSON or a part of "
        "the multipart body. Each scenario is answered. In multipart a bare trace is the part `trace`.",
        "content": {
            JSON: _with_scenarios(JSON),
            MULTIPART: {
                "schema": {
                    "anyOf": [
                        _with_scenarios(MULTIPART)["schema"],
                        {"$ref": "#/components/schemas/TraceWithScenarios"},
                    ]
                },
                "encoding": {
                    **_WINDOW_CONTENT[MULTIPART]["encoding"],
                    SCENARIOS: {"contentType": JSON},
                    TRACE: {"contentType": PARQUET},
                },
            },
            PARQUET: {"schema": {"type": "string", "contentMediaType": PARQUET}},
        },
    },
}
_PROBLEMS = problem_responses("invalid-window", "invalid-trace", *WINDOW_PROBLEMS, "not-acceptable")


@router.post(
    "",
    summary="Replay a job without its stragglers",
    response_class=Response,
    responses={
        200: {
            "description": "The analysis. With `form=published` it has the keys of the published tool.",
            "model": WhatIfAnswer,
        },
        **_PROBLEMS,
    },
    openapi_extra=_BODY,
)
async def create_what_if(
    request: Request,
    caller: Diagnoser,
    form: Annotated[Form, Query(description="Layout of the answer.")] = "full",
    per_step: Annotated[Flag, Query(description="Whether to list every step.")] = True,
    worker_steps: Annotated[
        Flag, Query(description="Whether to list the slowdown of every worker in every step.")
    ] = False,
    dp_size: Size = None,
    pp_size: Size = None,
    tp_size: Size = None,
    dsp_size: Size = None,
    vpp_size: Size = None,
    world_size: Size = None,
) -> Response:
    """Compute the speed of the job without stragglers, and the cost of each type, stage and worker."""
    sizes = {
        "dp_size": dp_size,
        "pp_size": pp_size,
        "tp_size": tp_size,
        "dsp_size": dsp_size,
        "vpp_size": vpp_size,
        "world_size": world_size,
    }
    given = {name: size for name, size in sizes.items() if size is not None}
    options, state = WhatIfOptions(form, per_step, worker_steps, given), State.of(request)
    choose(request.headers.get("accept"), (JSON,))
    content_type = content_type_of(request, ACCEPTED_TYPES)
    encoding = content_encoding(request)
    limits = limits_of(state.settings, content_type)
    granted = state.settings.deadline_seconds
    wait = Preferences.of(request).wait_seconds
    async with received(request, caller.id, limits.sent) as body:
        sent = Sent(body.body, content_type, encoding, limits)
        deadline = Deadline.after(min(granted, wait or granted))
        content: bytes = await state.pool.run(work.answer, sent, options, deadline=deadline)
    return Response(content, media_type=JSON)
