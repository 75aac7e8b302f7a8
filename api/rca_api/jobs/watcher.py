"""Watches jobs that send telemetry: longer steps, a rank that becomes late or silence queue a diagnosis.

Each look reads the last few hundred steps. A look that finds no change costs milliseconds. What it finds is
diagnosed like a posted window, and the diagnosis decides whether it is an incident.

Looks are dealt to callers in turn (`rca_api.jobs.repository.due`), in short rounds. A caller with new rows
waits for the round that runs, however many jobs another caller has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from time import monotonic
from typing import Any

import structlog
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.orm import Session

from rca.deadline import Deadline
from rca.errors import InvalidInput, RcaError
from rca_api.diagnoses.dispatcher import Dispatcher
from rca_api.diagnoses.journal import Journal
from rca_api.jobs import repository, work
from rca_api.jobs.tables import StreamedJobRow
from rca_api.jobs.work import Fragment, Look, WantedLook
from rca_api.shell.processes.pool import ComputePool, NeverBegun
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database
from rca_api.shell.store.waits import Listening, is_recent, is_waiting

_log = structlog.stdlib.get_logger("rca_api.jobs")
_POLL_SECONDS = 1.0
#: Looks of one round. The next round deals anew, so this bounds the wait of a job that comes meanwhile.
MAX_LOOKS = 32
#: No look begins later in a round, for the same reason.
MAX_ROUND_SECONDS = 2.0
#: Problems that a look may cause itself.
_OWN_PROBLEMS = frozenset({"process-ended", "deadline-exceeded", "internal-error"})
#: Looks that fail in a row until a job without new rows is given up.
MAX_FAILURES = 3
#: A wait that ends further ahead than ten minutes would count as over.
MAX_PAUSE = timedelta(minutes=5)
#: Jobs whose failures are counted.
MAX_FAILING = 10_000
#: Steps after which a job without a change is diagnosed once: it may be slow from its start.
FIRST_STEPS = 64
#: Steps until a change is diagnosed again: so many at least, and this share of those that it has lasted.
_AGAIN_STEPS = 4
_AGAIN_SHARE = 0.5
#: Windows from the first step, or after the end of a change, that are diagnosed. They confirm that a job is
#: slow from its start; healthy ones resolve an incident.
_STEADY_WINDOWS = 6
#: So many open segments are stored as one.
MERGED_FROM = 64
#: Merges before one look.
_MAX_MERGES = 8
#: A job is silent after so many usual steps at least.
_SILENT_STEPS = 20


@dataclass(frozen=True)
class _Claimed:
    """A claimed job: when, what to look for, and the arrival of its newest rows and steps."""

    job_id: str
    at: datetime
    begun_by: str | None
    ended: bool
    updated_at: datetime
    stepped_at: datetime | None
    wanted: WantedLook


class Watcher:
    """Looks at jobs with new telemetry; several replicas share the work.

    Parameters
    ----------
    dispatcher : Dispatcher
        Is woken for each queued diagnosis.
    listening : Listening
        A job is silent at most as long as the service could hear it.
    """

    def __init__(
        self,
        database: Database,
        pool: ComputePool,
        journal: Journal,
        dispatcher: Dispatcher,
        settings: Settings,
        listening: Listening,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._database = database
        self._pool = pool
        self._journal = journal
        self._dispatcher = dispatcher
        self._every = timedelta(seconds=settings.watch_seconds)
        self._silence = timedelta(seconds=settings.job_silence_seconds)
        self._deadline_seconds = settings.deadline_seconds
        self._max_queued = settings.max_queued
        self._listening = listening
        self._clock = clock
        #: Failed looks in a row by job.
        self._failures: dict[str, int] = {}
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look for jobs now, because telemetry has arrived."""
        self._woken.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._woken.wait()
            self._woken.clear()
            try:
                while await self.round():
                    pass
            except RcaError as error:
                _log.warning("jobs cannot be watched at the moment", reason=error.message)

    async def round(self) -> int:
        """Look at the jobs whose turn it is, one for each process at once; gives the number of looks."""
        ends = monotonic() + MAX_ROUND_SECONDS
        due = takewhile(lambda _: monotonic() < ends, await run_in_threadpool(self._due))

        async def look_on() -> int:
            # All of them take from the same iterator.
            return sum([await self._watched(job) for job in due])

        async with asyncio.TaskGroup() as group:
            looking = [group.create_task(look_on()) for _ in range(max(1, self._pool.load().warm))]
        return sum(task.result() for task in looking)

    def _due(self) -> Sequence[StreamedJobRow]:
        at = self._clock()
        hears = self._listening.seconds() >= self._silence.total_seconds()
        silence = self._silence if hears else None
        with self._database.reading() as session:
            found = repository.due(session, at, self._every, silence, MAX_LOOKS)
            session.expunge_all()
        return found

    async def _watched(self, job: StreamedJobRow) -> bool:
        """Look at a job; False if it was not claimed, or the look failed."""
        try:
            claimed = await run_in_threadpool(self._claim, job)
            if claimed is None:
                return False
            await self._watch(claimed)
        except (RcaError, ProblemError) as error:
            # It stays due, and is looked at again after a pause.
            _log.warning("a job cannot be watched", job_id=job.job_id, reason=str(error))
            return False
        return True

    async def _watch(self, claimed: _Claimed) -> None:
        failed = 0
        try:
            found = await self._look(claimed)
        except InvalidInput as error:
            # The same rows give the same error: it is looked at again when others arrive.
            found = Look(None, None, None, None, (": ".join(filter(None, (error.message, error.hint))),))
        except ProblemError as error:
            if error.code not in _OWN_PROBLEMS or isinstance(error, NeverBegun):
                raise
            failed = self._failures.get(claimed.job_id, 0) + 1
            found = Look(None, None, None, None, (f"the last look failed: {error}",))
        self._failures.pop(claimed.job_id, None)
        if failed:
            self._failures[claimed.job_id] = failed
            if len(self._failures) > MAX_FAILING:
                del self._failures[next(iter(self._failures))]
        if await run_in_threadpool(self._settle, claimed, found, failed):
            self._dispatcher.wake()

    async def _look(self, claimed: _Claimed) -> Look:
        # A look reads few large segments much faster than many small ones.
        for _ in range(_MAX_MERGES):
            opened = await run_in_threadpool(self._digests, claimed, repository.open_segments)
            if len(opened) < MERGED_FROM:
                break
            merged, replaced = await self._run(work.merge, opened)
            await run_in_threadpool(self._replace, claimed, merged, replaced)
        digests = await run_in_threadpool(self._digests, claimed, repository.newest_segments)
        found: Look = await self._run(work.look, digests, claimed.wanted)
        return found

    async def _run(self, task: Callable[..., Any], *arguments: Any) -> Any:
        deadline = Deadline.after(self._deadline_seconds, of_work=True)
        return await self._pool.run(task, *arguments, deadline=deadline)

    def _claim(self, job: StreamedJobRow) -> _Claimed | None:
        at = self._clock()
        longest = max(self._silence.total_seconds(), _SILENT_STEPS * (job.usual_seconds or 0.0))
        silence = timedelta(seconds=longest)
        heard = (
            is_recent(job.stepped_at or job.updated_at, at, silence) or self._listening.seconds() < longest
        )
        again = job.silence_again_at
        is_due = not job.silent or (again is not None and not is_waiting(again, at, repository.RUNNING))
        is_silent = is_due and not heard and job.ended_at is None
        if not (job.pending or is_silent):
            return None
        with self._database.session() as session:
            if not repository.claim(session, job, at):
                return None
            if not repository.newest_segments(session, job.job_id):
                session.get_one(StreamedJobRow, job.job_id).pending = False
                return None
            is_new = job.diagnosis_id is None and job.changed_step is None
            begun = repository.first_step(session, job.job_id) if is_new else None
        wanted = WantedLook(
            changed_step=job.changed_step,
            next_step=job.next_step,
            first_step=None if begun is None else begun + FIRST_STEPS,
            silent_until=at.timestamp() if is_silent else None,
            ended=job.ended_at is not None and is_due,
            steady_since=job.steady_since,
        )
        ended = job.ended_at is not None
        return _Claimed(job.job_id, at, job.begun_by, ended, job.updated_at, job.stepped_at, wanted)

    def _digests(self, claimed: _Claimed, of: Callable[[Session, str], list[str]]) -> list[str]:
        with self._database.reading() as session:
            return of(session, claimed.job_id)

    def _settle(self, claimed: _Claimed, found: Look, failed: int) -> bool:
        """Store what a look has found, and queue its diagnosis; whether there is one.

        After a look that failed the job rests. It stays due until `MAX_FAILURES` in a row have `failed`.
        """
        diagnosis_id = None
        if found.window is not None:
            diagnosis_id = self._journal.enqueue(
                found.window, asked_by=claimed.begun_by, most=self._max_queued
            )
        silent = claimed.wanted.silent_until is not None
        with self._database.session() as session:
            job = session.get_one(StreamedJobRow, claimed.job_id, with_for_update=True)
            same = job.updated_at == claimed.updated_at and (job.ended_at is not None) == claimed.ended
            if same and not 0 < failed < MAX_FAILURES:
                job.pending = False
            # Metrics that arrived meanwhile do not end a silence, nor do those after the end of a job.
            stopped = silent or (claimed.wanted.ended and diagnosis_id is not None)
            if stopped and job.stepped_at == claimed.stepped_at and not 0 < failed < MAX_FAILURES:
                job.silent = True
                job.silence_again_at = None if failed else silence_again(claimed)
            if found.usual_seconds is not None:
                job.usual_seconds = found.usual_seconds
            if found.remarks and not job.remarks:
                _log.warning("telemetry of a job has flaws", job_id=job.job_id, remarks=found.remarks)
            job.remarks = "\n".join(found.remarks) or None
            if diagnosis_id is not None:
                job.diagnosis_id = diagnosis_id
            if failed:
                # Each pause is twice the last one.
                job.looked_at = self._clock() + min(self._every * 2 ** min(failed, 16), MAX_PAUSE)
                return False
            queued = diagnosis_id is not None
            job.changed_step, job.next_step, job.steady_since = followed(found, claimed.wanted, queued=queued)
        if diagnosis_id is None:
            return False
        _log.info("a job is diagnosed", job_id=claimed.job_id, diagnosis_id=diagnosis_id, silent=silent)
        return True

    def _replace(self, claimed: _Claimed, merged: Fragment, replaced: list[str]) -> None:
        with self._database.session() as session:
            repository.replace_segments(session, claimed.job_id, replaced, merged, self._clock())


