"""`/v1/diagnoses`: create diagnoses and find stored ones."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response, status

from rca.diagnosis.result import Diagnosis
from rca.sources.read import TABLE_JOB
from rca.window.causes import FailureMode
from rca_api.diagnoses import answers, batch, repository, service
from rca_api.diagnoses.schemas import (
    BatchAnswer,
    DiagnosisList,
    DiagnosisSummary,
    PendingDiagnosis,
    State,
)
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.shell.requests.decoding import TABLE
from rca_api.shell.requests.negotiation import PREFER_PARAMETER, choose
from rca_api.shell.requests.pagination import LINK_HEADER, Paging
from rca_api.shell.requests.parameters import Flag, Moment, Name
from rca_api.shell.requests.problems import problem_responses
from rca_api.shell.requests.request_bodies import WINDOW_BODY, WINDOW_PROBLEMS
from rca_api.shell.security.access import Admin, Diagnoser, Reader, ReaderOfOne
from rca_api.shell.state import State as Parts
from rca_api.shell.store.base import now

router = APIRouter(prefix="/v1/diagnoses", tags=["diagnoses"])

_RENDERED = {"text/markdown": {"schema": {"type": "string"}}, "text/html": {"schema": {"type": "string"}}}
_LOCATION = {"Location": {"description": "Address of the diagnosis.", "schema": {"type": "string"}}}
_KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Any text, new for each new request. A request that repeats an earlier one byte by byte, "
    "with its key, gets the stored answer (`Idempotency-Replayed: true`) and makes no second "
    "diagnosis. While the first request is in progress, the answer is 409 with `Retry-After`.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
}
_PARAMETERS = [*WINDOW_BODY["parameters"], PREFER_PARAMETER, _KEY_PARAMETER]
_REFUSALS = (
    *("busy", "bundle-error", *WINDOW_PROBLEMS, "idempotency-mismatch", "conflict", "diagnosis-failed"),
    "not-acceptable",
)
_WINDOW_OR_TABLE: dict[str, Any] = {
    **WINDOW_BODY["requestBody"],
    "content": {
        **WINDOW_BODY["requestBody"]["content"],
        TABLE: {
            "schema": {
                "type": "string",
                "description": "A table of steps, metrics or events as CSV, TSV or JSON lines.",
            }
        },
    },
}
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
DiagnosisId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


@router.post(
    "",
    summary="Diagnose a telemetry window",
    response_class=Response,
    responses={
        200: {
            "description": "The diagnosis, in the media type of `Accept`. It is stored.",
            "model": Diagnosis,
            "content": _RENDERED,
            "headers": _LOCATION,
        },
        202: {
            "description": "With `Prefer: respond-async`: the diagnosis is queued and survives restarts. "
            "Poll Location until the status is 200.",
            "model": PendingDiagnosis,
            "headers": _LOCATION,
        },
        **problem_responses(*_REFUSALS),
    },
    openapi_extra={"requestBody": _WINDOW_OR_TABLE, "parameters": _PARAMETERS},
)
async def create_diagnosis(
    request: Request,
    principal: Diagnoser,
    job: Annotated[Name, Query(description="Job of a table (`text/csv`), which names none.")] = TABLE_JOB,
) -> Response:
    """Diagnose whether the job is healthy, fail-slow or fail-stop, who straggles, why, and what to do."""
    return await service.create(request, principal, job)


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
    """Diagnose each window on its own; an invalid window does not affect the others.

    A batch that is repeated with its `Idempotency-Key` is completed: windows that have an answer are not
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
    _: Reader,
    paging: Paging,
    job: Annotated[Name | None, Query(description="Id of the job.")] = None,
    node: Annotated[Name | None, Query(description="Node of a cause.")] = None,
    cause: Annotated[
        Name | None, Query(description="A cause of the catalogue; with `node`, on that node.")
    ] = None,
    failure_mode: FailureMode | None = None,
    abstained: Flag | None = None,
    state: State | None = None,
    since: Annotated[Moment | None, Query(description="Created at this time or later.")] = None,
    until: Annotated[Moment | None, Query(description="Created before this time.")] = None,
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
        found = paging.read(session, wanted, keys, DiagnosisSummary.of)
    return DiagnosisList(items=found.items, next=found.next)


@router.get(
    "/{diagnosis_id:id}",
    summary="Get a diagnosis",
    response_class=Response,
    responses={
        200: {"description": "The stored diagnosis.", "model": Diagnosis, "content": _RENDERED},
        202: {
            "description": "It is queued or running; try again after `Retry-After`.",
            "model": PendingDiagnosis,
        },
        **problem_responses(
            "invalid-parameters", "not-found", "not-acceptable", "diagnosis-failed", "store-unavailable"
        ),
    },
)
def get_diagnosis(request: Request, _: ReaderOfOne, diagnosis_id: DiagnosisId) -> Response:
    """Get a stored diagnosis, in the media type of `Accept`.

    The scope `diagnose` or `feedback` is enough for one diagnosis. Lists need `read`.
    """
    accept = choose(request.headers.get("accept"), answers.OFFERED)
    return answers.current(Parts.of(request), diagnosis_id, accept)


@router.delete(
    "/{diagnosis_id:id}",
    status_code=status.HTTP_204_NO_CONTENT,
    summary="Delete a diagnosis",
    responses=problem_responses("invalid-parameters", "not-found", "conflict", "store-unavailable"),
)
def delete_diagnosis(request: Request, _: Admin, diagnosis_id: DiagnosisId) -> None:
    """Delete a diagnosis with its feedback, and its window unless another diagnosis uses it.

    A diagnosis that is queued or running gets 409. An incident that counted the window is recounted, and
    resolved if it has no other window. Its events stay, without the id of the diagnosis.
    """
    parts = Parts.of(request)
    with parts.database.session() as session:
        service.delete(session, diagnosis_id, parts.incidents, parts.retention, now())
