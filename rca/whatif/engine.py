"""Run a batch of scenarios: compiled where it pays, plain numpy where importing the compiler costs more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import numpy as np

from rca.arrays import FloatArray
from rca.whatif import replay
from rca.whatif.mix import Mix
from rca.whatif.program import Program

Engine = Literal["auto", "numpy", "numba"]

COMPILED_FROM = 2e8
"""Operation evaluations from which loading the compiler (a second) is won back."""

PARALLEL_FROM = 5e6
"""Evaluations per batch from which a second thread is worth starting."""


def replay_mix(
    program: Program,
    mix: Mix,
    *,
    engine: Engine = "auto",
    threads: int = 1,
    progress: Callable[[float], None] | None = None,
) -> FloatArray:
    """Step times of a batch of scenarios.

    Parameters
    ----------
    program : Program
    mix : Mix
    engine : {"auto", "numpy", "numba"}
        "auto" uses the kernels once they are loaded or the batch is large.
    threads : int
        Threads for large batches; the kernel releases the interpreter.
    progress : callable, optional
        Called with the share of scenarios done.

    Returns
    -------
    ndarray of shape (n_scenarios, n_steps), seconds
    """
    if mix.n_scenarios == 0:
        return np.empty((0, mix.n_steps))
    if engine == "auto":
        loaded = "rca.whatif.kernels" in sys.modules
        engine = "numba" if loaded or mix.evaluations >= COMPILED_FROM else "numpy"
    if engine == "numpy":
        return replay.replay_mix(program, mix)
    return _compiled(program, mix, threads if mix.evaluations >= PARALLEL_FROM else 1, progress)


def _compiled(
    program: Program, mix: Mix, threads: int, progress: Callable[[float], None] | None
) -> FloatArray:
    from rca.whatif import kernels

    out = np.empty((mix.n_scenarios, mix.n_steps))
    work = np.ascontiguousarray(mix.work, dtype=np.float32)

    def run(first: int, last: int) -> None:
        kernels.replay_range(
            program.dep_start,
            program.dep_slot,
            program.member_start,
            program.member_op,
            program.member_slot,
            program.final,
            program.across,
            program.n_slots,
            work,
            mix.ideal,
            mix.keep,
            mix.row,
            mix.fold,
            first,
            last,
            out,
        )

    if threads == 1 and progress is None:
        run(0, mix.n_scenarios)
        return out
    from concurrent.futures import ThreadPoolExecutor, as_completed

    parts = min(mix.n_scenarios, threads * 16)
    bounds = np.linspace(0, mix.n_scenarios, parts + 1).astype(int)
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(run, int(a), int(b)) for a, b in pairwise(bounds)]
        for done, job in enumerate(as_completed(jobs), start=1):
            job.result()
            if progress is not None:
                progress(done / len(jobs))
    return out
