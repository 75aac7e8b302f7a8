"""The pool of warm processes that everything heavy runs in."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from rca.diagnosis.result import ModelVersion
from rca_api.compute.deadline import Deadline
from rca_api.compute.process import Reply, Setup
from rca_api.compute.slot import Slot, WorkerDied, WorkerLost
from rca_api.metrics import Metrics
from rca_api.models.current import BundleRef
from rca_api.problems import ProblemError

_log = structlog.stdlib.get_logger("rca_api")
_LONGEST_PAUSE_SECONDS = 30.0
#: Share of the newest task in the moving mean: about the last twenty count.
_NEWEST_WEIGHT = 0.1

#: Why a process is replaced: it ended at work, was gone before, overran a deadline, was left in an unknown
#: state (its caller was cancelled), or has worked long enough.
Renewal = Literal["died", "lost", "deadline", "unusable", "worn"]
#: A task that ends two processes is refused: it would end the third as well. Who finds a process gone is
#: innocent of it, unless it happens over and over.
MOST: dict[Renewal, int] = {"died": 2, "lost": 5}


class DeadlineExceeded(ProblemError):
    """Time is up."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__(
            "deadline-exceeded",
            f"there was no answer within {deadline.seconds:g} s",
            hint="ask again with Prefer: respond-async, or send fewer steps or metrics",
        )


class NeverBegun(DeadlineExceeded):
    """Time is up before a process was free: not the fault of the task."""


@dataclass(frozen=True)
class Load:
    """Processes wanted, warm and working, and tasks that wait for one."""

    size: int
    warm: int
    busy: int
    waiting: int


