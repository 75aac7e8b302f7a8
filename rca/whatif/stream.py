"""Traces too large to hold: read step by step, keep one number per operation.

The Parquet file must hold its steps one after the other, as tracers write them. Rows of each step are
arranged, turned into durations and transfers, and dropped; only those (4 bytes an operation) are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.errors import InvalidTrace
from rca.whatif.derive import DerivedTimes, derive, ideal_durations
from rca.whatif.meta import TraceMeta
from rca.whatif.optypes import N_TYPES
from rca.whatif.reader import COLUMNS, numbers, optype_codes, require_columns, trace_from_table
from rca.whatif.trace_replay import ShapeReplay, TraceReplay

Seconds32 = npt.NDArray[np.float32]
Progress = Callable[[float], None]

KEYS = ("dp_rank", "stage", "optype", "seq_id")
"""What a row is: where these agree with the first step's, its arrangement is the first step's too."""


def stream_replay(
    path: str | PathLike[str],
    meta: TraceMeta | Mapping[str, Any] | str | PathLike[str] | None = None,
    *,
    threads: int = 2,
    progress: Progress | None = None,
) -> TraceReplay:
    """A replay of a trace that does not fit in memory as rows.

    Steps whose operations differ from the first step's are left out with a note; everything else is as in
    `TraceReplay.from_trace`, but times as traced are not kept, so there is no timeline.

    Parameters
    ----------
    path : path
        Parquet, one step after the other.
    meta : mapping or path to YAML, optional
    threads : int
    progress : callable, optional
        Called with the share of rows read.

    Raises
    ------
    InvalidTrace
        If the steps are interleaved in the file, or the first cannot be replayed.
    """
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise InvalidTrace(f"{Path(path)}: not a readable Parquet trace: {error}") from error
    require_columns(file.schema_arrow.names)
    steps = _steps(file)
    tables = _one_step_at_a_time(file, [name for name in COLUMNS if name in file.schema_arrow.names])
    first_step, first = next(tables)
    template = TraceReplay.from_trace(trace_from_table(first, TraceMeta.of(meta)))
    collector = _Collector(template, first, len(steps))
    collector.add(first_step, first)
    done = first.num_rows
    for step, table in tables:
        collector.add(step, table)
        done += table.num_rows
        if progress is not None:
            progress(done / file.metadata.num_rows)
    return collector.replay(threads)


def _steps(file: Any) -> list[int]:
    """Steps in the order of the file, from its statistics where each row group holds one."""
    index = file.schema_arrow.names.index("step")
    runs: list[int] = []
    for group in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(group).column(index).statistics
        if statistics is not None and statistics.has_min_max and statistics.min == statistics.max:
            here = [int(statistics.min)]
        else:
            step = numbers(file.read_row_group(group, columns=["step"]).column("step"), null=-1)
            here = step[_run_starts(step)].tolist()
        runs += here[1:] if runs and here and here[0] == runs[-1] else here
    if not runs:
        raise InvalidTrace("operation trace has no rows")
    counts = Counter(runs)
    spread = [step for step, count in counts.items() if count > 1]
    if spread:
        raise InvalidTrace(f"step {spread[0]} is spread over the file", hint="sort the rows by step")
    return runs


def _run_starts(step: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where a step begins in the rows."""
    return np.flatnonzero(np.append(True, step[1:] != step[:-1])[: step.size])


def _one_step_at_a_time(file: Any, columns: list[str]) -> Iterator[tuple[int, pa.Table]]:
    """Rows of each step; the next row group is read while one is worked on."""
    pending: list[pa.Table] = []
    current: int | None = None
    n_groups = file.metadata.num_row_groups
    with ThreadPoolExecutor(1) as reader:
        ahead = reader.submit(file.read_row_group, 0, columns=columns)
        for group in range(n_groups):
            table = ahead.result()
            if group + 1 < n_groups:
                ahead = reader.submit(file.read_row_group, group + 1, columns=columns)
            step = numbers(table.column("step"), null=-1)
            starts = _run_starts(step)
            for start, stop in zip(starts, np.append(starts[1:], step.size), strict=True):
                if current is not None and int(step[start]) != current:
                    yield current, pa.concat_tables(pending)
                    pending = []
                current = int(step[start])
                pending.append(table.slice(int(start), int(stop - start)))
    if current is not None:
        yield current, pa.concat_tables(pending)


