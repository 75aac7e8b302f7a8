"""Times and durations in the wrong unit: the mistake that no type can catch.

A window states its own bounds in Unix seconds, so every other clock can be held against them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rca.arrays import FloatArray
from rca.errors import InvalidWindow
from rca.telemetry.job import Job
from rca.telemetry.row_errors import refused_rows
from rca.telemetry.schema import PHASES, STEPS, TableSpec

UNITS = (("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9))
# Skewed clocks are off by seconds and a step may begin minutes before the window; one hour off is
# already a time zone.
SLACK_SECONDS = 1800.0
# A rank cannot spend more time in a phase than passed; ten times leaves room for sloppy bounds.
LONGEST_PHASE = 10.0
# Unix seconds reach this in the year 5138, Unix milliseconds did in 1973.
LATEST_SECOND = 1e11
DAY = 86400.0


def refuse_absurd_bounds(job: Job) -> None:
    """`job.start` and `job.end` themselves must be seconds, in order."""
    for name, value in (("start", job.start), ("end", job.end)):
        if abs(value) > LATEST_SECOND:
            unit = next((unit for unit, factor in UNITS if value / factor < LATEST_SECOND), None)
            raise InvalidWindow(
                f"is {value:g}",
                table="job",
                column=name,
                expected="Unix seconds",
                hint=unit and f"looks like {unit}",
            )
    if job.end <= job.start:
        raise InvalidWindow(
            f"is {job.end!r}, not after start ({job.start!r})",
            table="job",
            column="end",
            expected="end > start (the window is half open)",
        )


def refuse_foreign_clock(
    spec: TableSpec, column: str, table: pa.Table, job: Job, *, only_units: bool = False
) -> None:
    """Times must lie in or near the window.

    Parameters
    ----------
    only_units : bool
        Let times lie anywhere unless they are evidently of another unit (events may be old).
    """
    times = table.column(column).to_numpy()
    if times.size == 0:
        return
    slack = max(SLACK_SECONDS, job.end - job.start)
    low, high = job.start - slack, job.end + slack
    if times.min() >= low and times.max() <= high:
        return
    bad = (times < low) | (times > high)
    hint = _time_hint(float(times[bad.argmax()]), job, slack)
    if only_units and (hint is None or "looks like" not in hint):
        return
    raise refused_rows(
        spec,
        column,
        "is far outside the window",
        bad,
        table,
        expected=f"Unix seconds near {job.start!r}..{job.end!r}",
        hint=hint,
    )


def _time_hint(value: float, job: Job, slack: float) -> str | None:
    for unit, factor in UNITS:
        if job.start - slack <= value / factor <= job.end + slack:
            return f"looks like {unit}"
    if 0 <= value < DAY < job.start:
        return "seems to count from the start of the job"
    if min(abs(value - job.start), abs(value - job.end)) < DAY:
        return "hours off: a clock in another time zone?"
    return None


def refuse_long_phases(steps: pa.Table, job: Job) -> None:
    """No rank can spend longer in a phase than the window lasts: such durations are milliseconds."""
    rank = steps.column("rank").to_numpy()
    starts = steps.column("start_time").to_numpy()
    span = max(job.end - job.start, float(np.ptp(starts)))
    shortest_to_exceed = LONGEST_PHASE * span / int(np.bincount(rank).max())
    for name in PHASES:
        if name not in steps.column_names:
            continue
        values = steps.column(name).to_numpy()
        # A bound that nearly always settles it, so that the sums per rank are rarely needed.
        if not np.fmax.reduce(values) > shortest_to_exceed:
            continue
        totals = np.bincount(rank, weights=np.nan_to_num(values))
        if totals.max() > LONGEST_PHASE * span:
            raise _too_long(steps, name, values, totals[rank], span)


def _too_long(
    steps: pa.Table,
    name: str,
    values: FloatArray,
    total: FloatArray,
    span: float,
) -> InvalidWindow:
    worst = float(total.max())
    unit = next((unit for unit, factor in UNITS if worst / factor <= 2 * span), None)
    return refused_rows(
        STEPS,
        name,
        f"adds up to {worst:g} on one rank in a window of {span:g} seconds",
        (total > LONGEST_PHASE * span) & (values > 0),
        steps,
        expected="durations in seconds",
        hint=unit and f"looks like {unit}; or job.start and job.end are too close",
    )
