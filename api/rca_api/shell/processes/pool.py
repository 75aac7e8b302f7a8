"""The pool of warm processes for diagnoses and what-if answers."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from rca.deadline import Deadline
from rca.diagnosis.result import ModelVersion
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.processes.child_process import ChildEnded, Reply
from rca_api.shell.processes.process import Setup
from rca_api.shell.processes.slot import Slot
from rca_api.shell.requests.problems import ProblemError

_log = structlog.stdlib.get_logger("rca_api")
_MAX_PAUSE_SECONDS = 30.0
#: Weight of the newest task in the moving mean, which covers about the last twenty.
_NEWEST_WEIGHT = 0.1

#: Why a process is replaced: it died during a task, was lost before it, exceeded a deadline, is in an unknown
#: state because its caller was cancelled, or has done its number of tasks.
Renewal = Literal["died", "lost", "deadline", "unusable", "worn"]
#: Processes that one task may use up. A task during which two died would end the third as well. A task that
#: finds its process lost is not the reason, unless this repeats.
MAX_PROCESSES: dict[Renewal, int] = {"died": 2, "lost": 5}


class DeadlineExceeded(ProblemError):
    """The deadline has passed."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__(
            "deadline-exceeded",
            f"there was no answer within {deadline.seconds:g} s",
            hint="repeat it with Prefer: respond-async, or send fewer steps or metrics",
        )


class ProcessesEnded(ProblemError):
    """Each process that got the task ended; it may be repeated after `retry_after_seconds`.

    Parameters
    ----------
    times : int
        Number of processes.
    how : str
        How the last one ended.
    """

    def __init__(self, times: int, how: str, retry_after_seconds: int) -> None:
        super().__init__(
            "process-ended",
            f"{times} processes that got this ended, the last one with {how}; "
            f"retry after {retry_after_seconds} s",
            headers={"Retry-After": str(retry_after_seconds)},
            hint="if it ends again, send fewer steps or ranks, and report the request id",
        )


class NeverBegun(DeadlineExceeded):
    """The deadline passed before a process was free; the task is not the reason."""


@dataclass(frozen=True)
class Load:
    """Number of processes in all, warm and working, and of tasks that wait."""

    size: int
    warm: int
    busy: int
    waiting: int


class ComputePool:
    """Gives tasks to free processes in the order of their arrival.

    A process that dies, exceeds a deadline or has done its number of tasks is replaced; waiting tasks are not
    affected. Use it from one event loop.

    Parameters
    ----------
    setup : callable
        Gives the setup of a process at the moment it is started.
    tasks_per_process : int
        Tasks after which a process is replaced, so that its memory does not grow without end; 0 for never.
    """

    def __init__(
        self, setup: Callable[[], Setup], processes: int, tasks_per_process: int, metrics: Metrics
    ) -> None:
        self._setup = setup
        self._tasks_per_process = tasks_per_process
        self._metrics = metrics
        self._slots = [Slot() for _ in range(processes)]
        # Last in, first out: the caches of the processor hold the data of the process used last.
        self._free: asyncio.LifoQueue[Slot] = asyncio.LifoQueue()
        self._renewals: set[asyncio.Task[None]] = set()
        self._closed = False
        #: Version of each bundle that was loaded, or why it cannot be used.
        self._found: dict[BundleRef, ModelVersion | str] = {}
        self._mean_seconds = 0.0
        #: Time that the last process took to become warm.
        self._start_seconds = 0.0
        self._waiting = 0
        self._busy: set[Slot] = set()

    @property
    def model(self) -> ModelVersion | None:
        """Version of the champion; None while no process has loaded it."""
        return self.model_of(self._setup().champion)

    @property
    def failure(self) -> str | None:
        """Why the champion cannot be used; None if it can."""
        found = self._found.get(self._setup().champion)
        return found if isinstance(found, str) else None

    def model_of(self, ref: BundleRef) -> ModelVersion | None:
        """Version of a bundle; None if its last load failed."""
        found = self._found.get(ref)
        return found if isinstance(found, ModelVersion) else None

    def loaded(self, ref: BundleRef, model: ModelVersion) -> None:
        """Record the version of a bundle that a task has used."""
        self._found[ref] = model

    def processes(self) -> list[int]:
        """Ids of the warm processes."""
        return [slot.report.pid for slot in self._slots if slot.report is not None]

    def load(self) -> Load:
        """How busy the pool is."""
        return Load(len(self._slots), len(self.processes()), len(self._busy), self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether a process is free and no task waits."""
        return not self._waiting and not self._free.empty()

    def seconds_until_free(self, ahead: int) -> float:
        """Estimate the seconds for `ahead` tasks from the duration of the last ones."""
        return self._mean_seconds * ahead / len(self._slots)

    def start(self) -> None:
        """Start the processes; tasks may be given at once, and wait for the first warm process."""
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
            A function of a module, whose first argument is a `rca_api.shell.processes.process.Context`.
        arguments
            Picklable, and small: large bodies go by file (`rca_api.shell.processes.body`).
        deadline : Deadline
            Waiting for a free process counts, except for a deadline of work, which starts again with each
            process.

        Raises
        ------
        RcaError
            What the task raised.
        ProblemError
            ``deadline-exceeded`` (`NeverBegun` if no process was free), ``internal-error`` if the task
            failed unexpectedly, or ``process-ended`` (`ProcessesEnded`) if two processes died during it, or
            five were lost before it.
        """
        ended: Counter[Renewal] = Counter()
        while True:
            slot = await self._next(deadline)
            self._busy.add(slot)
            renew: Renewal | None = "unusable"
            try:
                reply = await slot.run(task, arguments, deadline.begun())
                renew = None
                return self._value(reply)
            except ChildEnded as error:
                renew = "died" if error.at_work else "lost"
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
        """Log that a process did not answer, and refuse the task after too many of them."""
        if how == "died":
            _log.error("a process died during a task", task=task, times=times, how=str(error))
        else:
            _log.warning("a process was lost before a task", task=task, times=times, how=str(error))
        if times < MAX_PROCESSES[how]:
            self._metrics.pool_retries.inc()
            return
        self._metrics.pool_given_up.labels(how).inc()
        # Another process has to start first, and what waits now comes before a repetition.
        wait = self._start_seconds + self.seconds_until_free(self._waiting + 1)
        raise ProcessesEnded(times, str(error) or "an unknown reason", max(1, math.ceil(wait))) from error

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
            began = time.monotonic()
            try:
                report = await slot.start(setup)
            except ChildEnded as error:
                _log.error("a process cannot be started", reason=str(error), pause_seconds=pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
            else:
                self._start_seconds = time.monotonic() - began
                self._found[setup.champion] = report.model or report.failure or "it was not loaded"
                self._free.put_nowait(slot)
                return
