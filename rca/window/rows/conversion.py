"""Tables as users have them: data frames, rows, ISO times and milliseconds get the format's units."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc

from rca.errors import InvalidWindow
from rca.window.rows.column_names import NAME_OF_UNIT, SECONDS, TIMES, column_names
from rca.window.rows.row_errors import shown
from rca.window.schema import TableSpec

#: An Arrow table, a pandas or polars data frame or any other with the Arrow stream interface, or rows.
TableLike: TypeAlias = object


def as_table(spec: TableSpec, data: TableLike) -> tuple[pa.Table, list[str]]:
    """An Arrow table with names and units of the format, and notes on what was converted.

    Parameters
    ----------
    data : pyarrow.Table, data frame, or sequence of mappings
        Its columns may have other usual names and units; see `rca.window.rows.column_names`. Durations
        whose names state no unit have that of the step.

    Returns
    -------
    table : pyarrow.Table
        Not validated. Times as text or timestamps become Unix seconds; without a zone they are taken for UTC.
    notes : list of str

    Raises
    ------
    InvalidWindow
        If it is no table, a text is no time, or a cell in a column of numbers is no number.
    """
    table = _arrow(spec, data)
    sent = table.column_names
    named = column_names(spec, sent)
    of_step = next((unit for name, unit in named if name == "step_seconds"), None)
    table = table.rename_columns([name for name, _ in named])
    notes: list[str] = []
    for place, (before, (name, stated)) in enumerate(zip(sent, named, strict=True)):
        column = table.column(place)
        if name not in spec.by_name:
            continue
        if name in TIMES and not (stated is not None and _is_number(column.type)):
            table = table.set_column(place, name, _unix_seconds(spec, name, column, notes))
        elif pa.types.is_duration(column.type):
            seconds = _scaled(column.cast(pa.duration("us")).cast(pa.int64()), 1e-6)
            table = table.set_column(place, name, seconds)
        elif spec.by_name[name].kind != "text":
            bad = first_text(column)
            if bad is not None:
                raise _no_number(spec, before, *bad)
            if name.endswith(SECONDS) and before != name:
                unit = stated or of_step or 1.0
                before += f" ({NAME_OF_UNIT[unit]})"
                if _is_number(column.type):
                    table = table.set_column(place, name, _scaled(column, unit))
        if sent[place] != name:
            notes.append(f"{spec.name}: {before} is read as {name}")
    return table, notes


def names_in(data: TableLike) -> list[str]:
    """Names of the columns as they were sent; none if it is no table."""
    if isinstance(data, Sequence):
        return list(_columns(data)) if _are_rows(data) else []
    return [
        str(name)
        for name in (data.column_names if isinstance(data, pa.Table) else getattr(data, "columns", ()))
    ]


def first_text(column: pa.ChunkedArray) -> tuple[int, str] | None:
    """Row and content of the first cell that is a text and no number."""
    if not _is_text(column.type):
        return None
    for row, cell in enumerate(column.to_pylist()):
        try:
            float(cell or "nan")
        except ValueError:
            return row, cell
    return None


def _no_number(spec: TableSpec, name: str, row: int, cell: object) -> InvalidWindow:
    return InvalidWindow(
        "holds what is no number",
        table=spec.name,
        column=name,
        rows=[{"row": row, name: shown(cell)}],
        expected="numbers",
        hint="correct the cell, or leave it empty",
    )


def _arrow(spec: TableSpec, data: TableLike) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    try:
        if hasattr(data, "iloc"):
            with warnings.catch_warnings():
                # Arrow reads times with a zone in a way that pandas 3.1 deprecates.
                warnings.simplefilter("ignore")
                return pa.Table.from_pandas(data, preserve_index=False)
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data)
        if _are_rows(data):
            return pa.table(_columns(data))
    except (pa.ArrowException, TypeError, OverflowError) as error:
        _refuse_mixed(spec, data)
        raise InvalidWindow(
            f"has a column of mixed or unknown types ({str(error)[:200]})",
            table=spec.name,
            expected="one type in each column",
        ) from None
    raise InvalidWindow(
        f"is a {type(data).__name__}",
        table=spec.name,
        expected="a pyarrow.Table, a data frame or a list of rows",
    )


def _are_rows(data: TableLike) -> TypeGuard[Sequence[Mapping[str, object]]]:
    return isinstance(data, Sequence) and bool(data) and all(isinstance(row, Mapping) for row in data)


def _columns(rows: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    names = dict.fromkeys(str(name) for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _refuse_mixed(spec: TableSpec, data: Any) -> None:
    """Refuse the first text in a column of numbers, with its row: Arrow names no row."""
    columns = _columns(data) if isinstance(data, Sequence) else {str(name): data[name] for name in data}
    for before, (name, _) in zip(columns, column_names(spec, list(columns)), strict=True):
        if name not in spec.by_name or spec.by_name[name].kind == "text" or name in TIMES:
            continue
        for row, cell in enumerate(columns[before]):
            if isinstance(cell, str):
                raise _no_number(spec, before, row, cell)


def _unix_seconds(spec: TableSpec, name: str, column: pa.ChunkedArray, notes: list[str]) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if _is_text(kind):
        column = _parsed(spec, name, column.cast(pa.string()), notes)
    elif pa.types.is_timestamp(kind):
        if kind.tz is None:
            notes.append(f"{spec.name}: {name} has no zone and is taken for UTC")
        column = column.cast(pa.timestamp("us"), safe=False)
    else:
        return column
    return _scaled(column.cast(pa.int64()), 1e-6)


def _parsed(spec: TableSpec, name: str, column: pa.ChunkedArray, notes: list[str]) -> pa.ChunkedArray:
    zoned = pc.match_substring_regex(column, r"(Z|[+-]\d{2}:?\d{2})$")
    if pc.any(zoned).as_py() and not pc.all(zoned).as_py():
        raise InvalidWindow(
            "has a zone in some rows only",
            table=spec.name,
            column=name,
            expected="ISO 8601 times of one form",
        )
    has_zone = bool(pc.any(zoned).as_py())
    try:
        parsed = column.cast(pa.timestamp("us", "UTC" if has_zone else None))
    except pa.ArrowInvalid as error:
        raise InvalidWindow(
            f"is no time ({str(error)[:100]})",
            table=spec.name,
            column=name,
            expected="Unix seconds, or ISO 8601 such as 2026-03-21T02:07:08Z",
        ) from None
    if not has_zone:
        notes.append(f"{spec.name}: {name} has no zone and is taken for UTC")
    return parsed


def _scaled(column: pa.ChunkedArray, factor: float) -> pa.ChunkedArray:
    return pc.multiply(column.cast(pa.float64(), safe=False), factor)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
