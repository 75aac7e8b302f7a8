"""Replay a batch of scenarios, in plain numpy or with the compiled kernels.

Numpy is the readable reference; tests hold the kernels equal to it. It is also faster for small batches,
because importing the compiler takes a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from rca.arrays import BoolArray, FloatArray
from rca.whatif.graph.graph import DependencyGraph, Program

Work = npt.NDArray[np.floating]


@dataclass(frozen=True)
class ScenarioBatch:
    """Times and masks of a batch of scenarios. Each operation takes its traced or its ideal time.

    A lane is one step of one data rank. Columns are synchronised where the program synchronises data ranks.
    With ``fold`` > 1 a column has that many data ranks one after the other, which are synchronised as well.

    Attributes
    ----------
    work : ndarray of shape (n_ops, n_rows, n_lanes), seconds
    ideal : ndarray of shape (n_ops,), seconds
    keep : ndarray of shape (n_scenarios, n_ops, n_columns), bool
        Where the traced time is used; elsewhere the ideal time is used.
    row : ndarray of shape (n_scenarios, n_columns), int32
        Row of `work` that each column reads.
    """

    work: Work
    ideal: FloatArray
    keep: BoolArray
    row: npt.NDArray[np.int32]
    fold: int = 1

    @property
    def n_scenarios(self) -> int:
        return int(self.row.shape[0])

    @property
    def n_steps(self) -> int:
        return int(self.work.shape[2]) // self.fold

    @property
    def evaluations(self) -> float:
        """Number of operation evaluations, for the choice of the engine."""
        return float(self.work.shape[0] * self.work.shape[2] * self.row.size)


MAX_FOLD = 4096
"""Lanes folded into one column at a time, so that the ends fit into the second-level cache."""


def step_blocks(n_data: int, n_steps: int) -> list[slice]:
    """Slices of steps that are short enough to fold all data ranks into one column."""
    size = max(1, MAX_FOLD // n_data)
    return [slice(first, min(first + size, n_steps)) for first in range(0, n_steps, size)]


def whole_job(work: Work, ideal: FloatArray, keep: Sequence[BoolArray]) -> ScenarioBatch:
    """One scenario per mask of shape (n_ops,), the same for all data ranks.

    Parameters
    ----------
    work : ndarray of shape (n_ops, n_data, n_steps), seconds
        One of `step_blocks`, for long traces.
    """
    n_ops, n_data, n_steps = work.shape
    folded = work.reshape(n_ops, 1, n_data * n_steps)
    return ScenarioBatch(
        folded, ideal, np.stack(keep)[:, :, None], np.zeros((len(keep), 1), np.int32), n_data
    )


def each_data_rank(work: Work, ideal: FloatArray, keep: Sequence[BoolArray]) -> ScenarioBatch:
    """For every mask, scenarios in which one data rank keeps these operations and the rest is ideal.

    All other data ranks are then equal. Two columns (the traced rank and one ideal rank) represent any number
    of data ranks. The scenarios of all data ranks are lanes of one scenario.

    Parameters
    ----------
    work : ndarray of shape (n_ops, n_data, n_steps), seconds
    keep : sequence of ndarray of shape (n_ops,), bool

    Returns
    -------
    ScenarioBatch
        The result has shape (n_masks, n_data * n_steps): see `by_data_rank`.
    """
    n_ops, n_data, n_steps = work.shape
    masks = np.zeros((len(keep), n_ops, 1 if n_data == 1 else 2), dtype=bool)
    masks[:, :, 0] = np.stack(keep)
    lanes = work.reshape(n_ops, 1, n_data * n_steps)
    return ScenarioBatch(lanes, ideal, masks, np.zeros((len(keep), masks.shape[2]), np.int32))


def by_data_rank(seconds: FloatArray, n_data: int) -> FloatArray:
    """Shape the result of an `each_data_rank` batch as (n_masks, n_data, n_steps)."""
    return seconds.reshape(seconds.shape[0], n_data, -1)


VALUES_PER_PASS = 1 << 17
"""Values per operation and pass, so that the temporary arrays of a batch fit into the cache."""


def _interpreted(program: Program, batch: ScenarioBatch) -> FloatArray:
    """Step times of a batch of scenarios in plain numpy; tests hold the kernels equal to it.

    Returns
    -------
    ndarray of shape (n_scenarios, n_steps), seconds
        Latest end of the step, without launch delays; steps start at 0.
    """
    chunk = max(1, VALUES_PER_PASS // max(1, batch.work.shape[2] * batch.row.shape[1]))
    out = np.empty((batch.n_scenarios, batch.n_steps))
    for first in range(0, batch.n_scenarios, chunk):
        part = slice(first, first + chunk)
        out[part] = _replay_part(program, batch, part)
    return out


def _replay_part(program: Program, batch: ScenarioBatch, part: slice) -> FloatArray:
    row, keep = batch.row[part], batch.keep[part]
    row = row[:1] if (row == row[0]).all() else row
    kept_anywhere = np.asarray(keep.any(axis=(0, 2)))
    kept_everywhere = np.asarray(keep.all(axis=(0, 2)))
    ends: dict[int, FloatArray] = {}
    total = np.full((keep.shape[0], keep.shape[2], batch.work.shape[2]), -np.inf)
    for unit in range(program.n_units):
        latest = _latest(program, unit, ends)
        if program.across[unit]:
            latest = _across_data(latest, batch.fold)
        for index in range(program.member_start[unit], program.member_start[unit + 1]):
            op = int(program.member_op[index])
            own: FloatArray | float = batch.ideal[op]
            if kept_anywhere[op]:
                own = batch.work[op][row].astype(np.float64)
                if not kept_everywhere[op]:
                    own = np.where(keep[:, op, :, None], own, batch.ideal[op])
            end = latest + own
            if program.member_slot[index] >= 0:
                ends[int(program.member_slot[index])] = end
            if program.final[index]:
                np.maximum(total, end, out=total)
    by_rank = total.reshape(total.shape[0], -1, batch.n_steps)
    return np.asarray(by_rank.max(axis=1))


def _across_data(latest: FloatArray, fold: int) -> FloatArray:
    """Latest end over all columns, and over the data ranks folded into each."""
    latest = latest.max(axis=1, keepdims=True)
    if fold == 1 or latest.shape[2] == 1:
        return latest
    steps = latest.reshape(latest.shape[0], 1, fold, -1).max(axis=2)
    return np.tile(steps, (1, 1, fold))


def _latest(program: Program, unit: int, ends: dict[int, FloatArray]) -> FloatArray:
    """Latest end of the dependencies of a unit; of shape (1, 1, 1) while all scenarios agree."""
    slots = program.dep_slot[program.dep_start[unit] : program.dep_start[unit + 1]]
    if not slots.size:
        return np.zeros((1, 1, 1))
    latest = ends[int(slots[0])]
    for slot in slots[1:]:
        latest = np.maximum(latest, ends[int(slot)])
    return latest


def end_times(
    graph: DependencyGraph, work: Work, delays: Work | None = None
) -> tuple[FloatArray, FloatArray]:
    """Start and end of every operation, with launch delays.

    Parameters
    ----------
    work, delays : ndarray of shape (n_ops, n_data, n_steps), seconds

    Returns
    -------
    start, end : ndarray of shape (n_ops, n_data, n_steps), seconds
        NaN for operations outside the model.
    """
    start = np.full(work.shape, np.nan)
    end = np.full(work.shape, np.nan)
    for members, across_data in graph.units():
        for op in members:
            before = graph.predecessors[op]
            ready = end[list(before)].max(axis=0) if before else np.zeros(work.shape[1:])
            start[op] = ready if delays is None else ready + delays[op]
        chosen = list(members)
        latest = start[chosen].max(axis=0)
        if across_data:
            latest = np.broadcast_to(latest.max(axis=0), latest.shape)
        end[chosen] = latest + work[chosen]
    return start, end


Engine = Literal["auto", "numpy", "numba"]

COMPILED_FROM = 2e8
"""Operation evaluations. Larger batches win back the second that importing the compiler takes."""

PARALLEL_FROM = 5e6
"""Operation evaluations. Larger batches use several threads."""


def engine_for(size: float, compiled_from: float, small: Engine) -> Engine:
    """The compiled engine for large work, if it is installed; else numpy, or `small` for small work."""
    if size < compiled_from:
        return small
    return "numba" if find_spec("numba") is not None else "numpy"


def replay_batch(
    program: Program,
    batch: ScenarioBatch,
    *,
    engine: Engine = "auto",
    threads: int = 1,
    progress: Callable[[float], None] | None = None,
) -> FloatArray:
    """Step times of a batch of scenarios.

    Parameters
    ----------
    engine : {"auto", "numpy", "numba"}
        "auto" uses the kernels if they are loaded, or numba is installed and the batch is large.
    threads : int
        Threads for large batches. The kernel releases the interpreter lock.
    progress : callable, optional
        Called with the finished share of the scenarios.

    Returns
    -------
    ndarray of shape (n_scenarios, n_steps), seconds
    """
    if batch.n_scenarios == 0:
        return np.empty((0, batch.n_steps))
    if engine == "auto":
        loaded = "rca.whatif.graph.kernels" in sys.modules
        engine = "numba" if loaded else engine_for(batch.evaluations, COMPILED_FROM, "numpy")
    if engine == "numpy":
        return _interpreted(program, batch)
    return _compiled(program, batch, threads if batch.evaluations >= PARALLEL_FROM else 1, progress)


def _compiled(
    program: Program, batch: ScenarioBatch, threads: int, progress: Callable[[float], None] | None
) -> FloatArray:
    from rca.whatif.graph import kernels

    out = np.empty((batch.n_scenarios, batch.n_steps))
    work = np.ascontiguousarray(batch.work, dtype=np.float32)

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
            batch.ideal,
            batch.keep,
            batch.row,
            batch.fold,
            first,
            last,
            out,
        )

    if threads == 1 and progress is None:
        run(0, batch.n_scenarios)
        return out
    from concurrent.futures import ThreadPoolExecutor, as_completed

    parts = min(batch.n_scenarios, threads * 16)
    bounds = np.linspace(0, batch.n_scenarios, parts + 1).astype(int)
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(run, int(a), int(b)) for a, b in pairwise(bounds)]
        for done, job in enumerate(as_completed(jobs), start=1):
            job.result()
            if progress is not None:
                progress(done / len(jobs))
    return out
