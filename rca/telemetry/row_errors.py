"""Errors about rows of a table: the first wrong rows, shown as JSON can carry them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import BoolArray
from rca.errors import InvalidWindow
from rca.telemetry.schema import TableSpec

SHOWN_ROWS = 5
SHOWN_CHARACTERS = 80


def shown(value: Any) -> Any:
    """A value for an error body: JSON has no infinities, and long texts are cut."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and len(value) > SHOWN_CHARACTERS:
        return value[:SHOWN_CHARACTERS] + "…"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return shown(repr(value))


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
