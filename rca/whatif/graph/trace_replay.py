"""An operation trace prepared for replays: shapes, graphs, programs, own times and ideal times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray, Seconds32
from rca.errors import InvalidTrace
from rca.whatif.graph.clock_correction import one_clock
from rca.whatif.graph.derived_times import DerivedTimes, derive, ideal_durations, ideal_of_operations
from rca.whatif.graph.graph import DependencyGraph, Program, compile_graph
from rca.whatif.graph.reference_step import reference_of
from rca.whatif.graph.replay import Engine, by_data_rank, each_data_rank, replay_batch, step_blocks, whole_job
from rca.whatif.graph.schedules import Schedule, by_types
from rca.whatif.memory import refuse_large_graph
from rca.whatif.optypes import ALL_GATHER, COMPUTE, FORWARD, NAMES, REDUCE_SCATTER, ROUND, TAIL
from rca.whatif.trace.step_shapes import StepShape, shapes_of
from rca.whatif.trace.trace import OpTrace, TraceMeta, distinct
from rca.window.memory import MAX_MEMORY_BYTES

Masks = Callable[["ShapeReplay"], Sequence[BoolArray]]
Fitted = tuple[StepShape, DependencyGraph, Program]
WorkOf = Callable[["ShapeReplay", slice, Seconds32], None]


@dataclass(frozen=True)
class ShapeReplay:
    """The steps of one shape, with all data that a replay needs.

    Attributes
    ----------
    ideal : ndarray of shape (n_ops,), seconds
    position : ndarray of shape (n_steps,), int
        Positions of its steps among all steps of the trace.
    """

    shape: StepShape
    graph: DependencyGraph
    program: Program
    times: DerivedTimes
    ideal: FloatArray
    position: IntArray


@dataclass(frozen=True)
class TraceReplay:
    """A trace prepared for the replay of any scenario.

    Attributes
    ----------
    steps : ndarray of shape (n_steps,), int
        Steps that could be replayed, sorted.
    measured : ndarray of shape (n_steps,), float32, seconds
        Last end minus first start.
    ideal : ndarray of shape (N_TYPES,), seconds
    ranks : ndarray of shape (n_data, n_stages), int
        The traced rank of every worker.
    data_ranks : ndarray of shape (n_data,), int
    clock : ndarray of shape (n_data, n_stages), seconds
        Clock offsets that were removed.
    left_out : int
        Steps of the trace that could not be replayed.
    engine : {"auto", "numpy", "numba"}
    threads : int
        Threads for long traces.
    """

    parts: tuple[ShapeReplay, ...]
    steps: IntArray
    measured: Seconds32
    ideal: FloatArray
    ranks: IntArray
    data_ranks: IntArray
    clock: FloatArray
    meta: TraceMeta
    notes: tuple[str, ...]
    left_out: int = 0
    engine: Engine = field(default="auto", compare=False)
    threads: int = field(default=1, compare=False)

    @property
    def n_data(self) -> int:
        return int(self.data_ranks.size)

    @property
    def n_stages(self) -> int:
        return int(self.ranks.shape[1])

    @property
    def world_size(self) -> int:
        """GPUs of the job: from the metadata or, if that number is below the workers, from the trace."""
        seen = self.ranks.size * (self.meta.tp_size or 1) * (self.meta.dsp_size or 1)
        given = self.meta.world_size
        return seen if given is None or given < self.ranks.size else given

    @classmethod
    def from_trace(
        cls,
        trace: OpTrace,
        *,
        schedule: Schedule = by_types,
        engine: Engine = "auto",
        correct_clocks: bool = True,
        max_memory_bytes: int | None = MAX_MEMORY_BYTES,
    ) -> TraceReplay:
        """Prepare a trace: arrange its steps, correct the clocks, derive own and ideal times.

        If `correct_clocks` is false, skewed clocks stay as traced (see `rca.whatif.graph.clock_correction`).

        Raises
        ------
        InvalidTrace
            If no step fits the schedule. The message names the first contradiction.
        TooLarge
            If the dependency graphs need more than `max_memory_bytes` together with the rows.
        """
        shapes, notes = shapes_of(trace)
        refuse_large_graph(trace.n_ops, sum(shape.n_ops for shape in shapes), max_memory_bytes)
        return cls.from_shapes(
            shapes,
            trace.meta,
            ranks=ranks_of(trace),
            data_ranks=trace.data_ranks,
            n_steps=distinct(trace.step)[0].size,
            notes=([*map(str, trace.notes)], notes),
            schedule=schedule,
            engine=engine,
            correct_clocks=correct_clocks,
        )

    @classmethod
    def from_shapes(
        cls,
        shapes: Sequence[StepShape],
        meta: TraceMeta,
        *,
        ranks: IntArray,
        data_ranks: IntArray,
        n_steps: int,
        notes: tuple[list[str], list[str]],
        schedule: Schedule,
        engine: Engine,
        correct_clocks: bool,
    ) -> TraceReplay:
        """Prepare arranged steps: correct the clocks, derive own and ideal times.

        Parameters
        ----------
        n_steps : int
            Of the trace.
        notes : (list of str, list of str)
            On the rows, and on the steps.
        """
        of_rows, of_steps = notes
        kept = fitted(shapes, data_ranks, meta, schedule, of_steps)
        clock = one_clock(kept, of_steps, correct=correct_clocks)
        times = [derive(shape, graph) for shape, graph, _ in kept]
        kept_shapes = [shape for shape, _, _ in kept]
        ideal = ideal_durations(kept_shapes, times)
        steps = np.sort(np.concatenate([shape.steps for shape, _, _ in kept]))
        parts = tuple(
            ShapeReplay(shape, graph, program, derived, of_shape, np.searchsorted(steps, shape.steps))
            for (shape, graph, program), derived, of_shape in zip(
                kept, times, ideal_of_operations(kept_shapes, times, ideal), strict=True
            )
        )
        refuse_zero_ideal(parts)
        measured = np.empty(steps.size, np.float32)
        for part in parts:
            measured[part.position] = part.times.measured
        return cls(
            parts=parts,
            steps=steps,
            measured=measured,
            ideal=ideal,
            ranks=ranks,
            data_ranks=data_ranks,
            clock=clock,
            meta=meta,
            notes=(*of_rows, *of_steps),
            left_out=n_steps - steps.size,
            engine=engine,
        )

    def whole_job(self, masks: Masks) -> FloatArray:
        """Step times with the masked operations as traced and the rest ideal.

        Parameters
        ----------
        masks : callable
            Gives masks of shape (n_ops,) for a shape; the same number for every shape.

        Returns
        -------
        ndarray of shape (n_masks, n_steps), seconds
        """
        return self._by_block(lambda part, block: _block(part, block), masks)

    def with_work(self, work_of: WorkOf) -> FloatArray:
        """Step times with other own times.

        Parameters
        ----------
        work_of : callable
            Changes the own times of some steps in place. It gets a shape, the slice of its steps, and a copy
            of their own times of shape (n_ops, n_data, n_block).

        Returns
        -------
        ndarray of shape (n_steps,), seconds
        """

        def altered(part: ShapeReplay, block: slice) -> Seconds32:
            work = part.times.work[:, :, block].copy()
            work_of(part, block, work)
            return work

        seconds: FloatArray = self._by_block(altered, lambda part: [np.ones(part.shape.n_ops, dtype=bool)])[0]
        return seconds

    def each_data_rank(self, masks: Masks) -> FloatArray:
        """Step times with the masked operations of one data rank as traced and the rest ideal.

        Returns
        -------
        ndarray of shape (n_masks, n_data, n_steps), seconds
        """
        results = []
        for part in self.parts:
            batch = each_data_rank(part.times.work, part.ideal, masks(part))
            seconds = replay_batch(part.program, batch, engine=self.engine, threads=self.threads)
            results.append(by_data_rank(seconds, self.n_data))
        if len(results) == 1:
            return results[0]
        out = np.empty((*results[0].shape[:-1], self.steps.size))
        for part, result in zip(self.parts, results, strict=True):
            out[..., part.position] = result
        return out

    def _by_block(self, work_of: Callable[[ShapeReplay, slice], Seconds32], masks: Masks) -> FloatArray:
        blocks = [
            (part, block, chosen)
            for part in self.parts
            for chosen in (masks(part),)
            for block in step_blocks(self.n_data, part.shape.steps.size)
        ]
        out = np.empty((len(blocks[0][2]), self.steps.size))

        def run(part: ShapeReplay, block: slice, chosen: Sequence[BoolArray]) -> None:
            batch = whole_job(work_of(part, block), part.ideal, chosen)
            out[:, part.position[block]] = replay_batch(part.program, batch, engine=self.engine)

        if self.threads == 1 or len(blocks) == 1:
            for task in blocks:
                run(*task)
            return out
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(lambda task: run(*task), blocks))
        return out


def _block(part: ShapeReplay, block: slice) -> Seconds32:
    work = part.times.work
    return work if block == slice(0, work.shape[2]) else np.ascontiguousarray(work[:, :, block])


def fitted(
    shapes: Sequence[StepShape], data_ranks: IntArray, meta: TraceMeta, schedule: Schedule, notes: list[str]
) -> list[Fitted]:
    """The shapes that fit a schedule, with their graphs; adds notes on dropped steps.

    Raises
    ------
    InvalidTrace
        If no shape fits. The message names the first contradiction.
    """
    use_dp = (int(data_ranks.max()) + 1) * (meta.dsp_size or 1) > 1
    n_chunks = model_chunks(shapes)
    kept: list[Fitted] = []
    refused: list[str] = []
    for shape in shapes:
        try:
            graph = schedule(reference_of(shape, n_chunks=n_chunks, use_dp=use_dp))
            kept.append((shape, graph, compile_graph(graph)))
        except InvalidTrace as error:
            refused.append(error.message)
            named = ", ".join(map(str, shape.steps[:8]))
            notes.append(f"{shape.steps.size} step(s) fit no known schedule and are dropped: {named}")
    if not kept:
        raise InvalidTrace(f"no step fits the schedule: {refused[0]}")
    notes += _absent_types(kept, use_dp=use_dp)
    return kept


def model_chunks(shapes: Sequence[StepShape]) -> int:
    """Model chunks per stage. Every chunk has at least one compute per step."""
    held = [shape.chunk[np.isin(shape.optype, COMPUTE)] for shape in shapes]
    n_chunks = max(1, max(int(chunks.max(initial=0)) for chunks in held) + 1)
    most = max(int(shape.sequence[shape.optype == FORWARD].max(initial=0)) + 1 for shape in shapes)
    if n_chunks > most:
        raise InvalidTrace(
            f"column mc runs to {n_chunks - 1}, but a stage has only {most} forward-compute per step",
            hint="mc is the model chunk within the stage, counted from 0",
        )
    return n_chunks


def refuse_zero_ideal(parts: Sequence[ShapeReplay]) -> None:
    """Refuse steps without a positive ideal time."""
    for part in parts:
        if not (part.ideal[sorted(part.graph.active)] > 0).any():
            named = ", ".join(map(str, part.shape.steps[:8]))
            raise InvalidTrace(
                f"operations take no time in step(s) {named}: the own time of every operation is 0 s",
                hint="duration is in seconds with its fraction; whole seconds lose what is shorter",
            )


def _absent_types(kept: list[Fitted], *, use_dp: bool) -> list[str]:
    """Note on types of operations that every such job runs, but that have no rows in the trace."""
    expected = {*TAIL, *((ALL_GATHER, REDUCE_SCATTER) if use_dp else ())}
    seen = {int(code) for shape, _, _ in kept for code in np.unique(shape.optype)}
    if seen <= set(ROUND):
        return []
    absent = sorted(NAMES[code] for code in expected - seen)
    return [f"no rows of {', '.join(absent)}: left out of the graph"] if absent else []


NO_RANK = np.iinfo(np.int64).max


def ranks_of(trace: OpTrace) -> IntArray:
    """Smallest traced rank per worker: (n_data, n_stages); the usual numbering if ranks are absent."""
    return usual_where_unknown(smallest_ranks(trace, trace.n_stages), trace.meta.tp_size or 1)


def smallest_ranks(trace: OpTrace, n_stages: int) -> IntArray:
    """Smallest traced rank per worker; `NO_RANK` if no row has one."""
    ranks = np.full((trace.n_data, n_stages), NO_RANK)
    np.minimum.at(ranks, (trace.data_rank, trace.stage), np.where(trace.rank < 0, NO_RANK, trace.rank))
    return ranks


def usual_where_unknown(ranks: IntArray, width: int) -> IntArray:
    """Ranks, or the usual numbering of all workers (data before pipeline) if one has no rank."""
    n_data, n_stages = ranks.shape
    usual = (np.arange(n_stages)[None, :] * n_data + np.arange(n_data)[:, None]) * width
    return np.where((ranks == NO_RANK).any(), usual, ranks)
