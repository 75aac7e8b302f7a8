"""Read an operation trace: the public Parquet columns, or the `ops` table of a window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import BoolArray, IntArray, Seconds32
from rca.errors import InvalidTrace
from rca.files import check_file
from rca.whatif.optypes import CODE, COMPUTE, IGNORED_NAMES, NAMES
from rca.whatif.trace.operation_numbers import restarted
from rca.whatif.trace.row_repair import repaired
from rca.whatif.trace.trace import Note, OpTrace, TraceMeta, distinct
from rca.whatif.trace.trace_checks import (
    coarse_durations,
    refuse_indices,
    refuse_shared_ranks,
    refuse_times,
    refuse_zero_durations,
    unusual_durations,
    with_own_ranks,
)
from rca.window.window import Window

if TYPE_CHECKING:
    import pyarrow.parquet as pq

REQUIRED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
OPTIONAL = ("rank", "seq_id", "mc", "gmc", "mb_id")
COLUMNS = (*REQUIRED, *OPTIONAL)

MAX_FLOAT = 2.0**53
"""Larger floating-point values do not distinguish neighbouring whole numbers."""

MAX_NAMED = 16
"""Unknown operation types listed in a note."""

MAX_UNSIGNED = np.uint64(1 << 63)

COARSEST_TICK = 1e-3
"""Seconds. Single-precision clocks with a larger spacing are refused: transfers would be noise."""


def read_trace(
    path: str | PathLike[str], meta: TraceMeta | Mapping[str, Any] | str | PathLike[str] | None = None
) -> OpTrace:
    """Read a Parquet trace and its metadata (a mapping or a YAML file).

    Raises
    ------
    InvalidTrace
        If a file or column cannot be used. The message names it.
    """
    path = Path(path)
    return trace_from_table(read_table(path), TraceMeta.of(meta))


def read_table(path: Path) -> pa.Table:
    """Read the trace columns of a Parquet file."""
    try:
        file, held = open_trace(path)
        return file.read(columns=held)
    except (OSError, pa.ArrowException) as error:
        raise InvalidTrace(f"{path}: not a readable Parquet trace: {error}") from error


def count_rows(path: Path) -> int:
    """Rows of a Parquet file.

    Raises
    ------
    InvalidTrace
        If it is no Parquet file.
    """
    import pyarrow.parquet as pq

    try:
        check_file(path)
        rows: int = pq.read_metadata(path).num_rows
    except (OSError, pa.ArrowException) as error:
        raise InvalidTrace(f"{path}: not a readable Parquet trace: {error}") from error
    return rows


def open_trace(source: Path | pa.NativeFile, *, pre_buffer: bool = True) -> tuple[pq.ParquetFile, list[str]]:
    """Open a Parquet trace, and give its trace columns; nothing that a few bytes make large is read later.

    Raises
    ------
    InvalidTrace
        If a column is missing, repeated or of a wrong type.
    OSError, pyarrow.ArrowException
        If it is no Parquet file.
    """
    # `pyarrow.dataset` takes 50 ms to import, so the file is read without it.
    import pyarrow.parquet as pq

    if isinstance(source, Path):
        check_file(source)
    file = pq.ParquetFile(source, pre_buffer=pre_buffer)
    schema = file.schema_arrow
    held = require_columns(schema.names)
    for name in held:
        require_type(name, schema.field(name).type)
    # A million rows of one long text are then one text and codes.
    coded = pq.ParquetFile(source, metadata=file.metadata, pre_buffer=pre_buffer, read_dictionary=["optype"])
    return coded, held


def require_type(name: str, kind: pa.DataType) -> None:
    """Refuse a column of a wrong type."""
    if name == "optype":
        held = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(held) or pa.types.is_large_string(held) or pa.types.is_string_view(held)):
            raise InvalidTrace(f"column optype must hold names of operation types, not {held}")
    elif not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        if name in ("start_ts", "duration"):
            raise InvalidTrace(f"column {name} must hold seconds as numbers, not {kind}")
        raise InvalidTrace(f"column {name} holds no whole numbers ({kind})")


def require_columns(held: list[str]) -> list[str]:
    """Trace columns of a table. A missing or repeated column is refused."""
    twice = [name for name in COLUMNS if held.count(name) > 1]
    if twice:
        raise InvalidTrace(f"operation trace has column(s) {', '.join(twice)} more than once")
    missing = [name for name in REQUIRED if name not in held]
    if missing:
        raise InvalidTrace(
            f"operation trace lacks column(s) {', '.join(missing)}", hint=f"needed: {', '.join(REQUIRED)}"
        )
    return [name for name in COLUMNS if name in held]


def trace_from_window(window: Window) -> OpTrace:
    """Take the `ops` table of a window as a trace.

    Raises
    ------
    InvalidWindow
        If a rank has two (data rank, stage).
    """
    require_columns(window.ops.column_names)
    refuse_shared_ranks(*(_integers(window.ops, name) for name in ("rank", "dp_rank", "stage")))
    return trace_from_table(window.ops, TraceMeta.of_job(window.job))


class NoUsableRow(InvalidTrace):
    """No row of a table can be replayed; other parts of the trace may have some."""

    def __init__(self, message: str, notes: list[Note], *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.notes = notes


@dataclass(frozen=True)
class TracePart:
    """Facts about a table that is a part of a trace.

    Attributes
    ----------
    rows : ndarray of shape (n_rows,), int
        Row numbers in the trace, for messages.
    repair : callable
        Repairs the checked rows with facts about the whole trace.
    """

    rows: IntArray
    repair: Callable[[OpTrace], OpTrace]


def trace_from_table(table: pa.Table, meta: TraceMeta, part: TracePart | None = None) -> OpTrace:
    """Check and repair the rows of one table.

    Parameters
    ----------
    part : TracePart, optional
        Given if the table is a part of a trace. Checks that need the whole trace are left to the caller.

    Raises
    ------
    NoUsableRow
        If no row can be replayed.
    InvalidTrace
        If a value is impossible for any job.
    """
    require_columns(table.column_names)
    if table.num_rows == 0:
        raise InvalidTrace("operation trace has no rows")
    notes: list[Note] = []
    optype = optype_codes(table.column("optype"), notes)
    rows = np.flatnonzero(optype >= 0)
    if rows.size == 0:
        hint = "; ".join(map(str, notes)) or None
        raise NoUsableRow("operation trace has no row of a known operation type", notes, hint=hint)
    named = np.arange(table.num_rows) if part is None else part.rows
    columns = {name: _integers(table, name, named)[rows] for name in COLUMNS if name not in _FLOATS}
    columns["optype"] = optype[rows]
    start, duration = (_seconds(table, name)[rows] for name in ("start_ts", "duration"))
    rows = named[rows]
    refuse_indices(columns, rows, _narrow(table))
    usable = np.isfinite(start) & np.isfinite(duration) & (duration >= 0)
    if not usable.all():
        lost = np.flatnonzero(~usable)
        notes.append(
            Note((lost.size, " rows with a negative or non-finite time dropped"), int(rows[lost[0]]))
        )
        columns = {name: values[usable] for name, values in columns.items()}
        start, duration, rows = start[usable], duration[usable], rows[usable]
    if start.size == 0:
        raise NoUsableRow("operation trace has no row with a usable start and duration", notes)
    relative = since_step_start(start, columns["step"])
    refuse_times(columns, relative, duration, rows)
    notes += unusual_durations(columns, duration, rows)
    if part is None:
        compute = np.isin(columns["optype"], COMPUTE)
        refuse_zero_durations(int((duration[compute] == 0).sum()), int(compute.sum()))
        notes += [Note((text,)) for text in coarse_durations(duration)]
    data_ranks, data_rank = distinct(columns["dp_rank"])
    trace = OpTrace(
        data_rank=data_rank,
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
    return with_own_ranks(repaired(restarted(trace))) if part is None else part.repair(trace)


_FLOATS = ("optype", "start_ts", "duration")


def optype_codes(column: pa.ChunkedArray, notes: list[Note]) -> IntArray:
    """Codes of the type names; -1 for unknown names, which are counted in a note."""
    require_type("optype", column.type)
    held = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string_view(held):
        column = column.cast(pa.large_string())
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
        said = "operations of unknown type are not replayed, their time shows as launch delay: "
        pieces: list[str | int] = []
        for name, count in unknown.most_common(MAX_NAMED):
            pieces += [f"{', ' if pieces else said}{name[:80]} (", count, ")"]
        more = f" and {len(unknown) - MAX_NAMED} more types" if len(unknown) > MAX_NAMED else ""
        notes.append(Note((*pieces, f"{more}; known: {', '.join(NAMES)}")))
    return np.concatenate(codes)


def _integers(table: pa.Table, name: str, named: IntArray | None = None) -> IntArray:
    """Read an integer column; -1 where absent or null."""
    if name not in table.column_names:
        return np.full(table.num_rows, -1, dtype=np.int64)
    column = table.column(name)
    require_type(name, column.type)
    named = np.arange(table.num_rows) if named is None else named
    values = numbers(column, null=-1 if pa.types.is_integer(column.type) else np.nan)
    absent = np.isnan(values) if values.dtype.kind == "f" else _nulls(column)
    if name in REQUIRED and absent.any():
        first = named[np.argmax(absent)]
        raise InvalidTrace(f"column {name} is null in {int(absent.sum())} row(s), the first is row {first}")
    if values.dtype.kind != "i":
        values = np.where(absent, values.dtype.type(0), values)
        fits = values < MAX_UNSIGNED if values.dtype.kind == "u" else np.abs(values) < MAX_FLOAT
        wrong = ~fits | (values != np.rint(values)) if values.dtype.kind == "f" else ~fits
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InvalidTrace(f"column {name} holds no whole number in row {named[at]}: {values[at]!s}")
    whole: IntArray = values.astype(np.int64)
    if absent.any():
        whole[absent] = -1
    return whole


def _nulls(column: pa.ChunkedArray) -> BoolArray:
    if not column.null_count:
        return np.zeros(len(column), dtype=bool)
    return np.concatenate([np.array(chunk.is_null().tolist(), dtype=bool) for chunk in column.chunks])


def _narrow(table: pa.Table) -> frozenset[str]:
    """Integer columns of 8 or 16 bits."""
    fields = (table.schema.field(name) for name in table.column_names)
    return frozenset(f.name for f in fields if pa.types.is_integer(f.type) and f.type.bit_width <= 16)


def _seconds(table: pa.Table, name: str) -> npt.NDArray[np.floating[Any]]:
    column = table.column(name)
    require_type(name, column.type)
    values = numbers(column, null=np.nan)
    if values.dtype != np.float32:
        return np.asarray(values, dtype=np.float64)
    if name == "start_ts" and _tick(values, np.max) > COARSEST_TICK:
        # One damaged row may be far off on a correct clock. It is refused later, by its row.
        tick = _tick(values, np.median)
        if tick > COARSEST_TICK:
            raise InvalidTrace(
                f"column {name} is single precision on an absolute clock: it resolves only {tick:.3g} s",
                hint="write it as float64, or relative to each step's start",
            )
    return values


def _tick(values: Seconds32, of: Callable[..., Any]) -> float:
    """Spacing of single-precision clock readings at their largest (or median) value."""
    finite = np.abs(values[np.isfinite(values)])
    return float(np.spacing(np.float32(of(finite)))) if finite.size else 0.0


def numbers(column: pa.Array | pa.ChunkedArray, *, null: float) -> npt.NDArray[Any]:
    """Numeric column as an array.

    DLPack is used because ``to_numpy`` imports pandas, which takes longer than the whole analysis.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    filled = [chunk.fill_null(null) if chunk.null_count else chunk for chunk in chunks]
    arrays = [np.from_dlpack(chunk) for chunk in filled]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def since_step_start(start: npt.NDArray[np.floating[Any]], step: IntArray) -> Seconds32:
    """Starts relative to the first start of their step, in single precision."""
    steps, index = distinct(step)
    origin = np.full(steps.size, np.inf)
    np.minimum.at(origin, index, start)
    return np.asarray(start - origin[index], dtype=np.float32)
