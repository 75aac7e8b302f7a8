"""Bound on the jobs of one caller that send telemetry at the same time."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from rca_api.jobs.tables import StreamedJobRow
from rca_api.shell.requests.problems import ProblemError

#: A job that was not ended runs until so long after its last telemetry.
RUNNING_SECONDS = 3600.0
#: A place may become free earlier than expected, because a job is ended.
_MAX_WAIT_SECONDS = 60


def refuse_beyond(most: int, session: Session, job_id: str, caller: str | None, at: datetime) -> None:
    """Refuse telemetry that would begin a job of a caller which has `most` running ones.

    Without authentication all callers are one, without a limit. Requests at the same moment may exceed it.

    Raises
    ------
    ProblemError
        ``rate-limited``.
    """
    if caller is None:
        return
    row, since = StreamedJobRow, at - timedelta(seconds=RUNNING_SECONDS)
    runs = and_(row.ended_at.is_(None), row.updated_at > since)
    if session.scalar(select(row.job_id).where(row.job_id == job_id, runs)) is not None:
        return
    n_running, oldest = session.execute(
        select(func.count(), func.min(row.updated_at)).where(row.begun_by == caller, runs)
    ).one()
    if n_running < most:
        return
    wait = _MAX_WAIT_SECONDS if oldest is None else math.ceil((oldest - since).total_seconds())
    raise ProblemError(
        "rate-limited",
        f"{n_running:,} jobs of this caller run, and the limit is {most:,}",
        headers={"Retry-After": str(min(_MAX_WAIT_SECONDS, max(1, wait))), "Connection": "close"},
        hint="end jobs that are over with POST /v1/jobs/{job_id}/end, or raise RCA_MAX_JOBS_PER_CALLER",
    )
