"""The pool: processes that die, overrun, wear out or fail, and callers that get their answer all the same."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pool_tasks
import pytest
from watched import until

from rca.deadline import Deadline
from rca.errors import InvalidWindow
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.processes.pool import ComputePool
from rca_api.shell.processes.process import Setup
from rca_api.shell.requests.problems import ProblemError

pytestmark = [pytest.mark.slow, pytest.mark.system]

LONG = 120.0


def with_pool(tmp_path: Path, use: Callable[[ComputePool], Awaitable[None]], tasks: int = 0) -> None:
    async def run() -> None:
        setup = Setup(BundleRef(None), None, str(tmp_path / "windows"))
        pool = ComputePool(lambda: setup, 1, tasks, Metrics())
        pool.start()
        try:
            await use(pool)
        finally:
            await pool.close()
        assert pool.processes() == []

    asyncio.run(run())


def test_failed_tasks_raise_and_the_process_stays(tmp_path: Path) -> None:
    async def use(pool: ComputePool) -> None:
        process = await pool.run(pool_tasks.process_id, deadline=Deadline.after(LONG))
        with pytest.raises(InvalidWindow) as refused:
            await pool.run(pool_tasks.refuse, deadline=Deadline.after(LONG))
        assert refused.value.details()["rows"] == [{"row": 3}]
        assert (refused.value.n_rows, refused.value.column) == (7, "gc_seconds")
        with pytest.raises(ProblemError) as failed:
            await pool.run(pool_tasks.fail, deadline=Deadline.after(LONG))
        assert failed.value.code == "internal-error"
        assert "secret" not in failed.value.detail
        assert await pool.run(pool_tasks.process_id, deadline=Deadline.after(LONG)) == process
        assert Path(f"/proc/{process}/comm").read_text() == "rca-compute\n"
        assert pool.model is not None

    with_pool(tmp_path, use)


def test_a_task_is_repeated_once_if_its_process_dies(tmp_path: Path) -> None:
    async def use(pool: ComputePool) -> None:
        once, always = tmp_path / "once", tmp_path / "always"
        assert await pool.run(pool_tasks.end_the_process, once, 1, deadline=Deadline.after(LONG)) == 2
        with pytest.raises(ProblemError) as given_up:
            await pool.run(pool_tasks.end_the_process, always, 9, deadline=Deadline.after(LONG))
        assert given_up.value.code == "process-ended"
        assert "signal 9 (Killed), which the kernel sends when memory runs out" in given_up.value.detail
        # Another process has to start first.
        assert int(given_up.value.headers["Retry-After"]) >= pool._start_seconds
        assert always.stat().st_size == 2
        # Nobody else suffers from it.
        await pool.run(pool_tasks.process_id, deadline=Deadline.after(LONG))

    with_pool(tmp_path, use)


def test_a_killed_idle_process_fails_no_request(tmp_path: Path) -> None:
    async def use(pool: ComputePool) -> None:
        process = await pool.run(pool_tasks.process_id, deadline=Deadline.after(LONG))
        os.kill(process, signal.SIGKILL)
        waiting = [pool.run(pool_tasks.process_id, deadline=Deadline.after(LONG)) for _ in range(4)]
        assert process not in await asyncio.gather(*waiting)

    with_pool(tmp_path, use)


def test_a_deadline_ends_the_process_and_waiting_counts(tmp_path: Path) -> None:
    async def use(pool: ComputePool) -> None:
        process = await pool.run(pool_tasks.process_id, deadline=Deadline.after(LONG))
        began = time.monotonic()
        slow = asyncio.create_task(pool.run(pool_tasks.take_seconds, 60.0, deadline=Deadline.after(0.6)))
        await asyncio.sleep(0)
        queued = asyncio.create_task(pool.run(pool_tasks.process_id, deadline=Deadline.after(0.3)))
        for late in (queued, slow):
            with pytest.raises(ProblemError) as caught:
                await late
            assert caught.value.code == "deadline-exceeded"
        assert time.monotonic() - began < 10
        assert await pool.run(pool_tasks.process_id, deadline=Deadline.after(LONG)) != process
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)

    with_pool(tmp_path, use)


def test_a_process_that_has_worked_enough_is_replaced(tmp_path: Path) -> None:
    async def use(pool: ComputePool) -> None:
        seen = [await pool.run(pool_tasks.process_id, deadline=Deadline.after(LONG)) for _ in range(3)]
        assert seen[0] == seen[1] != seen[2]

    with_pool(tmp_path, use, tasks=2)


def test_a_task_scheduled_while_its_process_dies_runs_in_another(tmp_path: Path) -> None:
    async def use(pool: ComputePool) -> None:
        process = await pool.run(pool_tasks.process_id, deadline=Deadline.after(LONG))
        [slot] = pool._slots
        child = slot._child
        assert child is not None
        send = child.send

        def send_when_it_is_gone(message: object) -> None:
            os.kill(process, signal.SIGKILL)
            until(lambda: child._process.poll() is not None)
            send(message)

        child.send = send_when_it_is_gone  # type: ignore[method-assign]
        assert await pool.run(pool_tasks.process_id, deadline=Deadline.after(LONG / 4)) != process

    with_pool(tmp_path, use)
