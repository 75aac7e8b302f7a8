"""Where independent tasks run: in this process, on cores of this machine, or on a Dask cluster.

A task is a function of one item. Results come in the order of the items, so they are the same with any number
of workers. If a worker ends, Dask computes its tasks again.

Tasks and results travel as pickles, so a scheduler has to be as trusted as this machine. Workers need the
same version of this package.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import threading
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

from rca.dask_client import WORKER_SECONDS, connected
from rca.errors import InvalidInput, SourceError
from rca.source_digest import package_folder, source_digest

if TYPE_CHECKING:
    from distributed import Client, Future

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Tasks that are sent ahead: for each thread of the workers, and at least.
AHEAD_OF_THREAD, MIN_AHEAD = 2, 8
#: Below this many windows, starting workers takes longer than the work.
MIN_WINDOWS = 64
#: Bytes of items that are sent before their results have come, and not further ones.
BYTES_AHEAD = 256 << 20
#: Time between two questions for the number of threads, seconds.
ASK_SECONDS = 1.0
_LIBRARIES = ("lightgbm", "numba", "numpy", "pyarrow", "scipy")


def counted(results: Iterable[Item], total: int, progress: Callable[[int, int], None]) -> Iterator[Item]:
    """Give results, and report how many are done: none before the first one, which may take long.

    Parameters
    ----------
    progress : callable
        ``(done, total)``; not called without results.
    """
    if total:
        progress(0, total)
    for done, each in enumerate(results, start=1):
        yield each
        progress(done, total)


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

    def client(self) -> Client:
        """Dask's own client, for a library that uses Dask itself; it ends with these workers.

        Raises
        ------
        MissingExtra, SourceError
            As on entering.
        """
        return self._start().result()

    def for_few(self, n: int) -> Workers:
        """These workers; this process for less than `MIN_WINDOWS` windows, if workers would have to start."""
        return self if self.scheduler is not None or n >= MIN_WINDOWS else HERE

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
        return self._open.enter_context(connected(self.processes, self.scheduler, module, self._open))


#: Tasks run in this process.
HERE = Workers()


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


class _Sent(Generic[Item, Result]):
    """Tasks that were sent to workers, which may join and leave at any time."""

    def __init__(self, client: Client, work: Callable[[Item], Result], scheduler: str | None) -> None:
        self._client, self._scheduler = client, scheduler
        self._work = client.submit(_unpickled, pickle.dumps(work), pure=False)
        self._ahead, self._asked = MIN_AHEAD, float("-inf")
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
            self._ahead, self._asked = max(MIN_AHEAD, AHEAD_OF_THREAD * threads), time.monotonic()
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

        try:
            held: list[Result] = pickle.loads(self._result(task))  # noqa: S301 - by a worker with the same code
        except (FutureCancelledError, OSError) as error:
            raise SourceError(
                f"the scheduler {self._scheduler or 'of this machine'} was lost during the work",
                hint="run the command again; what is kept already is not computed again",
            ) from error
        return held

    def _result(self, task: Future) -> bytes:
        """The result of a task; it is waited for while there are workers."""
        done = threading.Event()
        # A result that arrives just as its own time limit ends is lost by `Future.result`.
        task.add_done_callback(lambda _: done.set())
        last = time.monotonic() + WORKER_SECONDS
        while not done.wait(ASK_SECONDS):
            if self._client.nthreads():
                last = time.monotonic() + WORKER_SECONDS
            elif time.monotonic() > last:
                raise SourceError(
                    f"there are no workers for {WORKER_SECONDS} s",
                    hint="see their logs; straggler-rca has to be installed where they run",
                )
        found: bytes = task.result()
        return found

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
