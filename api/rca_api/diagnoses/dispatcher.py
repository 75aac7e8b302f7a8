"""Works on queued diagnoses, each under a lease: none is lost with its process or done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog
from fastapi.concurrency import run_in_threadpool

from rca.deadline import Deadline
from rca.errors import RcaError
from rca_api.diagnoses import work
from rca_api.diagnoses.history_cache import HistoryCache
from rca_api.diagnoses.journal import Claimed, Journal
from rca_api.models.current import CurrentModels
from rca_api.shell.observability import tracing
from rca_api.shell.processes.pool import ComputePool, NeverBegun, ProcessesEnded
from rca_api.shell.requests.problems import ProblemError, from_rca_error
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.base import new_id
from rca_api.shell.store.database import StoreError

_log = structlog.stdlib.get_logger("rca_api")
_POLL_SECONDS = 1.0
#: Waiting tasks of other kinds for each diagnosis that is claimed beyond the number of processes.
_OTHERS_PER_CLAIM = 4
#: Problems that pass: the diagnosis stays queued.
_PASSING = frozenset({"store-unavailable", "bundle-error", "busy"})
#: At shutdown, seconds for running diagnoses to finish; the others are given back.
SHUTDOWN_SECONDS = 10.0


class Dispatcher:
    """One per service process; several share a database.

    Parameters
    ----------
    answered : callable
        Called with each stored answer: id, document, digest of the window.
    """

    def __init__(
        self,
        journal: Journal,
        pool: ComputePool,
        models: CurrentModels,
        memory: HistoryCache,
        settings: Settings,
        answered: Callable[[str, bytes, str], None],
    ) -> None:
        self._journal = journal
        self._pool = pool
        self._models = models
        self._memory = memory
        self._answered = answered
        self._most = settings.processes
        self._deadline_seconds = settings.deadline_seconds
        self._lease_seconds = settings.lease_seconds
        self._owner = new_id()
        self._woken = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, asyncio.Event] = {}
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to work on queued diagnoses."""
        loop = asyncio.get_running_loop()
        self._loops = [loop.create_task(self._claim_on()), loop.create_task(self._renew_on())]

    def wake(self) -> None:
        """Look at the queue now, because a diagnosis was queued."""
        self._woken.set()

    async def wait_for(self, diagnosis_id: str, seconds: float) -> None:
        """Wait until this process has finished a diagnosis, for `seconds` at most."""
        finished = self._waiting.setdefault(diagnosis_id, asyncio.Event())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await finished.wait()
        finally:
            self._waiting.pop(diagnosis_id, None)

    async def stop(self) -> None:
        """Finish running diagnoses and give back those that need longer than `SHUTDOWN_SECONDS`."""
        claiming, renewing = self._loops
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        if self._running:
            await asyncio.wait(self._running.values(), timeout=SHUTDOWN_SECONDS)
        left = dict(self._running)
        for task in (*left.values(), renewing):
            task.cancel()
        await asyncio.gather(*left.values(), renewing, return_exceptions=True)
        if left:
            await self._give_back(list(left))

    async def _claim_on(self) -> None:
        while True:
            self._woken.clear()
            claimed: list[Claimed] = []
            room = self._room()
            if room > 0:
                try:
                    # Shielded, so that a claim during shutdown can be given back.
                    claiming = asyncio.ensure_future(
                        run_in_threadpool(self._journal.claim, self._owner, self._lease_seconds, room)
                    )
                    claimed = await asyncio.shield(claiming)
                except asyncio.CancelledError:
                    with suppress(StoreError):
                        await self._give_back([each.diagnosis_id for each in await claiming])
                    raise
                except StoreError as error:
                    _log.warning("the queue cannot be read", reason=error.message)
                except Exception:
                    # No error of the database ends this loop, not even a missing table.
                    _log.exception("the queue cannot be read")
            for each in claimed:
                self._begin(each)
            if not claimed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await self._woken.wait()

    def _room(self) -> int:
        """How many more diagnoses to claim: one per warm process, and more while other tasks wait.

        The pool works in the order of arrival. With one per process, what is queued would fall behind without
        end under overload. One for four other tasks keeps up with what is accepted.
        """
        load = self._pool.load()
        # A replica without a warm process leaves the queue to the others.
        if not load.warm:
            return 0
        others = max(0, load.waiting - len(self._running))
        return min(self._most, load.warm) + others // _OTHERS_PER_CLAIM - len(self._running)

    async def _renew_on(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            if self._running:
                try:
                    await run_in_threadpool(
                        self._journal.renew, self._owner, list(self._running), self._lease_seconds
                    )
                except Exception as error:
                    _log.warning("the lease cannot be renewed", reason=str(error))

    def _begin(self, claimed: Claimed) -> None:
        if claimed.diagnosis_id in self._running:
            # The lease ran out while the database was away, and this process claimed it again.
            return
        task = asyncio.get_running_loop().create_task(self._work(claimed))
        self._running[claimed.diagnosis_id] = task
        task.add_done_callback(lambda _: self._ended(claimed.diagnosis_id))

    def _ended(self, diagnosis_id: str) -> None:
        self._running.pop(diagnosis_id, None)
        if diagnosis_id in self._waiting:
            self._waiting[diagnosis_id].set()
        self._woken.set()

    async def _work(self, claimed: Claimed) -> None:
        ids = {"diagnosis_id": claimed.diagnosis_id, "window": claimed.window_digest}
        if claimed.request_id is not None:
            ids["request_id"] = claimed.request_id
        known = structlog.contextvars.bound_contextvars(**ids)
        span = tracing.work("queued diagnosis", diagnosis_id=claimed.diagnosis_id)
        with known, span, tracing.collecting():
            await self._diagnose(claimed)

    async def _diagnose(self, claimed: Claimed) -> None:
        try:
            answer = await self._pool.run(
                work.diagnose_stored,
                claimed.window_digest,
                self._models.champion,
                claimed.diagnosis_id,
                self._memory.current,
                deadline=Deadline.after(self._deadline_seconds, of_work=True),
            )
            if not await run_in_threadpool(self._journal.complete, self._owner, answer):
                _log.warning(
                    "a diagnosis was taken over by another process", diagnosis_id=claimed.diagnosis_id
                )
                return
            self._answered(claimed.diagnosis_id, answer.document, claimed.window_digest)
        except (RcaError, ProblemError) as error:
            problem = error if isinstance(error, ProblemError) else from_rca_error(error, 1)
            await self._failed(claimed.diagnosis_id, problem)
        except Exception:
            _log.exception("a queued diagnosis failed", diagnosis_id=claimed.diagnosis_id)
            await self._failed(claimed.diagnosis_id, ProblemError("internal-error", "The service failed."))

    async def _failed(self, diagnosis_id: str, problem: ProblemError) -> None:
        _log.warning("a queued diagnosis failed", diagnosis_id=diagnosis_id, code=problem.code)
        try:
            # Another replica may have a free process.
            if problem.code in _PASSING or isinstance(problem, NeverBegun):
                await self._give_back([diagnosis_id])
                # A part that is away does not come back at once.
                await asyncio.sleep(_POLL_SECONDS)
            elif isinstance(problem, ProcessesEnded):
                # Memory may have been short for another reason. Later, so that others are not held up.
                await run_in_threadpool(
                    self._journal.postpone, self._owner, diagnosis_id, problem, self._lease_seconds
                )
            else:
                await run_in_threadpool(self._journal.fail, self._owner, diagnosis_id, problem)
        except StoreError:
            _log.warning("the diagnosis is retried when its lease has run out", diagnosis_id=diagnosis_id)

    async def _give_back(self, diagnosis_ids: list[str]) -> None:
        if diagnosis_ids:
            await run_in_threadpool(self._journal.give_back, self._owner, diagnosis_ids)
