"""Many windows, in parallel processes, the same whatever their number."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from rca.simulation.engine import LabelledWindow, simulate
from rca.simulation.sampling import sample_scenario

CHUNK = 8


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
        Worker processes; 1 stays in this one.
    progress : callable, optional
        Called with (windows done, n) after each.

    Yields
    ------
    LabelledWindow
        In order of ``i``.
    """
    make = partial(corpus_window, seed)
    if processes <= 1 or n <= CHUNK:
        yield from _counted(map(make, range(n)), n, progress)
        return
    # Arrow keeps threads, which a fork would break.
    with multiprocessing.get_context("spawn").Pool(min(processes, n)) as pool:
        yield from _counted(pool.imap(make, range(n), chunksize=CHUNK), n, progress)


def corpus_window(seed: int, index: int) -> LabelledWindow:
    """Window `index` of the corpus with this seed."""
    return simulate(sample_scenario(np.random.default_rng([seed, index])))


def _counted(
    windows: Iterator[LabelledWindow], n: int, progress: Callable[[int, int], None] | None
) -> Iterator[LabelledWindow]:
    for done, window in enumerate(windows, start=1):
        if progress is not None:
            progress(done, n)
        yield window
