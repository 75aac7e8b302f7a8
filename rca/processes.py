"""Worker processes, spawned: a fork of a process with threads may hang for ever."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def mapped(
    work: Callable[[Item], Result], items: Iterable[Item], processes: int, *, chunk: int = 1
) -> Iterator[Result]:
    """`work` of every item, in order; the number of processes does not change the results."""
    if processes <= 1:
        yield from map(work, items)
        return
    with pool(processes) as workers:
        yield from workers.map(work, items, chunksize=chunk)


def pool(
    processes: int, *, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """A pool of spawned processes; tasks and arguments have to be picklable.

    The processes end with this one, even if it is killed.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        processes, mp_context=context, initializer=_started, initargs=(initializer, initargs)
    )


def _started(initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
    end_with_the_parent()
    if initializer is not None:
        initializer(*initargs)


def end_with_the_parent() -> None:
    """End this worker when its parent ends, even by SIGKILL: otherwise it would run for ever."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()
