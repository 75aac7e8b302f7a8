"""Tables as users have them: data frames, rows, ISO times and milliseconds get the format's units."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rca.errors import InvalidWindow
from rca.window.schema import TableSpec

#: An Arrow table, a pandas or polars data frame or any other with the Arrow stream interface, or rows.
TableLike: TypeAlias = object
_TIMES = frozenset({"start_time", "time", "waiting_since", "start_ts"})
_MILLISECONDS = "_ms"
_SECONDS = "_seconds"


def as_table(spec: TableSpec, data: TableLike) -> tuple[pa.Table, list[str]]:
    """An Arrow table with times and durations in seconds, and notes on what was converted.

    Parameters
    ----------
    data : pyarrow.Table, data frame, or sequence of mappings

    Returns
    -------
    table : pyarrow.Table
        Not validated. Times as text or timestamps become Unix seconds; without a zone they are taken for UTC.
        A duration ``*_ms`` becomes ``*_seconds``.
    notes : list of str

    Raises
    ------
    InvalidWindow
        If it is no table, or a text is no time.
    """
    table = _arrow(spec, data)
    notes: list[str] = []
    for place, name in enumerate(table.column_names):
        column = table.column(place)
        if name in _TIMES and name in spec.by_name:
            table = table.set_column(place, name, _unix_seconds(spec, name, column, notes))
        elif pa.types.is_duration(column.type) and name in spec.by_name:
            table = table.set_column(
                place, name, _scaled(column.cast(pa.duration("us")).cast(pa.int64()), 1e-6)
            )
        elif name.endswith(_MILLISECONDS) and _is_number(column.type):
            renamed = name.removesuffix(_MILLISECONDS) + _SECONDS
            if renamed in spec.by_name and renamed not in table.column_names:
                table = table.set_column(place, renamed, _scaled(column, 1e-3))
                notes.append(f"{spec.name}: {name} was converted to {renamed}")
    return table, notes


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
        if isinstance(data, Sequence) and data and all(isinstance(row, Mapping) for row in data):
            names = list(dict.fromkeys(str(name) for row in data for name in row))
            return pa.table({name: [row.get(name) for row in data] for name in names})
    except (pa.ArrowException, TypeError, OverflowError) as error:
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


def _unix_seconds(spec: TableSpec, name: str, column: pa.ChunkedArray, notes: list[str]) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
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


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
