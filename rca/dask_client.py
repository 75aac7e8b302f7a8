"""A Dask client: of a cluster on this machine, or of a scheduler elsewhere."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from contextlib import ExitStack
from multiprocessing import forkserver
from typing import TYPE_CHECKING

from rca.errors import MissingExtra, SourceError

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

#: Time in which a scheduler has to answer, and to have a worker, seconds.
CONNECT_SECONDS, WORKER_SECONDS = 10, 60
_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": 32 << 20, "MALLOC_TRIM_THRESHOLD_": 1 << 30, "OMP_NUM_THREADS": 1}
#: A model bundle is larger than what Dask expects in a task, and is sent once. The rest is for processes of
#: this machine: a diagnosis needs 1.6 times the CPU time with Dask's limits of malloc and its sampled stacks.
_CONFIGURATION = {
    "distributed.admin.large-graph-warning-threshold": "1GB",
    "distributed.worker.profile.enabled": False,
    # Processes are forked from one that has imported already.
    "distributed.worker.multiprocessing-method": "forkserver",
    "distributed.nanny.pre-spawn-environ": _ENVIRONMENT,
}
#: Run by each process of this machine: Ctrl-C in a terminal reaches all, and this one handles it.
_LEAVE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


def connected(processes: int, scheduler: str | None, module: str | None, closing: ExitStack) -> Client:
    """A client of new processes of this machine, or of a scheduler; `closing` ends the processes.

    Raises
    ------
    MissingExtra
        If Dask is not installed.
    SourceError
        If the scheduler does not answer, or has no workers.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtra(
            "more than one worker process needs Dask",
            hint="pip install 'straggler-rca[scale]', or --processes 1",
        ) from error
    if scheduler is None:
        return Client(closing.enter_context(local_cluster(processes, module)), set_as_default=False)
    _configure()
    try:
        asyncio.run(_answered(scheduler))
        client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        # Dask raises a TypeError if the address asks for TLS, and no certificates are configured.
        raise SourceError(
            f"no Dask scheduler answers at {scheduler}" + (f": {error}" if str(error) else ""),
            hint="start one with `dask scheduler`; its first lines show the address",
        ) from error
    try:
        client.wait_for_workers(1, timeout=WORKER_SECONDS)
    except TimeoutError as error:
        client.close()
        raise SourceError(
            f"the scheduler {scheduler} has no workers after {WORKER_SECONDS} s",
            hint=f"start one with `dask worker {scheduler}` where straggler-rca is installed",
        ) from error
    return client


def _configure() -> None:
    import dask

    dask.config.set(_CONFIGURATION)


def local_cluster(n_workers: int, module: str | None = None) -> LocalCluster:
    """Dask's scheduler in this process, and worker processes of one thread that have imported a module."""
    from distributed import LocalCluster
    from distributed.utils import get_mp_context

    _configure()
    # Dask sets its own list with the first context.
    get_mp_context()
    imported = ["distributed.nanny", "distributed.worker", module or "__main__"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(imported)
    _start_forkserver()
    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        # Any free port: an HTTP server cannot be left out.
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        preload=[_LEAVE_INTERRUPTS],
        silence_logs="CRITICAL",
    )


def _start_forkserver() -> None:
    """Start the process that workers are forked from, without the interrupts of a terminal."""
    before = os.environ.copy()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.environ.update({name: str(value) for name, value in _ENVIRONMENT.items()})
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name in _ENVIRONMENT:
            os.environ.pop(name)
        os.environ.update({name: before[name] for name in _ENVIRONMENT if name in before})


async def _answered(scheduler: str) -> None:
    """Return when the scheduler has answered: a `Client` that gets no answer blocks the next one for ever."""
    from distributed.comm import connect
    from distributed.security import Security

    # With Dask's certificates. Dask limits the connection, and not the wait for the first message.
    async with asyncio.timeout(CONNECT_SECONDS):
        comm = await connect(scheduler, **Security().get_connection_args("client"))
    comm.abort()
