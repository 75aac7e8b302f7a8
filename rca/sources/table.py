"""Plain tables of steps, metrics or events: CSV, TSV or JSON lines with the window's column names.

The names in the first line decide. Files of one folder are put together, such as one file per rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from rca.arrays import FloatArray
from rca.errors import InvalidInput, InvalidWindow, SourceError, TooLarge, cut
from rca.files import open_file
from rca.sources.source import HEAD_BYTES, Source
from rca.window.rows.conversion import as_table
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.schema import EVENTS, METRICS, STEPS, TableSpec
from rca.window.window import Window

#: Bytes of one file, and of a row.
MAX_BYTES, MAX_ROW_BYTES = 1 << 30, 1 << 20
#: Rows of all tables of a job.
MAX_ROWS = 30_000_000
_NEEDED: Mapping[str, frozenset[str]] = {
    "steps": frozenset({"rank", "step"}),
    "metrics": frozenset({"time", "name", "value"}),
    "events": frozenset({"time", "kind"}),
}
_SPECS = {spec.name: spec for spec in (STEPS, METRICS, EVENTS)}
#: The year 5000, Unix seconds: later times are errors, or of another unit.
LATEST = 95_617_584_000.0
#: Note on steps without times.
UNDATED = "the steps have no start_time: they were put one after another from time 0"
_SEPARATORS = (",", "\t", ";")
_DURATIONS = ("_seconds", "_ms")
_STEP_DURATIONS = ("step_seconds", "step_ms")
#: Names that people give to columns of steps, beside those of the format. Letters may be large.
ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("global_rank", "rank_id", "process_index"), "rank"),
    **dict.fromkeys(("iteration", "iter", "global_step", "step_number"), "step"),
    **dict.fromkeys(
        ("step_time", "step_time_s", "step_duration", "iter_time", "iteration_time"), "step_seconds"
    ),
    **dict.fromkeys(("step_time_ms", "step_duration_ms", "iter_time_ms", "iteration_time_ms"), "step_ms"),
    **dict.fromkeys(("hostname", "host"), "node"),
}


def is_table(head: bytes, _: str) -> bool:
    """Whether a file is such a table, by the names in its first line."""
    return _kind(_names(head)[0]) is not None


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
    found: dict[str, list[pa.Table]] = {}
    undated: list[pa.Table] = []
    n_rows = 0
    notes: list[str] = []
    names = ", ".join(path.name for path in paths[:3])
    try:
        for path in paths:
            spec, table = _table(path, MAX_ROWS - n_rows)
            n_rows += table.num_rows
            if spec is STEPS and "start_time" not in table.column_names:
                # All files together: their steps are put one after another.
                undated.append(table)
                continue
            table, remarks = as_table(spec, table)
            notes += [remark for remark in remarks if remark not in notes]
            found.setdefault(spec.name, []).append(table)
        if undated:
            table = _with_start_times(pa.concat_tables(undated, promote_options="permissive"))
            table, remarks = as_table(STEPS, table)
            notes += [*remarks, UNDATED]
            found.setdefault("steps", []).append(table)
        tables = {
            name: pa.concat_tables(parts, promote_options="permissive") for name, parts in found.items()
        }
        window = Window.from_tables(_job(tables, job_id, notes), **tables)
    except (InvalidWindow, pa.ArrowException) as error:
        raise InvalidInput(f"{names}: {error}") from None
    return replace(window, notes=(*window.notes, *notes))


def _names(head: bytes) -> tuple[list[str], str]:
    """Column names in the first line of a file, and the separator; empty for JSON lines."""
    line = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].strip()
    if line.startswith(b"{"):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            return [], ""
        return _usual(list(row)), ""
    text = line.decode("utf-8", "replace")
    separator = max(_SEPARATORS, key=text.count)
    return _usual([name.strip().strip('"') for name in text.split(separator)]), separator


def _usual(names: Sequence[str]) -> list[str]:
    """Names of the format in place of other usual ones, unless a column has the name already."""
    lower = [name.lower() for name in names]
    found: list[str] = []
    for name in lower:
        known = ALIASES.get(name, name)
        found.append(name if known in lower or known in found else known)
    return found


def _kind(names: Sequence[str]) -> str | None:
    held = set(names)
    found = next((kind for kind, needed in _NEEDED.items() if needed <= held), None)
    return None if found == "steps" and not held & {*_STEP_DURATIONS, "start_time"} else found


def _with_start_times(table: pa.Table) -> pa.Table:
    """Steps one after another from time 0, each as long as that of its slowest rank: they had no times."""
    held = next(name for name in _STEP_DURATIONS if name in table.column_names)
    seconds = _numbers(table, held) * (1e-3 if held.endswith("_ms") else 1.0)
    step = table.column("step").combine_chunks()
    if not pa.types.is_integer(step.type) or step.null_count:
        raise InvalidInput("the column step holds something else than whole numbers")
    number, place = np.unique(step.to_numpy(), return_inverse=True)
    longest = np.zeros(number.size)
    np.fmax.at(longest, place, np.nan_to_num(seconds))
    begin = np.concatenate([[0.0], np.cumsum(longest)[:-1]])
    return table.append_column("start_time", pa.array(begin[place]))


def _table(path: Path, most_rows: int) -> tuple[TableSpec, pa.Table]:
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise TooLarge(f"{path.name} has {size:,} bytes; the limit of a table is {MAX_BYTES:,} bytes")
        with open_file(path) as file:
            names, separator = _names(file.read(HEAD_BYTES))
        kind = _kind(names)
        if kind is None:
            raise InvalidInput(f"{path.name}: the first line names no columns of a table")
        if _is_empty(path):
            raise InvalidInput(f"{path.name}: names of columns, and no row")
        table = _csv(path, names, separator, most_rows) if separator else _json_lines(path)
        table = table.rename_columns(_usual(table.column_names))
        _refuse_other_encoding(path, table)
        _refuse_many(path, table.num_rows, most_rows)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except pa.ArrowException as error:
        raise InvalidInput(
            f"{path.name} is no complete table: {str(error)[:300]}",
            hint="every row needs a value for each name in the first line, and a column values of one type",
        ) from None
    spec = _SPECS[kind]
    _refuse_bad_cell(path, spec, table)
    missing = None
    if kind == "steps" and not set(names) & set(_STEP_DURATIONS):
        missing = "step_seconds"
    if missing is not None:
        raise InvalidInput(
            f"{path.name}: the column {missing} is missing",
            hint="steps need rank, step and step_seconds (or step_ms), and start_time to be dated",
        )
    return spec, table


def _is_empty(path: Path) -> bool:
    """Whether nothing but white space follows the first line."""
    with open_file(path) as file:
        first = file.readline(HEAD_BYTES)
        return not first.startswith(b"{") and not file.read(HEAD_BYTES).strip()


def _csv(path: Path, names: list[str], separator: str, most_rows: int) -> pa.Table:
    """Read a table in blocks, with the types that its first block shows."""
    texts = {name: pa.string() for name in ("node", "device", "name", "kind", "code", "message")}

    @contextmanager
    def opened(types: Mapping[str, pa.DataType]) -> Iterator[pyarrow.csv.CSVStreamingReader]:
        with (
            open_file(path) as file,
            pyarrow.csv.open_csv(
                file,
                read_options=pyarrow.csv.ReadOptions(
                    column_names=names, skip_rows=1, block_size=MAX_ROW_BYTES
                ),
                parse_options=pyarrow.csv.ParseOptions(delimiter=separator),
                convert_options=pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=True),
            ) as reader,
        ):
            yield reader

    with opened(texts) as first:
        types = {field.name: _lasting(field.name, field.type) for field in first.schema}
    batches: list[pa.RecordBatch] = []
    n_rows = 0
    with opened(types) as reader:
        for batch in reader:
            n_rows += batch.num_rows
            _refuse_many(path, n_rows, most_rows)
            batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema)


def _refuse_bad_cell(path: Path, spec: TableSpec, table: pa.Table) -> None:
    """Name the first text in a column of numbers, with its row; texts of times are read elsewhere."""
    for name in table.column_names:
        known = spec.by_name.get(name)
        numbers = name.endswith(_DURATIONS) if known is None else known.kind != "text"
        if not numbers or name in ("start_time", "time") or not pa.types.is_string(table.column(name).type):
            continue
        for row, cell in enumerate(table.column(name).to_pylist(), start=2):
            try:
                float(cell or "nan")
            except ValueError:
                raise InvalidInput(
                    f"{path.name}: line {row}, column {name}: {cut(cell)!r} is no number",
                    hint="correct the cell, or leave it empty",
                ) from None


def _refuse_other_encoding(path: Path, table: pa.Table) -> None:
    """Refuse columns that are read as bytes because a text of them is not UTF-8."""
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if pa.types.is_binary(kind):
            raise InvalidInput(
                f"{path.name}: the column {name} holds bytes that are not UTF-8",
                hint="save the table as UTF-8, and put every value into its own column",
            )


def _lasting(name: str, kind: pa.DataType) -> pa.DataType:
    """A type that also holds later values of a column: fractions, and times to the nanosecond."""
    known = any(name in spec.by_name for spec in _SPECS.values())
    if not known and not name.endswith(_DURATIONS):
        # It is left out.
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    if pa.types.is_null(kind) or (pa.types.is_integer(kind) and name not in ("rank", "step")):
        return pa.float64()
    return kind


def _refuse_many(path: Path, n_rows: int, most_rows: int) -> None:
    if n_rows > most_rows:
        raise TooLarge(
            f"{path.name} has more than {most_rows:,} rows; the limit of all tables is {MAX_ROWS:,} rows",
            hint="give a shorter time: a window needs some hundred steps",
        )


def _json_lines(path: Path) -> pa.Table:
    with open_file(path) as file:
        return pyarrow.json.read_json(file, read_options=pyarrow.json.ReadOptions(block_size=MAX_ROW_BYTES))


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
        return job | {"world_size": min(highest, MAX_WORLD_SIZE) + 1}
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
    title="CSV, TSV or JSON lines with the window's columns of `steps`, `metrics` or `events`",
    tells="what the columns tell; times may be ISO 8601, and durations `*_ms`",
    lacks="the job's parallel sizes and, without metrics, its nodes",
    recognises=is_table,
    read=read,
)
