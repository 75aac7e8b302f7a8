"""`POST /v1/diagnoses`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response, Security

from rca.diagnosis.result import Diagnosis
from rca_api.diagnoses import service
from rca_api.responses import problem_responses
from rca_api.security.access import requires
from rca_api.security.principal import Scope
from rca_api.windows import WINDOW_BODY

router = APIRouter(
    prefix="/v1/diagnoses", tags=["diagnoses"], dependencies=[Security(requires(Scope.diagnose))]
)

_RENDERED = {"text/markdown": {"schema": {"type": "string"}}, "text/html": {"schema": {"type": "string"}}}
_PROBLEMS = problem_responses(
    "invalid-input",
    "invalid-window",
    "too-large",
    "body-timeout",
    "not-acceptable",
    "unsupported-media-type",
    "unsupported-encoding",
    "busy",
    "bundle-error",
)


@router.post(
    "",
    summary="Diagnose a telemetry window",
    response_class=Response,
    responses={
        200: {
            "description": "The diagnosis, in the media type of Accept.",
            "model": Diagnosis,
            "content": _RENDERED,
        },
        **_PROBLEMS,
    },
    openapi_extra=WINDOW_BODY,
)
async def create_diagnosis(request: Request) -> Response:
    """Say whether the job is healthy, fail-slow or fail-stop, who straggles, why, and what to do."""
    content, media_type = await service.diagnose(request)
    return Response(content, media_type=media_type)
