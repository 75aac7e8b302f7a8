"""Refuse times and durations in a wrong unit, which no type reveals.

A window states its own bounds in Unix seconds. Every other time is compared with them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rca.arrays import FloatArray
from rca.errors import InvalidWindow
from rca.window.job import Job
from rca.window.rows.row_errors import refused_rows
from rca.window.schema import PHASES, STEPS, TableSpec

UNITS = (("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9))
#: Clocks differ by seconds, and a step may begin minutes before the window. An hour is another time zone.
SLACK_SECONDS = 1800.0
#: A phase may take a rank at most this many times the window: bounds may be inexact.
MAX_PHASE = 10.0
#: A rank's steps may add up to this multiple of the time in which they began, and to so many seconds more.
#: Clocks are adjusted, and producers round times to minutes.
MAX_OVERLAP, OVERLAP_SECONDS = 3.0, 120.0
#: Unix seconds reach this in the year 5138. Unix milliseconds reached it in 1973.
LATEST_SECOND = 1e11
DAY = 86400.0


def refuse_absurd_bounds(job: Job) -> None:
    """Check that `job.start` and `job.end` are seconds and in order."""
    for name, value in (("start", job.start), ("end", job.end)):
        if abs(value) > LATEST_SECOND:
            unit = next((unit for unit, factor in UNITS if value / factor < LATEST_SECOND), None)
            raise InvalidWindow(
                f"is {value:g}, which is beyond the year 5000",
                table="job",
                column=name,
                expected="Unix seconds",
                hint=unit and _unit_hint(unit),
            )
    if job.end <= job.start:
        raise InvalidWindow(
            f"is {job.end!r}, which is not after start ({job.start!r})",
            table="job",
            column="end",
            expected="a time after start",
        )


def refuse_foreign_clock(
    spec: TableSpec, column: str, table: pa.Table, job: Job, *, only_units: bool = False
) -> None:
    """Check that times lie in or near the window; NaN is no time.

    Parameters
    ----------
    only_units : bool
        Refuse only times in another unit. Events may be old.
    """
    times = table.column(column).to_numpy()
    if times.size == 0:
        return
    slack = max(SLACK_SECONDS, job.end - job.start)
    low, high = job.start - slack, job.end + slack
    if np.fmin.reduce(times) >= low and np.fmax.reduce(times) <= high:
        return
    bad = (times < low) | (times > high)
    if not bad.any():
        return
    first = float(times[bad.argmax()])
    unit = _unit_of(first, job, slack)
    if only_units and unit is None:
        return
    raise refused_rows(
        spec,
        column,
        "is far outside the window",
        bad,
        table,
        expected=f"Unix seconds near {job.start!r}..{job.end!r}",
        hint=_unit_hint(unit) if unit else _clock_hint(first, job),
    )


def _unit_of(value: float, job: Job, slack: float) -> str | None:
    """The other unit in which a time lies in or near the window."""
    low, high = job.start - slack, job.end + slack
    return next((unit for unit, factor in UNITS if low <= value / factor <= high), None)


def _unit_that_fits(total: float, span: float) -> str | None:
    """The other unit in which durations add up to about the time in which they passed."""
    return next((unit for unit, factor in UNITS if total / factor <= 2 * span), None)


def _unit_hint(unit: str) -> str:
    return f"the values look like {unit}: convert them to seconds"


def _clock_hint(value: float, job: Job) -> str | None:
    if 0 <= value < DAY < job.start:
        return "the times seem to count from the start of the job: add its Unix time"
    if min(abs(value - job.start), abs(value - job.end)) < DAY:
        return "the times are hours off: check the clock's time zone"
    return None


def refuse_long_phases(steps: pa.Table, job: Job) -> None:
    """Refuse durations that add up to more than the window: they are mostly milliseconds."""
    rank = steps.column("rank").to_numpy()
    starts = steps.column("start_time").to_numpy()
    span = max(job.end - job.start, float(np.ptp(starts)))
    shortest_to_exceed = MAX_PHASE * span / int(np.bincount(rank).max())
    for name in PHASES:
        if name not in steps.column_names:
            continue
        values = steps.column(name).to_numpy()
        # This bound is cheap and nearly always enough; sums per rank are rarely needed.
        if not np.fmax.reduce(values) > shortest_to_exceed:
            continue
        totals = np.bincount(rank, weights=np.nan_to_num(values))
        if totals.max() > MAX_PHASE * span:
            raise _too_long(steps, name, values, totals[rank], span)


def refuse_overlapping_steps(steps: pa.Table) -> None:
    """Refuse step durations by which ranks are in several steps at once: the unit is wrong.

    `refuse_long_phases` compares durations with the window. Here each rank's steps are compared with the time
    from the begin of its first step to the begin of its last one.
    """
    rank, seconds = steps.column("rank").to_numpy(), steps.column("step_seconds").to_numpy()
    starts = steps.column("start_time").to_numpy()
    timed = np.isfinite(seconds) & np.isfinite(starts)
    if not timed.any():
        return
    n_ranks = int(rank.max()) + 1
    first, last = np.full(n_ranks, np.inf), np.full(n_ranks, -np.inf)
    np.minimum.at(first, rank[timed], starts[timed])
    np.maximum.at(last, rank[timed], starts[timed])
    counts = np.bincount(rank[timed], minlength=n_ranks)
    total, longest = np.bincount(rank[timed], weights=seconds[timed], minlength=n_ranks), np.zeros(n_ranks)
    np.maximum.at(longest, rank[timed], seconds[timed])
    several = counts > 1
    span = last[several] - first[several]
    before_last = total[several] - longest[several]
    if not several.any() or not (before_last > MAX_OVERLAP * span + OVERLAP_SECONDS).all():
        return
    wrong, of_all = float(np.median(before_last)), float(np.median(span))
    unit = _unit_that_fits(wrong, of_all)
    raise refused_rows(
        STEPS,
        "step_seconds",
        f"adds up to {wrong:g} on a rank whose steps began within {of_all:g} seconds: "
        "a rank cannot be in two steps at once",
        timed & (seconds > 0),
        steps,
        expected="durations in seconds",
        hint=(unit and _unit_hint(unit)) or "start_time is the time at which the rank begins the step",
    )


def _too_long(
    steps: pa.Table,
    name: str,
    values: FloatArray,
    total: FloatArray,
    span: float,
) -> InvalidWindow:
    worst = float(total.max())
    unit = _unit_that_fits(worst, span)
    return refused_rows(
        STEPS,
        name,
        f"adds up to {worst:g} on one rank in a window of {span:g} seconds",
        (total > MAX_PHASE * span) & (values > 0),
        steps,
        expected="durations in seconds",
        hint=unit and f"{_unit_hint(unit)}; or job.start and job.end are too close",
    )
