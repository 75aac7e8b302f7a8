"""Read an operation trace: the public Parquet columns, or the `ops` table of a window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.errors import InvalidTrace
from rca.telemetry.window import Window
from rca.whatif.meta import TraceMeta
from rca.whatif.optypes import CODE, IGNORED_NAMES, NAMES
from rca.whatif.repair import repaired
from rca.whatif.trace import OpTrace

REQUIRED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
OPTIONAL = ("rank", "seq_id", "mc", "gmc", "mb_id")
COLUMNS = (*REQUIRED, *OPTIONAL)

LONGEST_STEP = 1e6
"""Seconds; a longer step means a clock that does not count in seconds."""

COARSEST_TICK = 1e-3
"""Refuse single-precision clocks whose spacing exceeds this many seconds: transfers would be noise."""


def read_trace(
    path: str | PathLike[str], meta: TraceMeta | Mapping[str, Any] | str | PathLike[str] | None = None
) -> OpTrace:
    """Read a Parquet trace and its metadata (a mapping or a YAML file).

    Raises
    ------
    InvalidTrace
        Naming the file or column that cannot be used.
    """
    path = Path(path)
    return trace_from_table(read_table(path), TraceMeta.of(meta))


def read_table(path: Path) -> pa.Table:
    """Read the trace columns of a Parquet file."""
    import pyarrow.parquet as pq

    try:
        # Read by hand rather than through a data set: the data-set module alone costs 50 ms to import.
        file = pq.ParquetFile(path)
        held = [name for name in COLUMNS if name in file.schema_arrow.names]
        require_columns(held)
        return file.read(columns=held)
    except (OSError, pa.ArrowException) as error:
        raise InvalidTrace(f"{path}: not a readable Parquet trace: {error}") from error


def require_columns(held: list[str]) -> None:
    missing = [name for name in REQUIRED if name not in held]
    if missing:
        raise InvalidTrace(
            f"operation trace lacks column(s) {', '.join(missing)}", hint=f"needed: {', '.join(REQUIRED)}"
        )


def trace_from_window(window: Window) -> OpTrace:
    """Take the `ops` table of a window as a trace."""
    return trace_from_table(window.ops, TraceMeta.of_job(window.job))


def trace_from_table(
    table: pa.Table, meta: TraceMeta, repair: Callable[[OpTrace], OpTrace] = repaired
) -> OpTrace:
    """Check and repair the rows of one table.

    Parameters
    ----------
    table : pyarrow.Table
    meta : TraceMeta
    repair : callable
        What repairs the checked rows; another one where the table is a part of a trace.

    Raises
    ------
    InvalidTrace
        If no row can be replayed, or a value makes no sense for any job.
    """
    require_columns(table.column_names)
    if table.num_rows == 0:
        raise InvalidTrace("operation trace has no rows")
    notes: list[str] = []
    optype = optype_codes(table.column("optype"), notes)
    known = np.flatnonzero(optype >= 0)
    if known.size == 0:
        raise InvalidTrace("operation trace has no row of a known operation type")
    columns = {name: _integers(table, name)[known] for name in COLUMNS if name not in _FLOATS}
    columns["optype"] = optype[known]
    start, duration = (_seconds(table, name)[known] for name in ("start_ts", "duration"))
    _refuse_negative(columns)
    usable = np.isfinite(start) & np.isfinite(duration) & (duration >= 0)
    if not usable.all():
        notes.append(f"{int((~usable).sum())} rows with a negative or non-finite time dropped")
        columns = {name: values[usable] for name, values in columns.items()}
        start, duration = start[usable], duration[usable]
    if start.size == 0:
        raise InvalidTrace("operation trace has no row with a usable start and duration")
    relative = since_step_start(start, columns["step"])
    if float(relative.max()) > LONGEST_STEP:
        raise InvalidTrace(
            f"a step would take {float(relative.max()):.3g} s", hint="start_ts and duration are in seconds"
        )
    data_ranks, data_rank = np.unique(columns["dp_rank"], return_inverse=True)
    trace = OpTrace(
        data_rank=data_rank.astype(np.int64),
        stage=columns["stage"],
        rank=columns["rank"],
        step=columns["step"],
        optype=columns["optype"],
        sequence=columns["seq_id"],
        chunk=columns["mc"],
        global_chunk=columns["gmc"],
        microbatch=columns["mb_id"],
        start=relative,
        duration=duration.astype(np.float32),
        data_ranks=data_ranks,
        meta=meta,
        notes=tuple(notes),
    )
    return repair(trace)


_FLOATS = ("optype", "start_ts", "duration")


def optype_codes(column: pa.ChunkedArray, notes: list[str]) -> npt.NDArray[np.int64]:
    """Codes of the type names; -1 for unknown ones, which are counted by name."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = []
    unknown: Counter[str] = Counter()
    for chunk in column.chunks:
        names = [str(name) for name in chunk.dictionary.to_pylist()] + ["null"]
        lookup = np.array([CODE.get(name, -1) for name in names], dtype=np.int64)
        index = numbers(chunk.indices, null=len(names) - 1).astype(np.int64)
        codes.append(lookup[index])
        counts = np.bincount(index, minlength=len(names))
        for name, count, code in zip(names, counts, lookup, strict=True):
            if code < 0 and count and name not in IGNORED_NAMES:
                unknown[name] += int(count)
    if unknown:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        notes.append(
            f"operations of unknown type are not replayed, their time shows as launch delay: {listed}; "
            f"known: {', '.join(NAMES)}"
        )
    return np.concatenate(codes)


