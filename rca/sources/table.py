"""Plain tables of steps, metrics or events: CSV, TSV, JSON lines, or data frames.

The names of the columns decide. Files of one folder are put together, such as one file per rank.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from rca.arrays import FloatArray
from rca.errors import InvalidInput, InvalidWindow, SourceError, TooLarge
from rca.files import open_file
from rca.sources.source import Source
from rca.sources.table_text import TableText, names_of, needed_spec, read_text, spec_of
from rca.window.rows.clock_units import UNITS
from rca.window.rows.column_names import TIMES
from rca.window.rows.conversion import TableLike, as_table, names_in
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.schema import STEPS, TableSpec
from rca.window.window import Window

#: Of files that are tables, whatever their columns are.
SUFFIXES = frozenset({".csv", ".tsv"})
#: Bytes of one file.
MAX_BYTES = 1 << 30
#: The year 5000, Unix seconds: later times are errors, or of another unit.
LATEST = 95_617_584_000.0
#: Note on steps without times.
UNDATED = "the steps have no start_time: they were put one after another from time 0"
_SHOWN = 3


def is_table(head: bytes, _: str) -> bool:
    """Whether a file is such a table, by the names in its first line."""
    return spec_of(names_of(head)[0]) is not None


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read tables of one job into a window.

    Parameters
    ----------
    job_id : str
        Of the window; the tables hold none.

    Returns
    -------
    Window
        The highest rank gives the world size. Without ranks, each node counts as one rank. Its notes say
        what was converted.

    Raises
    ------
    InvalidInput
        If a file is damaged or has no row, or the tables break the format.
    """
    tables: list[tuple[str, pa.Table]] = []
    for path in paths:
        try:
            if (size := path.stat().st_size) > MAX_BYTES:
                raise TooLarge(f"{path.name} has {size:,} bytes; the limit of a table is {MAX_BYTES:,} bytes")
            n_rows = sum(table.num_rows for _, table in tables)
            content = TableText(path.name, partial(open_file, path))
            tables.append((path.name, read_text(content, n_rows)))
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    return read_tables(tables, job_id)


def read_content(body: bytes | bytearray | memoryview, job_id: str) -> Window:
    """Read a table from its bytes into a window; see `read`."""
    content = TableText("the table", lambda: io.BytesIO(body))
    return read_tables([(content.name, read_text(content))], job_id)


def read_tables(tables: Sequence[tuple[str, TableLike]], job_id: str) -> Window:
    """Join tables of one job to a window; see `read`.

    Parameters
    ----------
    tables : sequence of (str, table)
        Each with its name in messages. A table is what `Window.from_tables` takes.
    """
    found: dict[str, list[pa.Table]] = {}
    notes: list[str] = []
    shown: list[str] = []
    try:
        for name, data in tables:
            shown = [name]
            spec = needed_spec(names_in(data))
            table, remarks = as_table(spec, data)
            table = _with_seconds(spec, table, remarks)
            notes += [remark for remark in remarks if remark not in notes]
            found.setdefault(spec.name, []).append(table)
        shown = [name for name, _ in tables[:_SHOWN]]
        joined = {
            kind: pa.concat_tables(parts, promote_options="permissive") for kind, parts in found.items()
        }
        if "steps" in joined:
            joined["steps"], remarks = _with_start_times(joined["steps"])
            notes += remarks
        job = _job(joined, job_id, notes)
        if "node" in joined.get("steps", STEPS.empty()).column_names:
            # It is in the job by now.
            joined["steps"] = joined["steps"].drop_columns("node")
        window = Window.from_tables(job, **joined)
    except (InvalidWindow, pa.ArrowException) as error:
        raise InvalidInput(f"{', '.join(shown)}: {error}") from None
    return replace(window, notes=(*window.notes, *notes))


def _with_seconds(spec: TableSpec, table: pa.Table, notes: list[str]) -> pa.Table:
    """The table with Unix seconds where all times are so late that they have one smaller unit."""
    for name in TIMES & set(table.column_names):
        times = _numbers(table, name)
        if np.isfinite(times).any() and float(np.nanmin(times)) > LATEST:
            latest = float(np.nanmax(times))
            unit, factor = next((each for each in UNITS if latest / each[1] <= LATEST), UNITS[-1])
            table = table.set_column(table.column_names.index(name), name, pa.array(times / factor))
            notes.append(f"{spec.name}: {name} is read as {unit}")
    return table