class ComputePool:
    """Hands tasks to free processes in the order in which they come.

    A process that dies, overruns a deadline or has worked long enough is replaced; those who wait
    notice nothing. Use it from one event loop.

    Parameters
    ----------
    setup : callable
        Gives what a process is started with, at the moment it is started.
    processes : int
    tasks_per_process : int
        After so many tasks a process is replaced, so that whatever grows in it does not grow for ever;
        0 for never.
    metrics : Metrics
    """

    def __init__(
        self, setup: Callable[[], Setup], processes: int, tasks_per_process: int, metrics: Metrics
    ) -> None:
        self._setup = setup
        self._tasks_per_process = tasks_per_process
        self._metrics = metrics
        self._slots = [Slot() for _ in range(processes)]
        # The one used last is warmest in the processor's caches.
        self._free: asyncio.LifoQueue[Slot] = asyncio.LifoQueue()
        self._renewals: set[asyncio.Task[None]] = set()
        self._closed = False
        #: What a bundle turned out to be when it was loaded, or why it cannot be used.
        self._found: dict[BundleRef, ModelVersion | str] = {}
        self._mean_seconds = 0.0
        self._waiting = 0
        self._busy: set[Slot] = set()

    @property
    def model(self) -> ModelVersion | None:
        """The bundle that answers now; None while no process has loaded it."""
        return self.model_of(self._setup().champion)

    @property
    def failure(self) -> str | None:
        """Why the bundle that is to answer now cannot be used."""
        found = self._found.get(self._setup().champion)
        return found if isinstance(found, str) else None

    def model_of(self, ref: BundleRef) -> ModelVersion | None:
        """What a bundle is, if it was loaded the last time it was needed."""
        found = self._found.get(ref)
        return found if isinstance(found, ModelVersion) else None

    def loaded(self, ref: BundleRef, model: ModelVersion) -> None:
        """Say that a task has used a bundle."""
        self._found[ref] = model

    def processes(self) -> list[int]:
        """Process ids of those that are warm."""
        return [slot.report.pid for slot in self._slots if slot.report is not None]

    def load(self) -> Load:
        """Say how busy it is."""
        return Load(len(self._slots), len(self.processes()), len(self._busy), self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether a process is free and nobody waits for one."""
        return not self._waiting and not self._free.empty()

    def seconds_until_free(self, ahead: int) -> float:
        """Estimate when `ahead` tasks will have been worked off, by what the last ones took."""
        return self._mean_seconds * ahead / len(self._slots)

    def start(self) -> None:
        """Start the processes; tasks may be given at once and wait for the first warm one."""
        for slot in self._slots:
            self._renew(slot)

    async def close(self) -> None:
        """End all processes at once."""
        self._closed = True
        for renewal in tuple(self._renewals):
            renewal.cancel()
        await asyncio.gather(*self._renewals, return_exceptions=True)
        await asyncio.gather(*(slot.stop() for slot in self._slots))

    async def run(self, task: Callable[..., Any], *arguments: Any, deadline: Deadline) -> Any:
        """Run ``task(context, *arguments)`` in a process and give what it returns.

        Parameters
        ----------
        task : callable
            A function of a module, whose first argument is a `rca_api.compute.process.Context`.
        arguments
            Picklable, and small: large bodies go by file (`rca_api.compute.body`).
        deadline : Deadline
            Waiting for a free process counts, unless it is one of work: that begins anew with each process.

        Raises
        ------
        RcaError
            What the task raised.
        ProblemError
            ``deadline-exceeded`` (`NeverBegun` if no process was free), or ``internal-error`` if the task
            failed unexpectedly, ended two processes or found five gone.
        """
        ended: Counter[Renewal] = Counter()
        while True:
            slot = await self._next(deadline)
            self._busy.add(slot)
            renew: Renewal | None = "unusable"
            try:
                reply = await slot.ask(task, arguments, deadline.begun())
                renew = None
                return self._value(reply)
            except (WorkerLost, WorkerDied) as error:
                renew = "died" if isinstance(error, WorkerDied) else "lost"
                ended[renew] += 1
                self._retry(task.__name__, renew, ended[renew], error)
            except TimeoutError:
                renew = "deadline"
                self._metrics.deadlines.labels("working").inc()
                raise DeadlineExceeded(deadline) from None
            finally:
                self._busy.discard(slot)
                self._give_back(slot, renew)

    def _retry(self, task: str, how: Renewal, times: int, error: Exception) -> None:
        """Say that a process did not answer, and refuse the task if that happened to it too often."""
        if how == "died":
            _log.error("a process died of a task", task=task, times=times, how=str(error))
        else:
            _log.warning("a process was gone", task=task, times=times, how=str(error))
        if times >= MOST[how]:
            raise ProblemError(
                "internal-error", f"The process that worked on this ended unexpectedly, {times} times."
            ) from error
        self._metrics.pool_retries.inc()

    async def _next(self, deadline: Deadline) -> Slot:
        self._waiting += 1
        try:
            with self._metrics.stage("queue"):
                async with asyncio.timeout(deadline.left()):
                    return await self._free.get()
        except TimeoutError:
            self._metrics.deadlines.labels("waiting").inc()
            raise NeverBegun(deadline) from None
        finally:
            self._waiting -= 1

    def _value(self, reply: Reply) -> Any:
        for stage, timed in reply.stages.items():
            self._metrics.staged(stage, timed)
        self._mean_seconds += _NEWEST_WEIGHT * (reply.seconds - self._mean_seconds)
        if reply.crash is not None:
            _log.error("a task failed", traceback=reply.crash)
            raise ProblemError("internal-error", "The service failed; report this with the request id.")
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _give_back(self, slot: Slot, renew: Renewal | None) -> None:
        if renew is None and self._tasks_per_process and slot.tasks >= self._tasks_per_process:
            renew = "worn"
        if renew is None:
            self._free.put_nowait(slot)
        elif not self._closed:
            self._metrics.pool_renewals.labels(renew).inc()
            self._renew(slot)

    def _renew(self, slot: Slot) -> None:
        renewal = asyncio.get_running_loop().create_task(self._until_warm(slot))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._renewals.discard)

    async def _until_warm(self, slot: Slot) -> None:
        pause = 0.5
        while True:
            setup = self._setup()
            try:
                report = await slot.start(setup)
            except WorkerLost as error:
                _log.error("a process cannot be started", reason=str(error), pause_seconds=pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                self._found[setup.champion] = report.model or report.failure or "it was not loaded"
                self._free.put_nowait(slot)
                return
