"""Convert a table's columns to the format's types, or refuse them with the reason.

Accepted beyond the exact types:

- integers and floats of any width;
- whole numbers in float columns where integers are due, because pandas turns nullable integers into floats;
- plain and dictionary-encoded text;
- whole numbers where a text may be one, such as an exit code;
- columns that are all null.

Booleans and numbers spelled as text are refused: both hide a producer's mistake.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.arrays import BoolArray, FloatArray
from rca.errors import InvalidWindow
from rca.window.names import (
    DROPPED_COLUMNS,
    EXPECTED_NAME,
    flaws_of,
    has_unseen_character,
    meant_names,
)
from rca.window.rows.row_errors import listed, refused_rows, shown
from rca.window.rows.texts import as_codes, encoded
from rca.window.schema import MAX_COLUMNS, Column, TableSpec

EXPECTED_TYPE = {"integer": "integers", "number": "numbers", "text": "text"}
#: Floats hold every integer exactly up to here.
EXACT_INTEGER = 2**53


def normalized(spec: TableSpec, table: pa.Table) -> tuple[pa.Table, list[str]]:
    """The table in the format's columns and types, and notes on the dropped columns.

    Raises
    ------
    InvalidWindow
        If a required column is missing, a type is wrong, or a single value is missing, infinite or negative
        where the format excludes that.
    """
    if not isinstance(table, pa.Table):
        raise InvalidWindow(f"is a {type(table).__name__}", table=spec.name, expected="a pyarrow.Table")
    _refuse_bad_column_names(spec, table)
    held: dict[str, pa.Array] = {}
    for column in spec.columns:
        if column.name in table.column_names:
            held[column.name] = _converted(spec, column, table)
        elif column.presence == "required":
            raise _missing(spec, column, table)
        elif column.presence == "filled":
            held[column.name] = pa.nulls(table.num_rows, column.type)
    unknown = [name for name in table.column_names if name not in spec.by_name]
    return pa.table(held), [_dropped(spec, unknown, table)] if unknown else []


def _missing(spec: TableSpec, column: Column, table: pa.Table) -> InvalidWindow:
    """The error of a missing column, with a column that may be meant."""
    others = [name for name in table.column_names if name not in spec.by_name]
    unit = "durations are in seconds" if column.name.endswith("_seconds") else ""
    meant = next(iter(meant_names(others, [column.name])), None)
    if meant is not None:
        hint = f"did you mean {column.name} by {shown(meant)}?" + (f" {unit.capitalize()}." if unit else "")
    else:
        hint = unit
    return InvalidWindow(
        "is missing",
        table=spec.name,
        column=column.name,
        expected="the columns " + ", ".join(c.name for c in spec.columns if c.presence == "required"),
        hint=hint or None,
    )


def _dropped(spec: TableSpec, unknown: list[str], table: pa.Table) -> str:
    free = [column.name for column in spec.columns if column.name not in table.column_names]
    meant = [f"did you mean {right} by {wrong}?" for wrong, right in meant_names(unknown, free).items()]
    return "; ".join([f"{spec.name}: {DROPPED_COLUMNS}: {listed(unknown)}", *meant])


def _refuse_bad_column_names(spec: TableSpec, table: pa.Table) -> None:
    names = table.column_names
    if len(names) > MAX_COLUMNS:
        raise InvalidWindow(
            f"has {len(names):,} columns", table=spec.name, expected=f"at most {MAX_COLUMNS:,} columns"
        )
    unprintable = next((name for name in names if has_unseen_character(name)), None)
    if unprintable is not None:
        raise InvalidWindow(
            f"has a column name with a control or formatting character: {shown(unprintable)!r}",
            table=spec.name,
            expected="column names without control and formatting characters",
        )
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise InvalidWindow(
            "is in the table more than once", table=spec.name, column=repeated, expected="each column once"
        )


def _converted(spec: TableSpec, column: Column, table: pa.Table) -> pa.Array:
    chunked = table.column(column.name)
    if pa.types.is_null(chunked.type):
        array = pa.nulls(len(chunked), column.type)
    elif _fits(column, chunked.type):
        array = _one_array(chunked)
    else:
        # Arrow cannot even join the chunks of some types, so the type is checked first.
        raise InvalidWindow(
            f"has type {shown(str(chunked.type))}",
            table=spec.name,
            column=column.name,
            n_rows=len(chunked),
            expected=EXPECTED_TYPE[column.kind],
        )
    convert = {"integer": _integers, "number": _numbers, "text": _texts}[column.kind]
    return convert(spec, column, table, array)


def _fits(column: Column, sent: pa.DataType) -> bool:
    if column.kind != "text" or (column.number_too and _is_number(sent)):
        return _is_number(sent)
    held = sent.value_type if pa.types.is_dictionary(sent) else sent
    return bool(pa.types.is_string(held) or pa.types.is_large_string(held) or pa.types.is_string_view(held))


def _is_number(sent: pa.DataType) -> bool:
    return bool(pa.types.is_floating(sent) or pa.types.is_integer(sent))


def _one_array(chunked: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_dictionary(chunked.type):
        if pa.types.is_string_view(chunked.type.value_type):
            # Arrow joins dictionaries of this type in no way.
            chunked = pa.chunked_array(
                [as_codes(chunk) for chunk in chunked.chunks], type=pa.dictionary(pa.int32(), pa.string())
            )
        if chunked.num_chunks > 1:
            chunked = chunked.unify_dictionaries()
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()


def _numbers(spec: TableSpec, column: Column, table: pa.Table, array: pa.Array) -> pa.Array:
    if array.type != pa.float64():
        array = array.cast(pa.float64(), safe=False)
    if array.null_count:
        array = array.fill_null(np.nan)
    values = array.to_numpy()
    if column.nullable:
        bad, what = _unusable(values, column.non_negative)
    else:
        bad, what = ~np.isfinite(values), "is missing or infinite"
        if column.non_negative and not bad.any():
            bad, what = values < 0, "is negative"
    if bad is not None and bad.any():
        sign = "non-negative " if column.non_negative else ""
        absent = ", or null where it was not measured" if column.nullable else ""
        expected = f"finite {sign}numbers{absent}"
        raise refused_rows(spec, column.name, what, bad, table, expected=expected)
    return array


def _unusable(values: FloatArray, non_negative: bool) -> tuple[BoolArray | None, str]:
    """Rows of a nullable column that are infinite or negative; fast if there are none."""
    if values.size == 0:
        return None, ""
    low, high = np.fmin.reduce(values), np.fmax.reduce(values)
    if np.isinf(low) or np.isinf(high):
        return np.isinf(values), "is infinite"
    return (values < 0, "is negative") if non_negative and low < 0 else (None, "")


def _integers(spec: TableSpec, column: Column, table: pa.Table, array: pa.Array) -> pa.Array:
    if pa.types.is_floating(array.type):
        array = _whole_numbers(spec, column, table, array)
    if array.null_count and not column.nullable:
        bad = array.is_null().to_numpy(zero_copy_only=False)
        raise refused_rows(spec, column.name, "is missing", bad, table, expected="an integer in every row")
    if array.type == column.type:
        return array
    try:
        return array.cast(column.type)
    except pa.ArrowInvalid:
        bits = column.type.bit_width - 1
        values = array.fill_null(0).to_numpy()
        bad = (values < -(2**bits)) | (values > 2**bits - 1)
        message, expected = "is out of range", f"integers of {bits + 1} bits"
        raise refused_rows(spec, column.name, message, bad, table, expected=expected) from None


def _whole_numbers(spec: TableSpec, column: Column, table: pa.Table, array: pa.Array) -> pa.Array:
    values = array.cast(pa.float64()).fill_null(np.nan).to_numpy()
    absent = np.isnan(values)
    with np.errstate(invalid="ignore"):
        whole = (values == np.floor(values)) & (np.abs(values) <= EXACT_INTEGER)
    bad = ~(whole | absent)
    if bad.any():
        raise refused_rows(spec, column.name, "is not a whole number", bad, table, expected="integers")
    return pa.array(np.where(absent, 0.0, values).astype(np.int64), mask=absent)


def _texts(spec: TableSpec, column: Column, table: pa.Table, array: pa.Array) -> pa.Array:
    if _is_number(array.type):
        # Only columns with `number_too` come here with numbers.
        digits = array if pa.types.is_integer(array.type) else _whole_numbers(spec, column, table, array)
        array = digits.cast(pa.string())
    array = encoded(spec, column, array)
    if column.blank_is_null:
        array = _without_blanks(array)
    if array.null_count and not column.nullable:
        bad = array.is_null().to_numpy(zero_copy_only=False)
        raise refused_rows(spec, column.name, "is missing", bad, table, expected="a text in every row")
    if column.label:
        _refuse_unusable_names(spec, column, table, array)
    return array


def _without_blanks(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """The texts with null for blank ones: exporters write an empty label where there is no device."""
    blank = pc.equal(pc.utf8_trim_whitespace(array.dictionary), "").to_numpy(zero_copy_only=False)
    if not blank.any():
        return array
    codes = array.indices.fill_null(-1).to_numpy()
    absent = (codes < 0) | np.isin(codes, np.flatnonzero(blank))
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=absent), array.dictionary)


def _refuse_unusable_names(
    spec: TableSpec, column: Column, table: pa.Table, array: pa.DictionaryArray
) -> None:
    for flaw, found in flaws_of(array.dictionary).items():
        codes = np.flatnonzero(found)
        # A dictionary may have values that no row has.
        if codes.size and (bad := np.isin(array.indices.fill_null(-1).to_numpy(), codes)).any():
            hint = "write null where it is not known" if column.nullable else None
            raise refused_rows(spec, column.name, flaw, bad, table, expected=EXPECTED_NAME, hint=hint)
