"""Thin the samples of one window to the intervals of another, so that one series may hold both."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import BoolArray, FloatArray
from rca.window.grouping import codes_of, ranks_of, series_numbers

#: A series is thinned if it is sampled this many times as often as in the other window.
DENSER = 1.5

_Numbers = npt.NDArray[np.int32]


def equally_often(one: pa.Table, other: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Both tables, each series at the longer of its two usual intervals.

    Parameters
    ----------
    one, other : pyarrow.Table
        Metrics of validated windows.

    Notes
    -----
    No value counts for a pause of many intervals (`rca.window.signals.binning`). In one series with hours
    of dense samples, all usual intervals of sparse ones would be pauses.
    """
    both = pa.concat_tables([one, other]).unify_dictionaries()
    labels = [codes_of(both.column(name))[0] for name in ("name", "node", "device")]
    number, n_series = series_numbers([*labels, ranks_of(both.column("rank"))])
    time, n = both.column("time").to_numpy(), one.num_rows
    parts = (time[:n], number[:n]), (time[n:], number[n:])
    usual = [_usual_intervals(*part, n_series) for part in parts]
    return (
        _thinned(one, *parts[0], had=usual[0], wanted=usual[1]),
        _thinned(other, *parts[1], had=usual[1], wanted=usual[0]),
    )


def _thinned(
    metrics: pa.Table, time: FloatArray, number: _Numbers, *, had: FloatArray, wanted: FloatArray
) -> pa.Table:
    """The table; series with clearly shorter intervals are thinned to the wanted ones."""
    longer = np.where(had * DENSER < wanted, wanted, np.nan)
    if not np.isfinite(longer).any():
        return metrics
    return metrics.filter(pa.array(_last_of_each(time, number, longer)))


def _usual_intervals(time: FloatArray, number: _Numbers, n_series: int) -> FloatArray:
    """Lower median interval between samples of each series, shape (n_series,); NaN below two samples."""
    order = np.lexsort((time, number))
    series, gap = number[order][1:], np.diff(time[order])
    inside = number[order][:-1] == series
    series, gap = series[inside], gap[inside]
    by_length = np.lexsort((gap, series))
    counts = np.bincount(series, minlength=n_series)
    middle = np.cumsum(counts) - counts + (counts - 1) // 2
    found = np.full(n_series, np.nan)
    some = counts > 0
    found[some] = gap[by_length][middle[some]]
    return found


def _last_of_each(time: FloatArray, number: _Numbers, wanted: FloatArray) -> BoolArray:
    """Which samples are the last of their series in an interval; all, if no interval is wanted."""
    order = np.lexsort((time, number))
    series = number[order]
    with np.errstate(invalid="ignore"):
        place = np.floor(time[order] / wanted[series])
    # NaN differs from itself, so that every sample of a series without a wanted interval is kept.
    last = np.append((series[1:] != series[:-1]) | (place[1:] != place[:-1]), True)
    kept = np.zeros(time.size, dtype=bool)
    kept[order[last]] = True
    return kept
