"""Check the rows of the steps table: each step once per rank, with times of the job and in seconds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rca.arrays import IntArray
from rca.errors import InvalidWindow
from rca.window.grouping import step_codes
from rca.window.job import Job
from rca.window.rows.attempts import attempt_numbers, latest_attempt
from rca.window.rows.clock_units import refuse_foreign_clock, refuse_long_phases, refuse_overlapping_steps
from rca.window.rows.density import CELLS_PER_ROW, FREE_CELLS, refuse_empty_cells
from rca.window.rows.row_errors import refused_rows
from rca.window.schema import STEADY_PHASES, STEPS, SUFFICIENT, Scope


def checked_steps(steps: pa.Table, job: Job, scope: Scope = "window") -> tuple[pa.Table, list[str]]:
    """The steps of the latest attempt without timers that were not connected, and notes on what is left out.

    Of a fragment all is kept: other fragments show what counts.

    Raises
    ------
    InvalidWindow
        If there is no step, a step is repeated, or times cannot be of the job or are in another unit.
    """
    if steps.num_rows == 0:
        raise InvalidWindow(
            "is an empty window: no table has a row",
            table="steps",
            expected=f"at least one row of {', '.join(SUFFICIENT)}",
        )
    _refuse_repeated_steps(steps, job)
    notes: list[str] = []
    if scope == "window":
        if "attempt" in steps.column_names:
            steps, notes = latest_attempt(steps)
        n_steps = int(np.count_nonzero(np.bincount(step_codes(steps.column("step").to_numpy())[0])))
        refuse_empty_cells(steps.num_rows, job.world_size, n_steps)
    refuse_foreign_clock(STEPS, "start_time", steps, job)
    refuse_long_phases(steps, job)
    refuse_overlapping_steps(steps)
    _refuse_timeless_steps(steps)
    if scope == "fragment":
        return steps, notes
    steps, remarks = _without_idle_timers(steps)
    return steps, [*notes, *remarks]


def _refuse_timeless_steps(steps: pa.Table) -> None:
    """Refuse steps that mostly take no time: the timer was not connected, and nothing can be compared."""
    seconds = steps.column("step_seconds").to_numpy()
    zero = seconds == 0
    if zero.any() and 2 * int(zero.sum()) >= int(np.isfinite(seconds).sum()):
        raise refused_rows(
            STEPS,
            "step_seconds",
            "is 0 in half of the finished steps or more",
            zero,
            steps,
            expected="the duration of each step in seconds",
            hint="write null where a step was not timed",
        )


def _without_idle_timers(steps: pa.Table) -> tuple[pa.Table, list[str]]:
    """The steps without phases that are 0 in every row, and notes on them: such a timer was not connected."""
    idle = []
    for name in (each for each in STEADY_PHASES if each in steps.column_names):
        seconds = steps.column(name).to_numpy()
        if np.fmax.reduce(seconds) == 0 and np.isfinite(seconds).any():
            idle.append(name)
    notes = [f"steps: {name} is 0 in every row, and counts as not measured" for name in idle]
    return (steps.drop_columns(idle) if idle else steps), notes


def _refuse_repeated_steps(steps: pa.Table, job: Job) -> None:
    key, n_keys = _keys(steps, job)
    if n_keys <= FREE_CELLS + 4 * CELLS_PER_ROW * key.size:
        seen = np.zeros(n_keys, dtype=bool)
        seen[key] = True
        if np.count_nonzero(seen) == key.size:
            return
    order = np.argsort(key, kind="stable")
    repeats = np.flatnonzero(key[order][1:] == key[order][:-1]) + 1
    if repeats.size == 0:
        return
    bad = np.zeros(key.size, dtype=bool)
    bad[order[repeats]] = True
    earlier = np.full(key.size, -1)
    earlier[order[repeats]] = order[repeats - 1]
    raise refused_rows(
        STEPS,
        "step",
        "is repeated: the rank reported this step before",
        bad,
        steps,
        expected="one row per rank and step, or an attempt number that tells them apart",
        extra={"earlier_row": earlier},
    )


def _keys(steps: pa.Table, job: Job) -> tuple[IntArray, int]:
    """One integer per rank, step and attempt, and how many there may be."""
    code, width = step_codes(steps.column("step").to_numpy())
    key, n_keys = steps.column("rank").to_numpy().astype(np.int64) * width + code, job.world_size * width
    if "attempt" in steps.column_names:
        attempts, number = np.unique(attempt_numbers(steps), return_inverse=True)
        key, n_keys = key * attempts.size + number, n_keys * attempts.size
    return key, n_keys
