"""One process of the pool: started, asked, and replaced as a whole when anything went wrong in it.

Each has a pebble pool of its own. In a shared one, workers take turns at one pipe under one lock: one
that is killed while it holds the lock, or halfway through a message, stops all others.
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

from rca_api import tracing
from rca_api.compute import process
from rca_api.compute.deadline import Deadline
from rca_api.compute.process import Reply, Report, Setup

#: A process that is not warm by then is given up; imports from a cold disk take a few seconds.
START_SECONDS = 120.0
#: How often somebody who waits for an answer looks whether there is still a process to give it.
_LOOK_SECONDS = 0.25


class WorkerLost(Exception):
    """The process was gone before it took the task, or what it answered could not be read."""


class WorkerDied(Exception):
    """The process ended while it worked on the task, for example because memory ran out."""


class Slot:
    """A place in the pool with one process in it."""

    def __init__(self) -> None:
        self._pool: ProcessPool | None = None
        #: None while no process is warm in it.
        self.report: Report | None = None
        self.tasks = 0

    async def start(self, setup: Setup) -> Report:
        """Start a process in place of the one there was, and wait until it is warm.

        Raises
        ------
        WorkerLost
            If it does not get warm.
        """
        await self.stop()
        self._pool = ProcessPool(
            max_workers=1,
            initializer=process.initialize,
            initargs=(setup,),
            context=multiprocessing.get_context("spawn"),
        )
        try:
            # Starting a process takes milliseconds, which the event loop must not stand still for.
            future = await asyncio.to_thread(self._pool.schedule, process.report)
            self.report = await _answer(self._pool, future, Deadline.after(START_SECONDS))
        except (BrokenProcessPool, ProcessExpired, RuntimeError, TimeoutError, OSError) as error:
            raise WorkerLost(f"{type(error).__name__}: {error}") from error
        self.tasks = 0
        return self.report

    async def ask(self, task: Callable[..., Any], arguments: tuple[Any, ...], deadline: Deadline) -> Reply:
        """Run a task in the process.

        Raises
        ------
        WorkerLost, WorkerDied
            And the slot has to be started anew.
        TimeoutError
            After the deadline; the process goes on until the slot is started anew.
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
            raise WorkerDied(f"exit code {error.exitcode}") from error
        except RuntimeError as error:
            self.report = None
            raise WorkerLost(str(error)) from error
        return reply

    async def stop(self) -> None:
        """End the process at once, whatever it does."""
        pool, report = self._pool, self.report
        self._pool, self.report = None, None
        if pool is not None:
            await asyncio.to_thread(_end, pool, report)


async def _answer(pool: ProcessPool, future: Future[Any], deadline: Deadline) -> Any:
    """Wait for what was asked of a pool, as long as there is a process to answer.

    A pebble pool whose process was killed while it had nothing to do gives up, and with it what it was asked;
    but not what it is asked at that very moment, which nobody would ever answer.
    """
    answer = asyncio.wrap_future(future)
    try:
        while not answer.done():
            left = deadline.left()
            if not left:
                raise TimeoutError
            await asyncio.wait({answer}, timeout=min(left, _LOOK_SECONDS))
            # In this order: what the last process told before it ended counts.
            if not (pool.active or future.done()):
                raise BrokenProcessPool("no process answers any more")
        return answer.result()
    finally:
        # Nobody asks any more for what it may still become.
        answer.cancel()


def _end(pool: ProcessPool, report: Report | None) -> None:
    if report is not None:
        # Asked politely, a process inside a long computation would hold us up for seconds.
        with suppress(ProcessLookupError):
            os.kill(report.pid, signal.SIGKILL)
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join()