class _Collector:
    """Work of all steps, in the arrangement of the first."""

    def __init__(self, template: TraceReplay, first: pa.Table, n_steps: int) -> None:
        if len(template.parts) != 1 or template.steps.size != 1:
            raise InvalidTrace("the first step of the trace cannot be replayed")
        self.template = template
        self.part = template.parts[0]
        self.keys = {name: _key(first, name) for name in KEYS}
        shape = self.part.shape
        self.work = np.empty((shape.n_ops, shape.n_data, n_steps), np.float32)
        self.measured = np.empty(n_steps, np.float32)
        self.steps: list[int] = []
        self.rows, self.place = _places(template, first)
        self.left_out: list[int] = []

    def add(self, step: int, table: pa.Table) -> None:
        """Arrange one step's rows and keep what its operations contribute."""
        if table.num_rows == 0 or not self._same_rows(table):
            self.left_out.append(step)
            return
        shape = self.part.shape
        dense = []
        for name in ("start_ts", "duration"):
            array = np.full(shape.n_ops * shape.n_data, np.nan, np.float32)
            values = numbers(table.column(name), null=np.nan)
            if self.rows.size < values.size:
                values = values[self.rows]
            array[self.place] = values - values.min() if name == "start_ts" else values
            dense.append(array.reshape(shape.n_ops, shape.n_data, 1))
        if self.template.clock.any():
            dense[0] -= self.template.clock.astype(np.float32)[:, shape.stage].T[:, :, None]
        times = derive(replace(shape, start=dense[0], duration=dense[1]), self.part.graph)
        column = len(self.steps)
        self.work[:, :, column] = times.work[:, :, 0]
        self.measured[column] = times.measured[0]
        self.steps.append(step)

    def _same_rows(self, table: pa.Table) -> bool:
        if table.num_rows != self.keys["stage"].size:
            return False
        return all(np.array_equal(_key(table, name), held) for name, held in self.keys.items())

    def replay(self, threads: int) -> TraceReplay:
        n_steps = len(self.steps)
        if n_steps == 0:
            raise InvalidTrace("no step of the trace could be replayed")
        order = np.argsort(self.steps, kind="stable")
        steps = np.array(self.steps, dtype=np.int64)[order]
        work = self.work if n_steps == self.work.shape[2] else np.ascontiguousarray(self.work[:, :, :n_steps])
        if (order != np.arange(n_steps)).any():
            work = np.ascontiguousarray(work[:, :, order])
        measured = self.measured[:n_steps][order]
        shape = replace(self.part.shape, steps=steps)
        times = DerivedTimes(work, None, measured)
        ideal = ideal_durations([shape], [times])
        part = ShapeReplay(
            shape, self.part.graph, self.part.program, times, ideal[shape.optype], np.arange(n_steps)
        )
        notes = list(self.template.notes)
        if self.left_out:
            named = ", ".join(map(str, self.left_out[:8]))
            notes.append(f"{len(self.left_out)} step(s) differ from the first and are left out: {named}")
        return replace(
            self.template,
            parts=(part,),
            steps=steps,
            measured=measured,
            ideal=ideal,
            notes=tuple(notes),
            threads=threads,
        )


def _key(table: pa.Table, name: str) -> npt.NDArray[Any]:
    """A key column in its own width; dictionary codes for text."""
    column = table.column(name) if name in table.column_names else None
    if column is None:
        raise InvalidTrace(f"operation trace lacks column {name}", hint="streaming needs numbered operations")
    if pa.types.is_dictionary(column.type):
        return np.concatenate([np.from_dlpack(chunk.indices) for chunk in column.chunks])
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        encoded = column.dictionary_encode().combine_chunks()
        return np.from_dlpack(encoded.indices)
    return numbers(column, null=-1)


def _places(template: TraceReplay, first: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows of known types, and where each belongs in (n_ops, n_data)."""
    shape = template.parts[0].shape
    optype = optype_codes(first.column("optype"), [])
    rows = np.flatnonzero(optype >= 0)
    stage, sequence, data_rank = (
        numbers(first.column(name), null=-1)[rows].astype(np.int64) for name in ("stage", "seq_id", "dp_rank")
    )
    base = np.searchsorted(shape.stage * N_TYPES + shape.optype, stage * N_TYPES + optype[rows])
    return rows, (base + sequence) * shape.n_data + np.searchsorted(template.data_ranks, data_rank)
