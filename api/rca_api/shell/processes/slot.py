"""A place in the pool with one process, which is replaced as a whole after any failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import structlog

from rca.deadline import Deadline
from rca_api.shell.observability import tracing
from rca_api.shell.processes import process
from rca_api.shell.processes.child_process import ChildEnded, ChildProcess, Reply
from rca_api.shell.processes.process import ProcessReport, Setup

#: Time limit for a process to become warm; imports from a cold disk take a few seconds.
START_SECONDS = 120.0
T = TypeVar("T")


class Slot:
    """A place in the pool with one process in it."""

    def __init__(self) -> None:
        self._child: ChildProcess | None = None
        self._changing = threading.Lock()
        self._stops = 0
        #: Waits for the process; killing the process frees the thread.
        self._thread = ThreadPoolExecutor(1, "slot")
        #: None while its process is not warm.
        self.report: ProcessReport | None = None
        self.tasks = 0

    async def start(self, setup: Setup) -> ProcessReport:
        """Start a process in place of the present one, and wait until it is warm.

        Raises
        ------
        ChildEnded
            If it does not become warm.
        """
        await self.stop()
        try:
            self.report = await self._wait(partial(self._started, setup, self._stops))
        except (OSError, TimeoutError) as error:
            raise ChildEnded(f"{type(error).__name__}: {error}") from error
        self.tasks = 0
        return self.report

    async def run(self, task: Callable[..., Any], arguments: tuple[Any, ...], deadline: Deadline) -> Reply:
        """Run a task in the process.

        Raises
        ------
        ChildEnded
            The slot has to be started again.
        TimeoutError
            After the deadline; the process continues until the slot is started again.
        """
        if self._child is None:
            raise ChildEnded("a stop")
        self.tasks += 1
        ids = {**structlog.contextvars.get_contextvars(), **tracing.ids()}
        try:
            async with asyncio.timeout(deadline.left()):
                return await self._wait(partial(self._child.call, task, *arguments, ids=ids))
        except ChildEnded:
            self.report = None
            raise

    async def stop(self) -> None:
        """Kill the process."""
        with self._changing:
            self._stops += 1
            child, self._child, self.report = self._child, None, None
        if child is not None:
            await asyncio.to_thread(child.end)

    def _started(self, setup: Setup, stops: int) -> ProcessReport:
        child = ChildProcess(process.serve, setup)
        with self._changing:
            stopped = self._stops > stops
            if not stopped:
                self._child = child
        if stopped:
            # The start was cancelled before there was a process to kill.
            child.end()
            raise ChildEnded("a stop")
        report: ProcessReport = child.await_ready(START_SECONDS)
        return report

    async def _wait(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
