"""`POST /v1/diagnoses`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from rca.diagnosis.result import Diagnosis
from rca_api.diagnoses import service
from rca_api.responses import problem_responses

router = APIRouter(prefix="/v1/diagnoses", tags=["diagnoses"])

_BODY: dict[str, Any] = {
    "parameters": [
        {
            "name": "Content-Encoding",
            "in": "header",
            "required": False,
            "description": "Compression of the body; limits hold before and after it.",
            "schema": {"type": "string", "enum": ["identity", "gzip", "zstd"]},
        }
    ],
    "requestBody": {
        "required": True,
        "description": "A telemetry window. JSON suits jobs up to about a thousand ranks, Arrow larger ones.",
        "content": {
            service.JSON: {"schema": {"$ref": "#/components/schemas/TelemetryWindow"}},
            service.MULTIPART: {
                "schema": {"$ref": "#/components/schemas/ArrowWindow"},
                "encoding": {
                    "job": {"contentType": "application/json"},
                    **{
                        table: {"contentType": "application/vnd.apache.arrow.stream"}
                        for table in ("steps", "metrics", "events", "ops")
                    },
                },
            },
        },
    },
}
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
    openapi_extra=_BODY,
)
async def create_diagnosis(request: Request) -> Response:
    """Say whether the job is healthy, fail-slow or fail-stop, who straggles, why, and what to do."""
    content, media_type = await service.diagnose(request)
    return Response(content, media_type=media_type)
