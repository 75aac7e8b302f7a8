"""The text of a table, CSV or JSON lines: recognised by the names in its first line, and read in blocks."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from rca.errors import InvalidInput, TooLarge, cut
from rca.sources.source import HEAD_BYTES
from rca.window.rows.column_names import TIMES, column_names
from rca.window.rows.conversion import first_text
from rca.window.rows.row_errors import listed
from rca.window.schema import EVENTS, METRICS, STEPS, TableSpec

#: Bytes of a row.
MAX_ROW_BYTES = 1 << 20
#: Rows of all tables of a job.
MAX_ROWS = 30_000_000
#: Columns by which a table is recognised.
_NEEDED: tuple[tuple[TableSpec, frozenset[str]], ...] = (
    (STEPS, frozenset({"rank", "step", "step_seconds"})),
    (METRICS, frozenset({"time", "name", "value"})),
    (EVENTS, frozenset({"time", "kind"})),
)
_TEXTS = frozenset({"node", "device", "name", "kind", "code", "message"})
_SEPARATORS = (",", "\t", ";")


@dataclass(frozen=True)
class TableText:
    """A table as text: its name in messages, and what gives a new stream of it each time."""

    name: str
    stream: Callable[[], BinaryIO]


def names_of(head: bytes) -> tuple[list[str], str]:
    """Column names in the first line of a file, and the separator; empty for JSON lines."""
    line = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].strip(b" \r")
    if line.startswith(b"{"):
        try:
            return list(orjson.loads(line)), ""
        except orjson.JSONDecodeError:
            return [], ""
    text = line.decode("utf-8", "replace")
    separator = max(_SEPARATORS, key=text.count)
    try:
        return [name.strip() for name in next(csv.reader([text], delimiter=separator))], separator
    except csv.Error:
        return [], separator


def spec_of(names: Sequence[str]) -> TableSpec | None:
    """The table that has columns of such names."""
    held = {spec.name: _usual(spec, names) for spec, _ in _NEEDED}
    return next((spec for spec, needed in _NEEDED if needed <= set(held[spec.name])), None)


def _usual(spec: TableSpec, names: Sequence[str]) -> list[str]:
    return [name for name, _ in column_names(spec, names)]


def needed_spec(names: Sequence[str]) -> TableSpec:
    spec = spec_of(names)
    if spec is not None:
        return spec
    lacking = [sorted(needed - set(_usual(each, names))) for each, needed in _NEEDED]
    fewest = min(lacking, key=lambda missing: len(missing))
    raise InvalidInput(
        f"no column is {' or '.join(fewest)}; the columns are {listed(names)}",
        hint="steps need rank, step and step_seconds (or step_ms); metrics need time, name and value; events "
        "need time and kind",
    )


def read_text(content: TableText, n_before: int = 0) -> pa.Table:
    """Read the rows of a table; the tables before it have `n_before`.

    Raises
    ------
    InvalidInput
        If it is damaged or has no row; `TooLarge` if it has more rows.
    """
    most_rows = MAX_ROWS - n_before
    try:
        with content.stream() as file:
            names, separator = names_of(file.read(HEAD_BYTES))
        spec = needed_spec(names)
        if _is_empty(content):
            raise InvalidInput("names of columns, and no row")
        table = _csv(content, spec, names, separator, most_rows) if separator else _json_lines(content)
        _refuse_other_encoding(table)
        _refuse_many(content, table.num_rows, most_rows)
        _refuse_bad_cell(spec, table)
        return table
    except pa.ArrowException as error:
        raise InvalidInput(
            f"{content.name} is no complete table: {str(error)[:300]}",
            hint="every row needs a value for each name in the first line, and a column values of one type",
        ) from None
    except InvalidInput as error:
        raise error.restated(f"{content.name}: {error.message}") from None


def _is_empty(content: TableText) -> bool:
    """Whether nothing but white space follows the first line."""
    with content.stream() as file:
        first = file.readline(HEAD_BYTES)
        return not first.startswith(b"{") and not file.read(HEAD_BYTES).strip()


def _csv(content: TableText, spec: TableSpec, names: list[str], separator: str, most_rows: int) -> pa.Table:
    """Read a table in blocks, with the types that its first block shows."""
    usual = dict(zip(names, _usual(spec, names), strict=True))

    @contextmanager
    def opened(types: Mapping[str, pa.DataType]) -> Iterator[pyarrow.csv.CSVStreamingReader]:
        with (
            content.stream() as file,
            pyarrow.csv.open_csv(
                file,
                read_options=pyarrow.csv.ReadOptions(
                    column_names=names, skip_rows=1, block_size=MAX_ROW_BYTES
                ),
                parse_options=pyarrow.csv.ParseOptions(delimiter=separator),
                convert_options=pyarrow.csv.ConvertOptions(
                    # A column without a name is the index of a data frame.
                    include_columns=[name for name in names if name],
                    column_types=types,
                    strings_can_be_null=True,
                ),
            ) as reader,
        ):
            yield reader

    def rows(types: Mapping[str, pa.DataType]) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        n_rows = 0
        with opened(types) as reader:
            for batch in reader:
                n_rows += batch.num_rows
                _refuse_many(content, n_rows, most_rows)
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)

    with opened({name: pa.string() for name in names if usual[name] in _TEXTS}) as first:
        types = {field.name: _lasting(spec, usual[field.name], field.type) for field in first.schema}
    try:
        return rows(types)
    except pa.ArrowInvalid:
        # Arrow does not name the row of a bad cell.
        _refuse_bad_cell(spec, rows(dict.fromkeys(names, pa.string())))
        raise


def _refuse_bad_cell(spec: TableSpec, table: pa.Table) -> None:
    """Name the first text in a column of numbers, with its line; texts of times are read elsewhere."""
    for name, usual in zip(table.column_names, _usual(spec, table.column_names), strict=True):
        known = spec.by_name.get(usual)
        if known is None or known.kind == "text" or usual in TIMES:
            continue
        bad = first_text(table.column(name))
        if bad is not None:
            raise InvalidInput(
                f"line {bad[0] + 2}, column {name}: {cut(bad[1])!r} is no number",
                hint="correct the cell, or leave it empty",
            )


def _refuse_other_encoding(table: pa.Table) -> None:
    """Refuse columns that are read as bytes because a text of them is not UTF-8."""
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if pa.types.is_binary(kind):
            raise InvalidInput(
                f"the column {name} holds bytes that are not UTF-8",
                hint="save the table as UTF-8, and put every value into its own column",
            )


def _lasting(spec: TableSpec, name: str, kind: pa.DataType) -> pa.DataType:
    """A type that also holds later values of a column: fractions, and times to the nanosecond."""
    if name not in spec.by_name and name != "node":
        # It is left out.
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    if pa.types.is_null(kind) or (pa.types.is_integer(kind) and name not in ("rank", "step")):
        return pa.float64()
    return kind


def _refuse_many(content: TableText, n_rows: int, most_rows: int) -> None:
    if n_rows > most_rows:
        raise TooLarge(
            f"{content.name} has more than {most_rows:,} rows; the limit of all tables is {MAX_ROWS:,} rows",
            hint="give a shorter time: a window needs some hundred steps",
        )


def _json_lines(content: TableText) -> pa.Table:
    with content.stream() as file:
        return pyarrow.json.read_json(file, read_options=pyarrow.json.ReadOptions(block_size=MAX_ROW_BYTES))
