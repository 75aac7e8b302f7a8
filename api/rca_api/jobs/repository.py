"""Jobs and their telemetry in the database; every function works in the caller's transaction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from math import inf
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    CursorResult,
    Select,
    and_,
    case,
    delete,
    exists,
    func,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from rca_api.diagnoses.repository import keep_window
from rca_api.diagnoses.tables import WindowRow
from rca_api.jobs.tables import SegmentRow, StreamedJobRow
from rca_api.jobs.work import Fragment
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.store.deletion import insert_if_absent
from rca_api.shell.store.waits import is_recent, is_waiting

#: Segments that are read at once.
MAX_SEGMENTS = 5000
#: Segments that are merged at once.
MAX_MERGED = 512
#: Merged segments of this length are not merged again, so that no row is written more than a few times.
CLOSED_STEPS, CLOSED_SECONDS, CLOSED_BYTES = 100, 600.0, 8 << 20


def add_fragment(
    session: Session, job_id: str, fragment: Fragment, at: datetime, *, sent_by: str | None
) -> bool:
    """Store that telemetry of a job has arrived; False if it had arrived before.

    A job that goes on with other ranks, as after an elastic restart, is known by steps later than all rows.
    Only segments of its present size are read then.

    Raises
    ------
    ProblemError
        ``conflict`` if the job has another number of ranks, and this is no later step.
    """
    size = fragment.window.world_size
    keep_window(session, fragment.window, at)
    begun = {"begun_by": sent_by, "created_at": at, "updated_at": at}
    insert_if_absent(session, StreamedJobRow, job_id=job_id, world_size=size, **begun)
    job = session.get_one(StreamedJobRow, job_id, with_for_update=True, populate_existing=True)
    if job.world_size != size:
        _resize(session, job, fragment)
    new = insert_if_absent(session, SegmentRow, **_columns(job_id, fragment), received_at=at)
    if new:
        ran = is_running(job, at)
        job.updated_at, job.pending = at, True
        if fragment.last_step is not None:
            if job.silent:
                job.steady_since, job.next_step = fragment.first_step, None
            job.stepped_at, job.silent, job.silence_again_at = at, False, None
        steps = [step for step in (job.last_step, fragment.last_step) if step is not None]
        newest = max(steps, default=None)
        # Ranks do not end together: late rows of old steps do not begin the job again.
        if newest != job.last_step:
            job.ended_at = None
        job.last_step = newest
        if job.ended_at is None and not ran:
            job.begun_by = sent_by
    return new


def _resize(session: Session, job: StreamedJobRow, fragment: Fragment) -> None:
    mine, size = SegmentRow.job_id == job.job_id, fragment.window.world_size
    newest = session.scalar(select(func.max(SegmentRow.end)).where(mine))
    # An exporter may not know the new number of ranks.
    if fragment.first_step is None or (newest is not None and fragment.begin < newest):
        raise ProblemError(
            "conflict",
            f"job {job.job_id!r} has {job.world_size:,} ranks, this telemetry is of {size:,}",
            hint="a restart with other ranks sends later steps; give another job another job_id",
        )
    unsized = mine, SegmentRow.world_size.is_(None)
    session.execute(update(SegmentRow).where(*unsized).values(world_size=job.world_size))
    job.world_size = size
    if job.changed_step is not None:
        job.steady_since = fragment.first_step
    job.last_step = job.changed_step = job.next_step = None


def _of_present_size(job_id: str) -> ColumnElement[bool]:
    size = select(StreamedJobRow.world_size).where(StreamedJobRow.job_id == job_id).scalar_subquery()
    return or_(SegmentRow.world_size.is_(None), SegmentRow.world_size == size)


def segments(session: Session, job_id: str, begin: float, end: float) -> list[str]:
    """Digests of the segments with rows between two times, in the order of arrival.

    Raises
    ------
    ProblemError
        ``too-large`` if there are more than `MAX_SEGMENTS`.
    """
    found = list(session.scalars(_between(job_id, begin, end).limit(MAX_SEGMENTS + 1)))
    if len(found) > MAX_SEGMENTS:
        raise ProblemError(
            "too-large",
            f"this time has more than {MAX_SEGMENTS:,} segments of job {job_id!r}",
            hint="name a shorter time with since and until",
        )
    return found[::-1]


def newest_segments(session: Session, job_id: str) -> list[str]:
    """Digests of the newest segments, at most `MAX_SEGMENTS`, in the order of arrival."""
    return list(session.scalars(_between(job_id, -inf, inf).limit(MAX_SEGMENTS)))[::-1]


def first_step(session: Session, job_id: str) -> int | None:
    """The first step of a job that is held; a job that goes on from a checkpoint begins with a high one."""
    mine = select(func.min(SegmentRow.first_step)).where(SegmentRow.job_id == job_id)
    return session.scalar(mine.where(_of_present_size(job_id)))


def open_segments(session: Session, job_id: str) -> list[str]:
    """Digests of the segments that may be merged, the oldest ones, in the order of arrival."""
    mine = select(SegmentRow.digest).where(
        SegmentRow.job_id == job_id, SegmentRow.closed.is_(False), _of_present_size(job_id)
    )
    return list(session.scalars(mine.order_by(SegmentRow.number).limit(MAX_MERGED)))


def _between(job_id: str, begin: float, end: float) -> Select[str]:
    wanted = select(SegmentRow.digest).where(
        SegmentRow.job_id == job_id,
        SegmentRow.end >= begin,
        SegmentRow.begin <= end,
        _of_present_size(job_id),
    )
    return wanted.order_by(SegmentRow.number.desc())


def due(
    session: Session, at: datetime, every: timedelta, silence: timedelta | None, most: int
) -> Sequence[StreamedJobRow]:
    """Jobs with new rows, and jobs without new steps for `silence`, that were not looked at for `every`.

    They are dealt to the callers that began them: the first job of each caller, then the second of each, and
    so on. The caller whose jobs were looked at longest ago comes first. The jobs of one caller take turns:
    the one with the newest rows, then the one that has waited longest for a look. So new jobs of a caller at
    most double the wait of its others: with `k` jobs ahead by wait, a job is among the next `2 k + 2` ones.
    """
    resting = is_recent(StreamedJobRow.looked_at, at, every)
    rested = or_(StreamedJobRow.looked_at.is_(None), not_(resting))
    wanted: list[ColumnElement[bool]] = [StreamedJobRow.pending.is_(True)]
    if silence is not None:
        stepped, again = StreamedJobRow.stepped_at, StreamedJobRow.silence_again_at
        quiet = and_(
            or_(stepped.is_(None), not_(is_recent(stepped, at, silence))),
            or_(stepped.is_not(None), not_(is_recent(StreamedJobRow.updated_at, at, silence))),
            StreamedJobRow.ended_at.is_(None),
            or_(
                StreamedJobRow.silent.is_(False),
                and_(again.is_not(None), not_(is_waiting(again, at, RUNNING))),
            ),
            StreamedJobRow.last_step.is_not(None),
        )
        wanted.append(quiet)
    row, caller = StreamedJobRow, func.coalesce(StreamedJobRow.begun_by, "")
    # A look that lies ahead was before the clock was put back, or has failed and set a pause.
    looked_at = case((row.looked_at <= at, row.looked_at))
    waits_since = func.coalesce(looked_at, row.created_at)
    newest = func.row_number().over(partition_by=caller, order_by=(row.updated_at.desc(), row.job_id))
    longest = func.row_number().over(partition_by=caller, order_by=(waits_since, row.job_id))
    placed = (
        select(row.job_id, newest.label("newest"), longest.label("longest"))
        .where(rested, or_(*wanted))
        .subquery()
    )
    served = select(caller.label("caller"), func.max(looked_at).label("at")).group_by(caller).subquery()
    odd, even = 2 * placed.c.newest - 1, 2 * placed.c.longest
    turn = case((odd < even, odd), else_=even)
    found = select(row).join(placed, placed.c.job_id == row.job_id).join(served, served.c.caller == caller)
    dealt = found.order_by(turn, served.c.at.asc().nulls_first(), row.job_id).limit(most)
    return session.scalars(dealt).all()


def claim(session: Session, job: StreamedJobRow, at: datetime) -> bool:
    """Take a due job for the time of one look; False if another replica has taken it.

    The job stays due: a look that is lost is repeated.
    """
    before = StreamedJobRow.looked_at
    same = before.is_(None) if job.looked_at is None else before == job.looked_at
    done = session.execute(
        update(StreamedJobRow).where(StreamedJobRow.job_id == job.job_id, same).values(looked_at=at)
    )
    return cast("CursorResult[None]", done).rowcount == 1


def replace_segments(
    session: Session, job_id: str, digests: Sequence[str], merged: Fragment, at: datetime
) -> None:
    """Put one segment in the place of those that it holds."""
    keep_window(session, merged.window, at)
    mine = (SegmentRow.job_id == job_id, SegmentRow.digest.in_(digests))
    newest = select(func.max(SegmentRow.received_at), func.max(SegmentRow.number)).where(*mine)
    received_at, number = cast("tuple[datetime, int | None]", tuple(session.execute(newest).one()))
    if number is None:
        # Retention was faster.
        return
    session.execute(delete(SegmentRow).where(*mine))
    insert_if_absent(
        session,
        SegmentRow,
        **_columns(job_id, merged),
        # Rows that arrived during the merge come after it.
        number=number,
        received_at=received_at,
        closed=_is_long(merged),
    )


def _columns(job_id: str, fragment: Fragment) -> dict[str, Any]:
    """Values of a segment's row that follow from its rows."""
    return {
        "job_id": job_id,
        "digest": fragment.window.digest,
        "world_size": fragment.window.world_size,
        "n_bytes": fragment.window.n_bytes,
        "begin": fragment.begin,
        "end": fragment.end,
        "first_step": fragment.first_step,
        "last_step": fragment.last_step,
    }


def _is_long(merged: Fragment) -> bool:
    if merged.window.n_bytes >= CLOSED_BYTES:
        return True
    if merged.first_step is None or merged.last_step is None:
        return merged.end - merged.begin >= CLOSED_SECONDS
    return merged.last_step - merged.first_step >= CLOSED_STEPS


def has_segment() -> ColumnElement[bool]:
    """The condition on `WindowRow` that it is telemetry of a job."""
    return exists(select(SegmentRow.number).where(SegmentRow.digest == WindowRow.digest))


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
