"""Align two data frames as float arrays, with a reason for every column that is ignored.

Columns are in the order of their names, not of the frames, so that the order of a join changes no answer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

#: Least number of finite values for a column's usual spread.
MIN_NORMAL = 2
#: Names of a sampling clock. A column with such a name is a clock only if its values never fall.
CLOCK_NAMES = frozenset({"time", "timestamp", "timestamps", "ts", "datetime", "date", "epoch", "unix_time"})
#: Results of ``pandas.api.types.infer_dtype`` for Python objects that are numbers.
NUMBER_OBJECTS = frozenset({"integer", "floating", "mixed-integer-float", "decimal", "boolean"})


@dataclass(frozen=True)
class Columns:
    """Numeric columns that both frames have.

    Attributes
    ----------
    names : tuple of hashable, length n_columns
        Labels as the frames spell them, in a fixed order.
    normal : ndarray of shape (n_normal, n_columns)
        NaN where nothing was measured.
    anomalous : ndarray of shape (n_anomalous, n_columns)
    ignored : dict
        Label -> why the column is ignored.
    """

    names: tuple[Hashable, ...]
    normal: FloatArray
    anomalous: FloatArray
    ignored: dict[Hashable, str]


def read_columns(normal: pd.DataFrame, anomalous: pd.DataFrame) -> Columns:
    """Align two frames column by column.

    Raises
    ------
    InvalidInput
        If an argument is not a data frame, has no rows or repeats a column. Also if the frames have no
        numeric column with values in common.
    """
    _check_frame(normal, "normal")
    _check_frame(anomalous, "anomalous")
    here, there = set(normal.columns), set(anomalous.columns)
    ignored: dict[Hashable, str] = {}
    for name in here ^ there:
        ignored[name] = "only in normal" if name in here else "only in anomalous"
    common = sorted(here & there, key=label_order)
    before, after = _numbers(normal, common), _numbers(anomalous, common)
    used: list[Hashable] = []
    for name in common:
        reason = _why_not(name, before.get(name), after.get(name))
        if reason is None:
            used.append(name)
        else:
            ignored[name] = reason
    if not used:
        raise InvalidInput(
            "normal and anomalous have no numeric column in common",
            hint=f"ignored columns: {_listed(ignored)}",
        )
    return Columns(
        names=tuple(used),
        normal=np.column_stack([before[name] for name in used]),
        anomalous=np.column_stack([after[name] for name in used]),
        ignored=dict(sorted(ignored.items(), key=lambda item: label_order(item[0]))),
    )


def label_order(label: Hashable) -> tuple[str, str]:
    """Sorting key for labels of any type."""
    return str(label), type(label).__name__


def _check_frame(frame: object, argument: str) -> None:
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise InvalidInput(
            f"{argument} must be a pandas DataFrame, not {type(frame).__name__}",
            hint="rows are samples in time order, columns are metrics",
        )
    if frame.shape[0] == 0:
        raise InvalidInput(
            f"{argument} has no rows", hint="give at least one row; more rows make the ranking more certain"
        )
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()].tolist()
        raise InvalidInput(
            f"{argument} has several columns of the same name: {twice[:5]}",
            hint="rename or aggregate them",
        )


def _numbers(frame: pd.DataFrame, names: Sequence[Hashable]) -> dict[Hashable, FloatArray]:
    """Columns as floats, infinities as NaN; columns that hold no numbers are absent."""
    plain = [name for name, kind in zip(frame.columns, frame.dtypes, strict=True) if _is_plain(kind)]
    found: dict[Hashable, FloatArray] = {}
    if plain:
        block = frame[plain].to_numpy(dtype=np.float64)
        found = {name: block[:, at] for at, name in enumerate(plain)}
    for name in set(names).difference(plain):
        values = _converted(frame[name])
        if values is not None:
            found[name] = values
    wanted = set(names)
    return {
        name: np.where(np.isfinite(values), values, np.nan)
        for name, values in found.items()
        if name in wanted
    }


def _is_plain(kind: Any) -> bool:
    return isinstance(kind, np.dtype) and kind.kind in "iufb"


def _converted(series: pd.Series[Any]) -> FloatArray | None:
    """Nullable, Arrow-backed and object columns of numbers; None for anything else."""
    import pandas as pd

    kind = series.dtype
    if isinstance(kind, np.dtype) and kind.kind == "O":
        if pd.api.types.infer_dtype(series, skipna=True) not in NUMBER_OBJECTS:
            return None
    elif pd.api.types.is_complex_dtype(kind) or not pd.api.types.is_numeric_dtype(kind):
        return None
    missing = series.isna().to_numpy(dtype=bool)
    values = np.full(series.shape[0], np.nan)
    values[~missing] = series[~missing].to_numpy(dtype=np.float64)
    return values


def _why_not(name: Hashable, before: FloatArray | None, after: FloatArray | None) -> str | None:
    if before is None or after is None:
        return "not numeric"
    known = before[np.isfinite(before)]
    if known.size < MIN_NORMAL:
        return f"fewer than {MIN_NORMAL} values in normal"
    if not np.isfinite(after).any():
        return "no value in anomalous"
    if _is_clock(name, known, after[np.isfinite(after)]):
        return "a clock"
    return None


def _is_clock(name: Hashable, before: FloatArray, after: FloatArray) -> bool:
    """A clock or a row number: by its name and never falling, or with a constant increment."""
    increments = np.diff(before)
    if isinstance(name, str) and name.strip().lower() in CLOCK_NAMES:
        return bool((increments >= 0).all() and (np.diff(after) >= 0).all())
    if increments.size < 2 or increments[0] == 0:
        return False
    every = np.concatenate([increments, np.diff(after)])
    return bool(np.allclose(every, increments[0], rtol=1e-6, atol=0.0))


def _listed(ignored: dict[Hashable, str]) -> str:
    if not ignored:
        return "none"
    shown = [
        f"{name!r} ({reason})" for name, reason in sorted(ignored.items(), key=lambda i: label_order(i[0]))
    ]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
