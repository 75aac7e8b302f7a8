"""A place in the pool with one process, which is replaced as a whole after any failure.

Each process has its own pebble pool. In a shared pool the processes use one pipe under one lock. A process
that is killed with the lock, or within a message, would stop all others.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any

import structlog
from pebble import ProcessExpired, ProcessPool

from rca.deadline import Deadline
from rca_api.shell.observability import tracing
from rca_api.shell.processes import process
from rca_api.shell.processes.process import Reply, Report, Setup

#: Time limit for a process to become warm; imports from a cold disk take a few seconds.
START_SECONDS = 120.0
#: Time between two checks that the process of a pending answer still exists.
_CHECK_SECONDS = 0.25


class WorkerLost(Exception):
    """The process ended before it took the task, or its answer could not be read."""


class WorkerDied(Exception):
    """The process ended during the task, for example because memory ran out; the text says how."""


class Slot:
    """A place in the pool with one process in it."""

    def __init__(self) -> None:
        self._pool: ProcessPool | None = None
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

    async def run(self, task: Callable[..., Any], arguments: tuple[Any, ...], deadline: Deadline) -> Reply:
        """Run a task in the process.

        Raises
        ------
        WorkerLost, WorkerDied
            The slot has to be started again.
        TimeoutError
            After the deadline; the process continues until the slot is started again.
        """
        if self._pool is None:
            raise WorkerLost
        self.tasks += 1
        try:
            ids = {**structlog.contextvars.get_contextvars(), **tracing.ids()}
            future = self._pool.schedule(process.call, args=(task, arguments, ids))
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