def silence_again(claimed: _Claimed) -> datetime | None:
    """When a silence that is diagnosed now is diagnosed again: once it is twice as long, for an hour at most.

    A short silence may be a pause, so its first diagnosis may be undecided. After the end of a job with a
    failure, exits of other ranks may follow.
    """
    length = claimed.at - (claimed.stepped_at or claimed.updated_at)
    return claimed.at + length if 2 * length <= repository.RUNNING else None


def followed(found: Look, wanted: WantedLook, *, queued: bool) -> tuple[int | None, int | None, int | None]:
    """First step of the change that is followed, step of the next diagnosis, and first step after its end."""
    if found.last_step is None:
        return None, None, wanted.steady_since
    if found.change is not None:
        if not queued:
            return wanted.changed_step, wanted.next_step, None
        since = found.last_step - found.change.step
        return found.change.step, found.last_step + max(_AGAIN_STEPS, int(_AGAIN_SHARE * since)), None
    steady = wanted.steady_since
    if steady is None and wanted.changed_step is not None:
        steady = found.last_step + 1
    elif steady is None and wanted.first_step is not None and queued:
        steady = wanted.first_step - FIRST_STEPS
    if steady is None:
        return None, None, None
    following = work.steady_step(steady, wanted)
    if queued:
        # A look may come late. The next window begins after this one, and as many follow.
        steady += found.last_step - following
        following = found.last_step + work.STEADY_STEPS
    over = following > steady + _STEADY_WINDOWS * work.STEADY_STEPS
    return (None, None, None) if over else (None, following, steady)
