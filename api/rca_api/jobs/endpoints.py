"""`/v1/jobs`: telemetry of running jobs, and windows cut from it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response, status
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import select

from rca.deadline import Deadline
from rca.window.encodings import arrow
from rca.window.names import Line
from rca_api.diagnoses.schemas import TelemetryWindow
from rca_api.incidents.tables import FollowedJobRow
from rca_api.jobs import repository, work
from rca_api.jobs.schemas import EndedJob, Receipt, StreamedJob, StreamedJobPage
from rca_api.jobs.tables import StreamedJobRow
from rca_api.shell.requests import request_bodies
from rca_api.shell.requests.admission import content_encoding
from rca_api.shell.requests.decoding import JSON, MULTIPART, Sent
from rca_api.shell.requests.negotiation import choose
from rca_api.shell.requests.pagination import LINK_HEADER, Paging
from rca_api.shell.requests.parameters import Flag, Moment, Name
from rca_api.shell.requests.problems import ProblemError, problem_responses
from rca_api.shell.requests.request_bodies import (
    STORED_WINDOW_PROBLEMS,
    WINDOW_BODY,
    WINDOW_PROBLEMS,
    WINDOW_TYPES,
    content_type_of,
    limits_of,
)
from rca_api.shell.security.access import Diagnoser, Reader
from rca_api.shell.security.principal import Principal
from rca_api.shell.state import State
from rca_api.shell.store.base import now

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

#: Header of a window with the names of the tables that it lacks.
MISSING_HEADER = "X-Missing-Tables"
JobId = Annotated[Name, Path(description="Id of the job, as in its telemetry.")]


@router.post(
    "/{job_id:name}/telemetry",
    summary="Send telemetry of a running job",
    responses=problem_responses(*WINDOW_PROBLEMS, "conflict"),
    openapi_extra=WINDOW_BODY,
)
async def send_telemetry(request: Request, principal: Diagnoser, job_id: JobId) -> Receipt:
    """Store rows of a running job; they are durable when this answers.

    The body is a window with the rows of any ranks and steps, or with metrics or events only. They may come
    in any order, from each rank alone, and again: of rows with the same rank and step the last ones count. A
    lasting change of the step time, or silence, is diagnosed without a further request.

    A caller with too many running jobs gets 429 for another one: end those that are over.
    """
    state = State.of(request)
    content_type = content_type_of(request, WINDOW_TYPES)
    encoding = content_encoding(request)
    limits = limits_of(state.settings, content_type)
    # Before the body is read, and again when it is stored: many may come at once.
    await run_in_threadpool(_refuse_another, state, job_id, principal)
    async with request_bodies.received(request, principal.id, limits.sent) as body:
        deadline = Deadline.after(state.settings.deadline_seconds)
        sent = Sent(body.body, content_type, encoding, limits)
        fragment = await state.pool.run(work.accept_fragment, sent, job_id, deadline=deadline)
        new = await run_in_threadpool(_add, state, job_id, fragment, principal)
    state.watcher.wake()
    return Receipt(
        job_id=job_id,
        segment=fragment.window.digest,
        new=new,
        first_step=fragment.first_step,
        last_step=fragment.last_step,
    )


def _refuse_another(state: State, job_id: str, sender: Principal) -> None:
    with state.database.reading() as session:
        repository.refuse_beyond(state.settings.max_jobs_per_caller, session, job_id, sender.id, now())


def _add(state: State, job_id: str, fragment: work.Fragment, sender: Principal) -> bool:
    at = now()
    # Here, so that a process goes on while the disk works, and takes what others have sent together.
    state.windows.flush(fragment.window.digest)
    with state.database.session() as session:
        repository.refuse_beyond(state.settings.max_jobs_per_caller, session, job_id, sender.id, at)
        new = repository.add_fragment(session, job_id, fragment, at, sent_by=sender.id)
        state.journal.refuse_a_deleted(fragment.window)
    return new


@router.get(
    "/{job_id:name}/telemetry",
    summary="Show how far the telemetry of a job has come",
    responses=problem_responses("not-found", "invalid-parameters", "store-unavailable"),
)
def get_job(request: Request, _: Reader, job_id: JobId) -> StreamedJob:
    """Get a job: its last step, whether it has ended, and the newest diagnosis."""
    with State.of(request).database.reading() as session:
        job = session.get(StreamedJobRow, job_id)
        if job is None:
            raise _unknown(job_id)
        return StreamedJob.of(job)


@router.get(
    "/{job_id:name}/window",
    summary="Get a window of a job's telemetry",
    response_class=Response,
    responses={
        200: {
            "description": "The window, in a form that can be posted to `/v1/diagnoses`.",
            "model": TelemetryWindow,
            "headers": {
                MISSING_HEADER: {
                    "description": "Tables without a row, such as `steps, metrics`; absent if all have rows.",
                    "schema": {"type": "string"},
                }
            },
            "content": {MULTIPART: {"schema": {"$ref": "#/components/schemas/ArrowWindow"}}},
        },
        **problem_responses(*STORED_WINDOW_PROBLEMS, "invalid-input", "invalid-window", "too-large"),
    },
)
async def get_job_window(
    request: Request,
    _: Reader,
    job_id: JobId,
    since: Annotated[Moment | None, Query(description="Steps that began at this time or later.")] = None,
    until: Annotated[Moment | None, Query(description="Steps that began before this time.")] = None,
    as_sent: Annotated[
        Flag,
        Query(description="All rows as they were sent: earlier attempts and impossible times as well."),
    ] = False,
) -> Response:
    """Get the rows of a time as one window; without `since`, all that is stored.

    It has the latest attempt of each step, with the times of one clock per rank. `job.remarks` says what was
    left out or moved. With `as_sent` a rank may have several rows of one step, which no diagnosis takes.

    A job may have sent events only. The header `X-Missing-Tables` says what a diagnosis would lack.
    """
    state = State.of(request)
    accept = choose(request.headers.get("accept"), (MULTIPART, JSON))
    begin, end = _seconds(since, -float("inf")), _seconds(until, float("inf"))
    with state.admission.work():
        digests = await run_in_threadpool(_digests, state, job_id, begin, end)
        deadline = Deadline.after(state.settings.deadline_seconds)
        content, missing = await state.pool.run(
            work.cut, digests, begin, end, accept, as_sent, deadline=deadline
        )
    media_type = JSON if accept == JSON else arrow.CONTENT_TYPE
    lacking = {MISSING_HEADER: ", ".join(missing)} if missing else {}
    return Response(content, media_type=media_type, headers={"Vary": "Accept", **lacking})


def _digests(state: State, job_id: str, begin: float, end: float) -> list[str]:
    with state.database.reading() as session:
        if session.get(StreamedJobRow, job_id) is None:
            raise _unknown(job_id)
        found = repository.segments(session, job_id, begin, end)
    if not found:
        raise ProblemError("not-found", f"job {job_id!r} has no telemetry of this time")
    return found


@router.post(
    "/{job_id:name}/end",
    status_code=status.HTTP_200_OK,
    summary="End a job",
    responses=problem_responses(
        "not-found", "invalid-parameters", "too-large", "body-timeout", "store-unavailable"
    ),
)
def end_job(
    request: Request,
    _: Diagnoser,
    job_id: JobId,
    reason: Annotated[
        Line | None,
        Query(max_length=500, description="How its end is known; shown with the incident that is resolved."),
    ] = None,
) -> StreamedJob | EndedJob:
    """Say that a job has ended, so that its silence is no stop. Later telemetry begins it again.

    If its last events report a failure, such as an exit or the loss of a peer, it is diagnosed. A suspected
    incident of the job is resolved, also if its windows were posted and no telemetry was sent.
    """
    state = State.of(request)
    with state.database.session() as session:
        job = session.get(StreamedJobRow, job_id, with_for_update=True)
        if job is None and session.get(FollowedJobRow, job_id) is None:
            raise _unknown(job_id)
        if job is not None and job.ended_at is None:
            job.ended_at, job.pending = now(), True
        ended = EndedJob(job_id=job_id, ended_at=now()) if job is None else StreamedJob.of(job)
    # In a transaction of its own: no lock is waited for while another one is held.
    with state.database.session() as session:
        state.incidents.end(session, job_id, reason)
    return ended


@router.get(
    "",
    summary="List jobs that send telemetry",
    responses={200: {"headers": LINK_HEADER}, **problem_responses("invalid-parameters", "store-unavailable")},
)
def list_jobs(request: Request, _: Reader, paging: Paging) -> StreamedJobPage:
    """List jobs, the one with the newest telemetry first."""
    keys = (StreamedJobRow.updated_at, StreamedJobRow.job_id)
    with State.of(request).database.reading() as session:
        found = paging.read(session, select(StreamedJobRow), keys, StreamedJob.of)
    return StreamedJobPage(items=found.items, next=found.next)


def _unknown(job_id: str) -> ProblemError:
    return ProblemError("not-found", f"no telemetry of job {job_id!r} has arrived")


def _seconds(moment: datetime | None, otherwise: float) -> float:
    return otherwise if moment is None else moment.timestamp()