def _integers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """Read an integer column; -1 where absent or null."""
    if name not in table.column_names:
        return np.full(table.num_rows, -1, dtype=np.int64)
    column = table.column(name)
    if pa.types.is_integer(column.type):
        integers: npt.NDArray[np.int64] = numbers(column, null=-1).astype(np.int64)
        return integers
    if pa.types.is_floating(column.type):
        values = numbers(column, null=-1)
        whole: npt.NDArray[np.int64] = np.nan_to_num(values, nan=-1).astype(np.int64)
        if np.array_equal(whole, np.nan_to_num(values, nan=-1)):
            return whole
    raise InvalidTrace(f"column {name} holds no whole numbers ({column.type})")


def _seconds(table: pa.Table, name: str) -> npt.NDArray[np.floating[Any]]:
    column = table.column(name)
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise InvalidTrace(f"column {name} must hold seconds as numbers, not {column.type}")
    values = numbers(column, null=np.nan)
    if values.dtype != np.float32:
        return np.asarray(values, dtype=np.float64)
    finite = values[np.isfinite(values)]
    if finite.size and float(np.spacing(np.abs(finite).max())) > COARSEST_TICK:
        tick = float(np.spacing(np.abs(finite).max()))
        raise InvalidTrace(
            f"column {name} is single precision on an absolute clock: it resolves only {tick:.3g} s",
            hint="write it as float64, or relative to each step's start",
        )
    return values


def numbers(column: pa.Array | pa.ChunkedArray, *, null: float) -> npt.NDArray[Any]:
    """Turn a numeric column into an array.

    Through DLPack because ``to_numpy`` imports pandas, which takes longer than the whole analysis.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    filled = [chunk.fill_null(null) if chunk.null_count else chunk for chunk in chunks]
    arrays = [np.from_dlpack(chunk) for chunk in filled]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _refuse_negative(columns: Mapping[str, npt.NDArray[np.int64]]) -> None:
    for name in ("dp_rank", "stage"):
        low, high = int(columns[name].min()), int(columns[name].max())
        if low < 0 or high > 1_000_000:
            raise InvalidTrace(f"column {name} spans {low} to {high}; expected indices counted from 0")


def since_step_start(
    start: npt.NDArray[np.floating[Any]], step: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Count starts from the first start of their step, in single precision."""
    _, index = np.unique(step, return_inverse=True)
    origin = np.full(int(index.max()) + 1, np.inf)
    np.minimum.at(origin, index, start)
    return np.asarray(start - origin[index], dtype=np.float32)
