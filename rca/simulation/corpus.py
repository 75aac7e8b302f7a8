"""Many windows, in parallel processes, the same whatever their number."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import numpy as np

from rca.processes import pool as pool_of
from rca.simulation.engine import LabelledWindow, simulate
from rca.simulation.sampling import sample_scenario

CHUNK = 8
AHEAD_PER_PROCESS = 2


def generate_corpus(
    n: int, seed: int, *, processes: int = 2, progress: Callable[[int, int], None] | None = None
) -> Iterator[LabelledWindow]:
    """Simulate `n` domain-randomised windows.

    Parameters
    ----------
    n : int
    seed : int
        Window ``i`` depends on ``(seed, i)`` alone: a larger corpus begins with the smaller one.
    processes : int
        Worker processes; 1 stays in this one. A script that asks for more needs the usual
        ``if __name__ == "__main__"`` guard, because workers are started afresh (Arrow keeps threads, which a
        fork would break).
    progress : callable, optional
        Called with (windows done, n) after each.

    Yields
    ------
    LabelledWindow
        In order of ``i``.
    """
    parallel = processes > 1 and n > CHUNK
    windows = _in_processes(n, seed, processes) if parallel else (corpus_window(seed, i) for i in range(n))
    for done, window in enumerate(windows, start=1):
        if progress is not None:
            progress(done, n)
        yield window


def corpus_window(seed: int, index: int) -> LabelledWindow:
    """Window `index` of the corpus with this seed."""
    return simulate(sample_scenario(np.random.default_rng([seed, index])))


def _in_processes(n: int, seed: int, processes: int) -> Iterator[LabelledWindow]:
    """Keep every worker busy, yet never hold more than a few chunks of finished windows."""
    chunks = range(0, n, CHUNK)
    waiting: deque[Future[list[LabelledWindow]]] = deque()
    with pool_of(min(processes, n)) as pool:
        for first in chunks:
            waiting.append(pool.submit(_chunk, seed, first, min(first + CHUNK, n)))
            if len(waiting) > AHEAD_PER_PROCESS * processes:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _chunk(seed: int, first: int, end: int) -> list[LabelledWindow]:
    return [corpus_window(seed, index) for index in range(first, end)]
