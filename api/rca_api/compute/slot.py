"""A place in the pool with one process, which is replaced as a whole after any failure.

Each process has its own pebble pool. In a shared pool the processes use one pipe under one lock. A process
that is killed with the lock, or within a message, would stop all others.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pebble import ProcessExpired, ProcessPool

from rca.deadline import Deadline
from rca_api.compute import process
from rca_api.compute.process import Reply, Report, Setup

#: Time limit for a process to become warm; imports from a cold disk take a few seconds.
START_SECONDS = 120.0
#: Time between two checks that the process of a pending answer still exists.
_CHECK_SECONDS = 0.25


class WorkerLost(Exception):
    """The process ended before it took the task, or its answer could not be read."""


class WorkerDied(Exception):
    """The process ended during the task, for example because memory ran out; the text says how."""


@dataclass(eq=False)
class Waiting:
    """A task that waits for a process.

    Attributes
    ----------
    ids : mapping
        Ids for the log lines of the task.
    turn : asyncio.Future
        Gets the slot that has the task.
    begun : Future, optional
        The answer of the process, if it has the task already.
    """

    task: Callable[..., Any]
    arguments: tuple[Any, ...]
    ids: Mapping[str, Any]
    turn: asyncio.Future[Slot]
    begun: Future[Any] | None = None


class Slot:
    """A place in the pool with one process in it.

    The thread that receives an answer gives the process the next task at once. Under overload the event loop
    comes to it milliseconds later, and the process would stand still meanwhile.

    Parameters
    ----------
    queue : deque of Waiting
        Tasks that wait; each is taken off once.
    max_tasks : int
        Tasks of one process; 0 for no limit.
    """

    def __init__(self, queue: deque[Waiting] | None = None, max_tasks: int = 0) -> None:
        self._pool: ProcessPool | None = None
        self._queue: deque[Waiting] = deque() if queue is None else queue
        self._max_tasks = max_tasks
        #: What the process has begun, and the event loop does not know yet.
        self._ahead: Waiting | None = None
        #: None while its process is not warm.
        self.report: Report | None = None
        self.tasks = 0

    async def start(self, setup: Setup) -> Report:
        """Start a process in place of the present one, and wait until it is warm.

        Raises
        ------
        WorkerLost
            If it does not become warm.
        """
        await self.stop()
        self._pool = ProcessPool(
            max_workers=1,
            initializer=process.initialize,
            initargs=(setup,),
            context=multiprocessing.get_context("spawn"),
        )
        try:
            # Starting a process takes milliseconds, which must not block the event loop.
            future = await asyncio.to_thread(self._pool.schedule, process.report)
            self.report = await _answer(self._pool, future, Deadline.after(START_SECONDS))
        except (BrokenProcessPool, ProcessExpired, RuntimeError, TimeoutError, OSError) as error:
            raise WorkerLost(f"{type(error).__name__}: {error}") from error
        self.tasks = 0
        return self.report

    @property
    def is_worn(self) -> bool:
        """Whether the process has had its number of tasks."""
        return 0 < self._max_tasks <= self.tasks

    def taken_ahead(self) -> Waiting | None:
        """The task that the process has begun since its last one ended; the caller takes care of it now."""
        ahead, self._ahead = self._ahead, None
        return ahead

    async def run(self, waiting: Waiting, deadline: Deadline) -> Reply:
        """Run a task in the process, or wait for it if the process has begun it.

        Raises
        ------
        WorkerLost, WorkerDied
            The slot has to be started again.
        TimeoutError
            After the deadline; the process continues until the slot is started again.
        """
        if self._pool is None:
            raise WorkerLost
        try:
            future = waiting.begun or self._schedule(self._pool, waiting)
            reply: Reply = await _answer(self._pool, future, deadline)
        except ProcessExpired as error:
            self.report = None
            raise WorkerDied(how_ended(error.exitcode)) from error
        except RuntimeError as error:
            self.report = None
            raise WorkerLost(str(error)) from error
        return reply

    async def stop(self) -> None:
        """Kill the process."""
        pool, report = self._pool, self.report
        self._pool, self.report = None, None
        if pool is not None:
            await asyncio.to_thread(_end, pool, report)
        # The thread of the pool has ended, so no other task comes ahead.
        ahead = self.taken_ahead()
        if ahead is not None:
            ahead.begun = None
            self._queue.appendleft(ahead)

    def _schedule(self, pool: ProcessPool, waiting: Waiting) -> Future[Any]:
        self.tasks += 1
        arguments = (waiting.task, waiting.arguments, waiting.ids)
        future: Future[Any] = pool.schedule(process.call, args=arguments)
        # Before the event loop learns of the answer.
        future.add_done_callback(self._go_on)
        return future

    def _go_on(self, done: Future[Any]) -> None:
        """Give the process the next task; called by the thread that has received an answer."""
        pool = self._pool
        if pool is None or self.is_worn or self._ahead is not None:
            return
        if done.cancelled() or done.exception() is not None:
            return
        with suppress(IndexError):
            waiting = self._queue.popleft()
            try:
                waiting.begun = self._schedule(pool, waiting)
                self._ahead = waiting
            except RuntimeError:
                # The process is being ended.
                self._queue.appendleft(waiting)


def how_ended(code: int) -> str:
    """The end of a process in words, from its exit code, which is negative for a signal."""
    if code >= 0:
        return f"exit code {code}"
    cause = ", which the kernel sends when memory runs out" if -code == signal.SIGKILL else ""
    return f"signal {-code} ({signal.strsignal(-code)}){cause}"


async def _answer(pool: ProcessPool, future: Future[Any], deadline: Deadline) -> Any:
    """Wait for a result of a pool, as long as its process exists.

    A pebble pool whose idle process is killed fails its tasks. A task that is scheduled at that moment gets
    no answer at all, so the process is checked here.
    """
    answer = asyncio.wrap_future(future)
    try:
        while not answer.done():
            left = deadline.left()
            if not left:
                raise TimeoutError
            await asyncio.wait({answer}, timeout=min(left, _CHECK_SECONDS))
            # In this order: an answer sent before the process ended counts.
            if not (pool.active or future.done()):
                raise BrokenProcessPool("the process ended without an answer")
        return answer.result()
    finally:
        # A late result is not needed.
        answer.cancel()


def _end(pool: ProcessPool, report: Report | None) -> None:
    if report is not None:
        # On SIGTERM a process in a long computation would take seconds to end.
        with suppress(ProcessLookupError):
            os.kill(report.pid, signal.SIGKILL)
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join()
