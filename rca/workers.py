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
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from rca.errors import InvalidInput, MissingExtra, SourceError
from rca.source_digest import package_folder, source_digest

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Tasks that are sent ahead: for each thread of the workers, and at least.
AHEAD_OF_THREAD, LEAST_AHEAD = 2, 8
#: Below this many windows, starting workers takes longer than the work.
FEWEST = 64
#: Bytes of items that are sent before their results have come, and not further ones.
BYTES_AHEAD = 256 << 20
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
        self,
        work: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        chunk: int = 1,
        lost: Callable[[Item], Result] | None = None,
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
        lost : callable, optional
            Result of an item with which several workers in a row ended; an error without it.

        Raises
        ------
        SourceError
            If the scheduler is lost, has no workers for `WORKER_SECONDS`, or several workers in a row ended
            with the same item.
        """
        if self.are_here:
            yield from map(work, items)
            return
        batches = _batches(items, chunk)
        started = self._start(getattr(work, "func", work).__module__)
        if chunk > 1:
            while not started.done() and (batch := next(batches, None)):
                yield from map(work, batch)
        sent = _Sent(started.result(), work, self.scheduler)
        try:
            for batch in batches:
                sent.add(batch)
                while sent.is_full():
                    yield from sent.first(lost)
            while sent.waiting:
                yield from sent.first(lost)
        finally:
            # Left early, after an error or an interrupt: the remaining tasks are not needed. If these workers
            # are left already, their tasks are, too.
            if self._started is not None:
                sent.cancel()

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
    except (OSError, ValueError, TypeError) as error:
        # Dask raises a TypeError if the address asks for TLS, and no certificates are configured.
        raise SourceError(
            f"no Dask scheduler answers at {scheduler}: {error}",
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
    from distributed.security import Security

    # With Dask's certificates. Dask limits the connection, and not the wait for the first message.
    async with asyncio.timeout(CONNECT_SECONDS):
        comm = await connect(scheduler, **Security().get_connection_args("client"))
    comm.abort()


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


class _Sent(Generic[Item, Result]):
    """Tasks that were sent to workers, which may join and leave at any time."""

    def __init__(self, client: Client, work: Callable[[Item], Result], scheduler: str | None) -> None:
        self._client, self._scheduler = client, scheduler
        self._work = client.submit(_unpickled, pickle.dumps(work), pure=False)
        self._ahead, self._asked = LEAST_AHEAD, float("-inf")
        self.waiting: deque[tuple[list[Item], int, Future]] = deque()

    def add(self, batch: list[Item]) -> None:
        # As bytes: Dask looks for tasks in whatever else it is given.
        packed = pickle.dumps(batch, protocol=5)
        task = self._client.submit(_results, self._work, code_digest(), packed, pure=False)
        self.waiting.append((batch, len(packed), task))

    def is_full(self) -> bool:
        """Whether results should be read before more is sent."""
        # A question to the scheduler takes longer than a task's way.
        if time.monotonic() - self._asked > ASK_SECONDS:
            threads = sum(self._client.nthreads().values())
            self._ahead, self._asked = max(LEAST_AHEAD, AHEAD_OF_THREAD * threads), time.monotonic()
        n_bytes = sum(size for _, size, _ in self.waiting)
        return bool(self.waiting) and (len(self.waiting) >= self._ahead or n_bytes > BYTES_AHEAD)

    def first(self, lost: Callable[[Item], Result] | None) -> list[Result]:
        """Results of the first task that waits."""
        from distributed import KilledWorker

        batch, _, task = self.waiting.popleft()
        try:
            return self._results(task)
        except KilledWorker as error:
            if lost is None:
                raise SourceError(
                    "several workers in a row ended during the same task",
                    hint="mostly they lack memory: give each worker more, or start fewer per machine",
                ) from error
            if len(batch) == 1:
                return [lost(batch[0])]
        # One of them is at fault.
        found = []
        for item in batch:
            self.add([item])
            self.waiting.rotate(1)
            found += self.first(lost)
        return found

    def _results(self, task: Future) -> list[Result]:
        from distributed.client import FutureCancelledError

        last = time.monotonic() + WORKER_SECONDS
        while True:
            try:
                held: list[Result] = pickle.loads(task.result(timeout=ASK_SECONDS))  # noqa: S301 - same code
            except TimeoutError:
                if task.done():
                    raise
                if self._client.nthreads():
                    last = time.monotonic() + WORKER_SECONDS
                elif time.monotonic() > last:
                    raise SourceError(
                        f"there are no workers for {WORKER_SECONDS} s",
                        hint="see their logs; straggler-rca has to be installed where they run",
                    ) from None
            except (FutureCancelledError, OSError) as error:
                raise SourceError(
                    f"the scheduler {self._scheduler or 'of this machine'} was lost during the work",
                    hint="run the command again; what is kept already is not computed again",
                ) from error
            else:
                return held

    def cancel(self) -> None:
        if self.waiting:
            self._client.cancel([task for _, _, task in self.waiting])


def _unpickled(work: bytes) -> Any:
    """The function of all tasks: the first worker that needs it gives it to the others."""
    return pickle.loads(work)  # noqa: S301 - sent by the client of the same scheduler


def _results(work: Callable[[Any], Any], code: str, batch: bytes) -> bytes:
    if code != code_digest():
        raise InvalidInput(
            f"the worker on {os.uname().nodename} has another version of straggler-rca or of its libraries",
            hint="install the same versions there",
        )
    items = pickle.loads(batch)  # noqa: S301 - as above
    return pickle.dumps([work(each) for each in items], protocol=5)


@cache
def code_digest() -> str:
    """SHA-256 of this package's code and of the versions of the libraries that compute."""
    libraries = [(name, version(name)) for name in _LIBRARIES]
    source = source_digest(sorted(package_folder().rglob("*.py")))
    return hashlib.sha256(f"{libraries}{source}".encode()).hexdigest()
