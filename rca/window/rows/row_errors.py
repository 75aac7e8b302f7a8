"""Errors about rows of a table: the first wrong rows, shown as JSON can carry them."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import BoolArray
from rca.errors import InvalidWindow, cut
from rca.window.schema import TableSpec

SHOWN_ROWS = 5
LISTED_NAMES = 20


def shown(value: Any) -> Any:
    """A value for an error body: JSON has no infinities, and long texts are cut."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return cut(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    # `repr` of what a caller nested a thousand times fails, and that of a large value takes its memory.
    return cut(reprlib.repr(value))


def listed(names: Sequence[str]) -> str:
    """Names from a window in one line: the first ones, and how many more there are."""
    text = ", ".join(cut(name) for name in names[:LISTED_NAMES])
    return text if len(names) <= LISTED_NAMES else f"{text} and {len(names) - LISTED_NAMES:,} more"


def refused_rows(
    spec: TableSpec,
    column: str,
    message: str,
    bad: BoolArray,
    table: pa.Table,
    *,
    expected: str,
    hint: str | None = None,
    extra: Mapping[str, npt.NDArray[Any]] | None = None,
) -> InvalidWindow:
    """The error for the rows of `table` where `bad` is true.

    Parameters
    ----------
    bad : ndarray of shape (n_rows,), bool
    extra : mapping of str to ndarray of shape (n_rows,), optional
        Further values to show for each row.
    """
    first = np.flatnonzero(bad)[:SHOWN_ROWS].tolist()
    names = [name for name in dict.fromkeys((*spec.keys, column)) if name in table.column_names]
    rows = []
    for index in first:
        row = {"row": index} | {name: shown(table.column(name)[index].as_py()) for name in names}
        row |= {name: shown(values[index].item()) for name, values in (extra or {}).items()}
        rows.append(row)
    return InvalidWindow(
        message,
        table=spec.name,
        column=column,
        rows=rows,
        n_rows=int(np.count_nonzero(bad)),
        expected=expected,
        hint=hint,
    )
