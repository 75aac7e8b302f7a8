"""Where independent tasks run: in this process, on cores of this machine, or on a Dask cluster.

A task is a function of one item. Results come in the order of the items, so they are the same with any number
of workers. If a worker ends, Dask computes its tasks again.

Tasks and results travel as pickles, so a scheduler has to be as trusted as this machine. Workers need the
same version of this package.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future as Started
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import cache
from importlib.metadata import version
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rca.errors import InvalidInput, MissingExtra, SourceError
from rca.source_digest import package_folder, source_digest

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Tasks that are sent ahead: for each thread of the workers, and at least.
AHEAD_OF_THREAD, LEAST_AHEAD = 2, 8
#: Below this many windows, starting workers takes longer than the work.
FEWEST = 32
#: Time between two questions for the number of threads, seconds.
ASK_SECONDS = 1.0
#: Time in which a scheduler has to answer, and to have a worker, seconds.
CONNECT_SECONDS, WORKER_SECONDS = 10, 60
#: A model bundle is larger than what Dask expects in a task, and is sent once. The rest is for processes of
#: this machine: a diagnosis needs 1.6 times the CPU time with Dask's limits of malloc and its sampled stacks.
_CONFIGURATION = {
    "distributed.admin.large-graph-warning-threshold": "1GB",
    "distributed.worker.profile.enabled": False,
    # Processes are forked from one that has imported already.
    "distributed.worker.multiprocessing-method": "forkserver",
    "distributed.nanny.pre-spawn-environ": {
        "MALLOC_MMAP_THRESHOLD_": 32 << 20,
        "MALLOC_TRIM_THRESHOLD_": 1 << 30,
        "OMP_NUM_THREADS": 1,
    },
}
#: Run by each process of this machine: Ctrl-C in a terminal reaches all, and this one handles it.
_LEAVE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
_LIBRARIES = ("lightgbm", "numba", "numpy", "pyarrow", "scipy")


class Workers:
    """A place for tasks, as a context: workers that it started end with it.

    Parameters
    ----------
    processes : int
        Processes on this machine, which start with the first task; 1 works in this process. With more, a
        script needs the guard ``if __name__ == "__main__"``, because processes import it.
    scheduler : str, optional
        Address of a Dask scheduler, such as ``tcp://10.0.0.1:8786``; its workers replace the processes.

    Raises
    ------
    MissingExtra
        On entering, or with the first task, if Dask is needed and not installed.
    SourceError
        On entering, if the scheduler does not answer.
    """

    def __init__(self, processes: int = 1, scheduler: str | None = None) -> None:
        self.processes = processes
        self.scheduler = scheduler
        self._started: Started[Client] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        # An address that does not answer is refused before the work.
        if self.scheduler is not None:
            self._start().result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        started, self._started = self._started, None
        if started is not None:
            wait([started])
        self._open.close()

    @property
    def are_here(self) -> bool:
        """Whether tasks run in this process."""
        return self.scheduler is None and self.processes <= 1

    @property
    def share_files(self) -> bool:
        """Whether tasks can read the files of this machine."""
        return self.scheduler is None

    def for_few(self, n: int) -> Workers:
        """These workers; but this process for less than `FEWEST` windows, if workers would have to start."""
        return self if self.scheduler is not None or n >= FEWEST else HERE

    def map(
        self, work: Callable[[Item], Result], items: Iterable[Item], *, chunk: int = 1
    ) -> Iterator[Result]:
        """`work` of every item, in order.

        Parameters
        ----------
        work : callable
            Picklable; what it holds is sent to each worker once.
        items : iterable
            Read as workers need them, so they may be more than fit into memory.
        chunk : int
            Items of one task. More than one says that items are short: this process works on the first ones
            until its workers have started.

        Raises
        ------
        SourceError
            If the scheduler is lost, or several workers in a row ended during the same task.
        """
        if self.are_here:
            yield from map(work, items)
            return
        batches = _batches(items, chunk)
        started = self._start(getattr(work, "func", work).__module__)
        if chunk > 1:
            while not started.done() and (batch := next(batches, None)):
                yield from map(work, batch)
        client = started.result()
        waiting: deque[Future] = deque()
        ahead = _Ahead(client)
        held = client.submit(_unpickled, pickle.dumps(work), code_digest(), pure=False)
        try:
            for batch in batches:
                # As bytes: Dask looks for tasks in whatever else it is given.
                packed = pickle.dumps(batch, protocol=5)
                waiting.append(client.submit(_results, held, packed, pure=False))
                if len(waiting) >= ahead():
                    yield from _result(waiting.popleft(), self.scheduler)
            while waiting:
                yield from _result(waiting.popleft(), self.scheduler)
        finally:
            # Left early, after an error or an interrupt: the remaining tasks are not needed. If these workers
            # are left already, their tasks are, too.
            if waiting and self._started is not None:
                client.cancel(list(waiting))

    def _start(self, module: str | None = None) -> Started[Client]:
        """The client of the workers, once they have started with a module imported."""
        if self._started is None:
            thread = self._open.enter_context(ThreadPoolExecutor(1))
            self._started = thread.submit(self._connected, module)
        return self._started

    def _connected(self, module: str | None) -> Client:
        # The cluster of this machine ends after its client.
        return self._open.enter_context(_client(self.processes, self.scheduler, module, self._open))


#: Tasks run in this process.
HERE = Workers()


def _client(processes: int, scheduler: str | None, module: str | None, closing: ExitStack) -> Client:
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
    except (OSError, ValueError) as error:
        raise SourceError(
            f"no Dask scheduler answers at {scheduler}",
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
    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        # Any free port: an HTTP server cannot be left out.
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        preload=[_LEAVE_INTERRUPTS],
        silence_logs="CRITICAL",
    )


async def _answered(scheduler: str) -> None:
    """Return when the scheduler has answered: a `Client` that gets no answer blocks the next one for ever."""
    from distributed.comm import connect

    # Dask limits the connection, and not the wait for the first message.
    async with asyncio.timeout(CONNECT_SECONDS):
        comm = await connect(scheduler)
    comm.abort()


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


class _Ahead:
    """Number of tasks to send before the first result is read; workers may join and leave at any time."""

    def __init__(self, client: Client) -> None:
        self._client, self._number, self._asked = client, LEAST_AHEAD, float("-inf")

    def __call__(self) -> int:
        # A question to the scheduler takes longer than a task's way.
        if time.monotonic() - self._asked > ASK_SECONDS:
            threads = sum(self._client.nthreads().values())
            self._number, self._asked = max(LEAST_AHEAD, AHEAD_OF_THREAD * threads), time.monotonic()
        return self._number


def _result(task: Future, scheduler: str | None) -> Any:
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    try:
        return pickle.loads(task.result())  # noqa: S301 - by a worker with the same code
    except KilledWorker as error:
        raise SourceError(
            "several workers in a row ended during the same task",
            hint="mostly they lack memory: give each worker more, or start fewer per machine",
        ) from error
    except (FutureCancelledError, OSError) as error:
        raise SourceError(
            f"the scheduler {scheduler or 'of this machine'} was lost during the work",
            hint="run the command again; what is kept already is not computed again",
        ) from error


def _unpickled(work: bytes, code: str) -> Any:
    """The function of all tasks, once per worker."""
    if code != code_digest():
        raise InvalidInput(
            f"the worker on {os.uname().nodename} has another version of straggler-rca or of its libraries",
            hint="install the same versions there",
        )
    return pickle.loads(work)  # noqa: S301 - sent by the client of the same scheduler


def _results(work: Callable[[Any], Any], batch: bytes) -> bytes:
    items = pickle.loads(batch)  # noqa: S301 - as above
    return pickle.dumps([work(each) for each in items], protocol=5)


@cache
def code_digest() -> str:
    """SHA-256 of this package's code and of the versions of the libraries that compute."""
    libraries = [(name, version(name)) for name in _LIBRARIES]
    source = source_digest(sorted(package_folder().rglob("*.py")))
    return hashlib.sha256(f"{libraries}{source}".encode()).hexdigest()
