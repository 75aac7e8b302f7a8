"""`/v1/diagnoses`: ask for a diagnosis, and find those that were made."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response, Security
from pydantic import AfterValidator

from rca.diagnosis.result import Diagnosis
from rca.telemetry.causes import FailureMode
from rca_api.diagnoses import answers, batch, repository, service
from rca_api.diagnoses.schemas import (
    BatchAnswer,
    DiagnosisList,
    DiagnosisSummary,
    PendingDiagnosis,
    State,
)
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.negotiation import PREFER_PARAMETER, choose
from rca_api.pagination import DEFAULT_LIMIT, LINK_HEADER, Cursor, Limit, Moment, link_next, page
from rca_api.problems import problem_responses
from rca_api.request_bodies import WINDOW_BODY
from rca_api.security.access import requires
from rca_api.security.principal import Principal, Scope
from rca_api.state import State as Parts

router = APIRouter(prefix="/v1/diagnoses", tags=["diagnoses"])

_RENDERED = {"text/markdown": {"schema": {"type": "string"}}, "text/html": {"schema": {"type": "string"}}}
_LOCATION = {"Location": {"description": "Address of the diagnosis.", "schema": {"type": "string"}}}
_KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Any text of your own, new for every new request. A request that is repeated byte by byte "
    "with its key gets the answer of the first one (`Idempotency-Replayed: true`) instead of a second "
    "diagnosis; 409 while the first one is worked on.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
}
_PARAMETERS = [*WINDOW_BODY["parameters"], PREFER_PARAMETER, _KEY_PARAMETER]
_REFUSALS = (
    "invalid-input",
    "invalid-window",
    "invalid-parameters",
    "idempotency-mismatch",
    "conflict",
    "diagnosis-failed",
    "too-large",
    "body-timeout",
    "not-acceptable",
    "unsupported-media-type",
    "unsupported-encoding",
    "busy",
    "bundle-error",
    "store-unavailable",
    "deadline-exceeded",
)
_BATCH_BODY: dict[str, Any] = {
    "parameters": _PARAMETERS,
    "requestBody": {
        "required": True,
        "description": "Several windows, as a JSON array or as parts of a multipart body.",
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/WindowBatch"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"window": {"type": "array", "items": {"type": "string"}}},
                },
            },
        },
    },
}
Diagnoser = Annotated[Principal, Security(requires(Scope.diagnose))]
Reader = Annotated[Principal, Security(requires(Scope.read))]
#: Whoever asks for a diagnosis, or judges it, knows its id, which nobody can guess.
ReaderOfOne = Annotated[Principal, Security(requires(Scope.read, Scope.diagnose, Scope.feedback))]


def _searchable(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL, which no name has")
    return text


Name = Annotated[str, Query(max_length=256), AfterValidator(_searchable)]


@router.post(
    "",
    summary="Diagnose a telemetry window",
    response_class=Response,
    responses={
        200: {
            "description": "The diagnosis, in the media type of Accept. It is stored.",
            "model": Diagnosis,
            "content": _RENDERED,
            "headers": _LOCATION,
        },
        202: {
            "description": "With `Prefer: respond-async`: it is queued and will survive restarts; "
            "ask at Location until that answers 200.",
            "model": PendingDiagnosis,
            "headers": _LOCATION,
        },
        **problem_responses(*_REFUSALS),
    },
    openapi_extra={**WINDOW_BODY, "parameters": _PARAMETERS},
)
async def create_diagnosis(request: Request, principal: Diagnoser) -> Response:
    """Say whether the job is healthy, fail-slow or fail-stop, who straggles, why, and what to do."""
    return await service.create(request, principal)


@router.post(
    "/batch",
    summary="Diagnose several windows",
    response_class=Response,
    responses={
        200: {"description": "One item per window, each with its own status.", "model": BatchAnswer},
        **problem_responses(*_REFUSALS),
    },
    openapi_extra=_BATCH_BODY,
)
async def create_diagnoses(request: Request, principal: Diagnoser) -> Response:
    """Diagnose each window on its own: a bad one does not spoil the others.

    With an Idempotency-Key, a batch that is sent again is completed: windows that were answered are not
    diagnosed again. Each window counts as a request.
    """
    return await batch.create(request, principal)


@router.get(
    "",
    summary="List diagnoses, newest first",
    responses={
        200: {"headers": LINK_HEADER},
        **problem_responses("invalid-parameters", "store-unavailable"),
    },
)
def list_diagnoses(
    request: Request,
    response: Response,
    _: Reader,
    job: Annotated[Name | None, Query(description="Id of the job.")] = None,
    node: Annotated[Name | None, Query(description="A node that a cause was put on.")] = None,
    cause: Annotated[Name | None, Query(description="A cause, of the catalogue; with `node`, on it.")] = None,
    failure_mode: FailureMode | None = None,
    abstained: bool | None = None,
    state: State | None = None,
    since: Annotated[Moment | None, Query(description="Created then or later.")] = None,
    until: Annotated[Moment | None, Query(description="Created before.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> DiagnosisList:
    """Find diagnoses by job, node, cause, failure mode and time."""
    wanted = repository.matching(
        job=job,
        node=node,
        cause=cause,
        failure_mode=failure_mode,
        abstained=abstained,
        state=state,
        since=since,
        until=until,
    )
    keys = (DiagnosisRow.created_at, DiagnosisRow.id)
    with Parts.of(request).database.reading() as session:
        found = page(session, wanted, keys=keys, limit=limit, cursor=cursor, read=DiagnosisSummary.of)
    link_next(request, response, found.next)
    return DiagnosisList(items=found.items, next=found.next)


@router.get(
    "/{diagnosis_id}",
    summary="Get a diagnosis",
    response_class=Response,
    responses={
        200: {"description": "The diagnosis as it was given.", "model": Diagnosis, "content": _RENDERED},
        202: {
            "description": "It is queued or running; ask again after Retry-After.",
            "model": PendingDiagnosis,
        },
        **problem_responses(
            "invalid-parameters", "not-found", "not-acceptable", "diagnosis-failed", "store-unavailable"
        ),
    },
)
def get_diagnosis(
    request: Request, _: ReaderOfOne, diagnosis_id: Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
) -> Response:
    """Give a stored diagnosis, in the media type of Accept.

    The scope `diagnose` or `feedback` is enough: a caller finds what it asked for and what it is to judge.
    Lists need `read`.
    """
    accept = choose(request.headers.get("accept"), answers.OFFERED)
    return answers.current(Parts.of(request), diagnosis_id, accept)
