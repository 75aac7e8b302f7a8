"""Bound on the jobs of one caller that send telemetry at the same time."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from rca_api.jobs.tables import StreamedJobRow
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.store.waits import is_recent

#: A job that was not ended runs until so long after its last telemetry.
RUNNING = timedelta(hours=1)
#: A place may become free earlier than expected, because a job is ended.
_MAX_WAIT_SECONDS = 60


def is_running(job: StreamedJobRow, at: datetime) -> bool:
    """Whether a job has not ended, and its last telemetry is not older than `RUNNING`."""
    return job.ended_at is None and is_recent(job.updated_at, at, RUNNING)


def refuse_beyond(most: int, session: Session, job_id: str, caller: str | None, at: datetime) -> None:
    """Refuse telemetry that would begin a job of a caller which has `most` running ones.

    A job that waits for a look counts as well, although it was ended. Without authentication all callers are
    one, without a limit. With PostgreSQL, requests at the same moment may exceed the limit.

    Raises
    ------
    ProblemError
        ``rate-limited``.
    """
    if caller is None:
        return
    row, since = StreamedJobRow, at - RUNNING
    job = session.get(row, job_id)
    if job is not None and (is_running(job, at) or (job.pending and job.begun_by == caller)):
        return
    runs = and_(row.ended_at.is_(None), is_recent(row.updated_at, at, RUNNING))
    n_running, oldest = session.execute(
        select(func.count(), func.min(row.updated_at)).where(row.begun_by == caller, or_(row.pending, runs))
    ).one()
    if n_running < most:
        return
    wait = _MAX_WAIT_SECONDS if oldest is None else math.ceil((oldest - since).total_seconds())
    raise ProblemError(
        "rate-limited",
        f"{n_running:,} jobs of this caller run or wait for a look, and the limit is {most:,}",
        headers={"Retry-After": str(min(_MAX_WAIT_SECONDS, max(1, wait))), "Connection": "close"},
        hint="end jobs that are over with POST /v1/jobs/{job_id}/end, or raise RCA_MAX_JOBS_PER_CALLER",
    )
