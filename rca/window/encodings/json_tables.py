"""Decoded JSON values -> Arrow tables; booleans and numbers spelled as text are errors.

Arrow's own conversion silently turns ``true`` into 1.0 and 1.5 into the integer 1. Here the Python types
that orjson decodes to are checked instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from rca.errors import InvalidWindow
from rca.window.rows.column_names import column_names
from rca.window.rows.row_errors import SHOWN_ROWS, listed, shown
from rca.window.schema import MAX_COLUMNS, Column, TableSpec

_ALLOWED: dict[str, frozenset[type]] = {
    "integer": frozenset({int, float, type(None)}),
    "number": frozenset({int, float, type(None)}),
    "text": frozenset({str, type(None)}),
}
_LABELS = ("name", "node", "rank", "device")
#: From this share of zeros and ones in a column on, the types of all values are checked.
MOSTLY_OTHERS = 0.3


def table_from_columns(spec: TableSpec, value: Any) -> tuple[pa.Table, list[str]]:
    """``{column: [values]}`` -> table; unknown columns become all null."""
    if not isinstance(value, dict):
        raise InvalidWindow("is not an object of columns", table=spec.name, expected="{column: [values]}")
    if len(value) > MAX_COLUMNS:
        raise InvalidWindow(
            f"has {len(value):,} columns", table=spec.name, expected=f"at most {MAX_COLUMNS:,} columns"
        )
    for name, values in value.items():
        if not isinstance(values, list):
            message = f"is a {type(values).__name__}, not a list"
            raise InvalidWindow(message, table=spec.name, column=name, expected="a list of values")
    _refuse_ragged(spec, value)
    held = {}
    for (sent, values), (name, _) in zip(value.items(), column_names(spec, list(value)), strict=True):
        # Errors have the name that was sent. Validation drops an unknown column and notes its name.
        known = spec.by_name.get(name)
        held[sent] = (
            pa.nulls(len(values)) if known is None else _array(spec, replace(known, name=sent), values)
        )
    return pa.table(held), []


def table_from_rows(spec: TableSpec, value: Any) -> tuple[pa.Table, list[str]]:
    """``[{column: value}]`` -> table; notes name the unknown members."""
    rows = _objects(spec, value)
    columns = {
        column.name: _array(spec, column, [row.get(column.name) for row in rows]) for column in spec.columns
    }
    return pa.table(columns), _unknown_members(spec, rows, set(columns))


def table_from_series(spec: TableSpec, value: Any) -> tuple[pa.Table, list[str]]:
    """``[{"name", "node", "rank", "device", "times": [..], "values": [..]}]`` -> long table."""
    series = _objects(spec, value)
    lengths = _lengths(spec, series)
    held: dict[str, pa.Array] = {}
    series_of_sample = pa.array(np.repeat(np.arange(len(series)), lengths))
    for label in _LABELS:
        array = _array(spec, spec.by_name[label], [one.get(label) for one in series], unit="series")
        held[label] = array.take(series_of_sample)
    for member, name in (("times", "time"), ("values", "value")):
        samples = list(chain.from_iterable(one[member] for one in series))
        held[name] = _array(spec, spec.by_name[name], samples)
    return pa.table(held), _unknown_members(spec, series, {*_LABELS, "times", "values"})


def _objects(spec: TableSpec, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InvalidWindow("is not a list", table=spec.name, expected="a list of objects")
    if not set(map(type, value)) <= {dict}:
        rows, n_rows = _first(value, lambda one: type(one) is not dict)
        raise InvalidWindow(
            "contains values that are not objects",
            table=spec.name,
            rows=[{"row": row, "value": shown(value[row])} for row in rows],
            n_rows=n_rows,
            expected="a list of objects",
        )
    return value


def _first(values: list[Any], is_bad: Callable[[Any], bool]) -> tuple[list[int], int]:
    """Positions of the first bad values, and the number of all; millions of them take no memory."""
    bad = (row for row, one in enumerate(values) if is_bad(one))
    rows = list(islice(bad, SHOWN_ROWS))
    return rows, len(rows) + sum(1 for _ in bad)


def _lengths(spec: TableSpec, series: list[dict[str, Any]]) -> list[int]:
    """Samples per series; every value has to have its time."""
    times: list[Any] = [one.get("times") for one in series]
    values: list[Any] = [one.get("values") for one in series]
    if {*map(type, times), *map(type, values)} <= {list}:
        lengths = [len(each) for each in times]
        if lengths == [len(each) for each in values]:
            return lengths
    odd = next(index for index, pair in enumerate(zip(times, values, strict=True)) if not _paired(*pair))
    row = {"series": odd} | {label: shown(series[odd][label]) for label in _LABELS if label in series[odd]}
    for member, held in (("times", times[odd]), ("values", values[odd])):
        row[member] = f"{len(held)} value(s)" if isinstance(held, list) else shown(held)
    message = "is not a list as long as values"
    expected = "one time for every value"
    raise InvalidWindow(message, table=spec.name, column="times", rows=[row], n_rows=1, expected=expected)


def _paired(times: Any, values: Any) -> bool:
    return isinstance(times, list) and isinstance(values, list) and len(times) == len(values)


def _unknown_members(spec: TableSpec, rows: list[dict[str, Any]], known: set[str]) -> list[str]:
    if all(map(known.issuperset, rows)):
        return []
    unknown = sorted(set().union(*map(dict.keys, rows)) - known)
    return [f"{spec.name}: dropped unknown members: {listed(unknown)}"]


def _refuse_ragged(spec: TableSpec, columns: dict[str, list[Any]]) -> None:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) <= 1:
        return
    usual = max(set(lengths.values()), key=list(lengths.values()).count)
    odd = next(name for name, length in lengths.items() if length != usual)
    raise InvalidWindow(
        f"has {lengths[odd]} values where other columns have {usual}",
        table=spec.name,
        column=odd,
        expected="columns of equal length",
    )


def _array(spec: TableSpec, column: Column, values: list[Any], *, unit: str = "row") -> pa.Array:
    if column.number_too:
        values = [str(one) if type(one) is int else one for one in values]
    if column.kind != "text":
        complete = _complete(column, values)
        if complete is not None:
            return complete
    types = set(map(type, values))
    if not types <= _ALLOWED[column.kind]:
        raise _wrong_values(spec, column, values, unit)
    if column.kind == "text":
        return pa.array(values, type=pa.string()).dictionary_encode()
    if column.kind == "integer" and types <= {int}:
        raise _too_large(spec, column, values)
    return pa.array(np.array(values, dtype=np.float64))


def _complete(column: Column, values: list[Any]) -> pa.Array | None:
    """A column of numbers without nulls; None if it is not one.

    `struct.pack` accepts numbers only, and integers only for an integer code. It takes a third of the time of
    a check of every type. Booleans pass as 0 and 1, so the types of zeros and ones are checked.
    """
    code, stored = ("q", pa.int64()) if column.kind == "integer" else ("d", pa.float64())
    try:
        packed = struct.pack(f"={len(values)}{code}", *values)
    except struct.error:
        return None
    # Codes of `struct` are those of numpy. Arrow would import pandas to name the type.
    numbers = np.frombuffer(packed, dtype=code)
    either = np.flatnonzero((numbers == 0) | (numbers == 1))
    # Selecting more than these takes longer than a check of all values.
    few = either.size < MOSTLY_OTHERS * numbers.size
    checked = map(values.__getitem__, either.tolist()) if few else values
    if bool in set(map(type, checked)):
        return None
    return pa.Array.from_buffers(stored, len(values), [None, pa.py_buffer(packed)])


def _too_large(spec: TableSpec, column: Column, values: list[int]) -> InvalidWindow:
    rows, n_rows = _first(values, lambda one: not -(2**63) <= one < 2**63)
    return InvalidWindow(
        "is out of range",
        table=spec.name,
        column=column.name,
        rows=[{"row": row, column.name: values[row]} for row in rows],
        n_rows=n_rows,
        expected="integers of 64 bits",
    )


def _wrong_values(spec: TableSpec, column: Column, values: list[Any], unit: str) -> InvalidWindow:
    allowed = _ALLOWED[column.kind]
    rows, n_rows = _first(values, lambda one: type(one) not in allowed)
    return InvalidWindow(
        f"contains a {type(values[rows[0]]).__name__}",
        table=spec.name,
        column=column.name,
        rows=[
            {unit: row, column.name: shown(values[row]), "type": type(values[row]).__name__} for row in rows
        ],
        n_rows=n_rows,
        expected="text" if column.kind == "text" else f"{column.kind}s, or null where it was not measured",
    )