def _with_start_times(steps: pa.Table) -> tuple[pa.Table, list[str]]:
    """Steps without times one after another from time 0, each as long as that of its slowest rank."""
    if "start_time" in steps.column_names:
        return steps, []
    number, place = np.unique(_numbers(steps, "step"), return_inverse=True)
    longest = np.zeros(number.size)
    np.fmax.at(longest, place, np.nan_to_num(_numbers(steps, "step_seconds")))
    begin = np.concatenate([[0.0], np.cumsum(longest)[:-1]])
    return steps.append_column("start_time", pa.array(begin[place])), [UNDATED]


def _refuse_impossible_end(name: str, ends: FloatArray) -> None:
    """Name the row whose step or time is after the year 5000, unless most rows are."""
    late = np.flatnonzero(ends > LATEST)
    if 0 < late.size <= ends.size / 2:
        raise InvalidWindow(
            "ends beyond the year 5000" if name == "steps" else "is beyond the year 5000",
            table=name,
            column="start_time and step_seconds" if name == "steps" else "time",
            rows=[{"row": int(row), "end": float(ends[row])} for row in late[:5]],
            n_rows=int(late.size),
            expected="Unix seconds",
            hint="correct these rows or leave them out",
        )


def _job(tables: Mapping[str, pa.Table], job_id: str, notes: list[str]) -> dict[str, Any]:
    """World size, bounds and places, from the rows."""
    begins, ends, highest = [], [], -1
    for name, table in tables.items():
        times = _numbers(table, "start_time" if name == "steps" else "time")
        begins.append(np.nanmin(times, initial=np.inf))
        last = times + np.nan_to_num(_numbers(table, "step_seconds")) if name == "steps" else times
        ends.append(np.nanmax(last, initial=-np.inf))
        if "rank" in table.column_names:
            highest = max(highest, int(np.nanmax(_numbers(table, "rank"), initial=-1.0)))
        _refuse_impossible_end(name, np.asarray(last))
    start = float(min(begins))
    if not np.isfinite(start):
        raise InvalidWindow("has no time in any row", table=next(iter(tables)), expected="Unix seconds")
    job: dict[str, Any] = {"job_id": job_id, "start": start, "end": max(float(max(ends)), start + 1e-3)}
    if highest >= 0:
        notes.append("the world size is taken from the highest rank")
        places = [{"rank": rank, "node": node} for rank, node in sorted(_nodes_of_ranks(tables).items())]
        return job | {"world_size": min(highest, MAX_WORLD_SIZE) + 1} | ({"ranks": places} if places else {})
    nodes = sorted(
        {
            str(node)
            for table in tables.values()
            if "node" in table.column_names
            for node in table.column("node").unique().to_pylist()
            if node is not None
        }
    )
    notes.append("no row has a rank: each node counts as one rank")
    places = [{"rank": rank, "node": node} for rank, node in enumerate(nodes)]
    return job | {"world_size": max(len(nodes), 1)} | ({"ranks": places} if nodes else {})


def _nodes_of_ranks(tables: Mapping[str, pa.Table]) -> dict[int, str]:
    """The node in the first row of each rank."""
    found: dict[int, str] = {}
    for table in tables.values():
        if not {"rank", "node"} <= set(table.column_names):
            continue
        pairs = table.select(["rank", "node"]).drop_null().group_by(["rank", "node"], use_threads=False)
        for row in pairs.aggregate([]).to_pylist():
            if 0 <= row["rank"] < MAX_WORLD_SIZE:
                found.setdefault(int(row["rank"]), str(row["node"]))
    return found


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    """Finite numbers of a column, shape (n_rows,); NaN elsewhere. Validation refuses what is wrong."""
    if name not in table.column_names or not _is_number(table.column(name).type):
        return np.full(table.num_rows, np.nan)
    values = table.column(name).cast(pa.float64(), safe=False).to_numpy()
    return np.where(np.isfinite(values), values, np.nan)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


SOURCE = Source(
    name="table",
    title="CSV, TSV or JSON lines with columns of `steps`, `metrics` or `events` by usual names, such as "
    "`Rank`, `iter_time_ms` and `hostname`",
    tells="what the columns tell; times may be ISO 8601 or absent",
    lacks="the job's parallel sizes and, without `node`, its nodes",
    recognises=is_table,
    read=read,
)
