"""The `steps` table as dense rank x step arrays, for features and replays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.errors import InvalidWindow
from rca.window.schema import LOAD_COLUMNS, OCCASIONAL_PHASES, PHASES, STEADY_PHASES
from rca.window.window import Window


def distinct_steps(step: IntArray) -> tuple[IntArray, IntArray]:
    """Sorted distinct step numbers, and every row's position among them.

    Step numbers are nearly always dense, and counting is faster than sorting.

    Raises
    ------
    InvalidWindow
        If there is no step: a window may hold collectives alone.
    """
    if step.size == 0:
        raise InvalidWindow("is empty, and this analysis needs steps", table="steps", expected="step rows")
    low, high = int(step.min()), int(step.max())
    if high - low >= 4 * step.size + 1024:
        steps, column = np.unique(step, return_inverse=True)
        return steps, column
    held = np.zeros(high - low + 1, dtype=bool)
    held[step - low] = True
    position = np.cumsum(held) - 1
    return np.flatnonzero(held) + low, position[step - low]


@dataclass(frozen=True)
class PhaseArrays:
    """Rank x step arrays of one window; row = rank number, column = position in `steps`.

    Attributes
    ----------
    steps : ndarray of shape (n_steps,), int64
        Sorted distinct training-step numbers.
    present : ndarray of shape (n_ranks, n_steps), bool
        Whether the rank reported a row for the step.
    start_time : ndarray of shape (n_ranks, n_steps), Unix seconds
        On the rank's own clock; NaN where absent.
    seconds : mapping of str to ndarray of shape (n_ranks, n_steps), seconds
        Phase durations by column name; only phases with a measurement. NaN = not measured.
    load : mapping of str to ndarray of shape (n_ranks, n_steps)
        The load columns of the window (``samples``, ``tokens``, ``sum_squared_sequence_length``).
    """

    steps: IntArray
    present: BoolArray
    start_time: FloatArray
    seconds: Mapping[str, FloatArray]
    load: Mapping[str, FloatArray]

    @property
    def n_ranks(self) -> int:
        return int(self.present.shape[0])

    @property
    def n_steps(self) -> int:
        return int(self.present.shape[1])

    @property
    def last_column(self) -> IntArray:
        """Column of each rank's last row, shape (n_ranks,); the last column for a rank without rows."""
        from_the_end: IntArray = self.present[:, ::-1].argmax(axis=1)
        return self.n_steps - 1 - from_the_end

    def phase(self, name: str) -> FloatArray:
        """The phase's array; all NaN if it was not measured."""
        found = self.seconds.get(name)
        return np.full(self.present.shape, np.nan) if found is None else found

    def without_first(self, n_steps: int) -> PhaseArrays:
        """The same arrays without the first `n_steps` columns."""
        kept = slice(n_steps, None)
        return PhaseArrays(
            steps=self.steps[kept],
            present=self.present[:, kept],
            start_time=self.start_time[:, kept],
            seconds={name: array[:, kept] for name, array in self.seconds.items()},
            load={name: array[:, kept] for name, array in self.load.items()},
        )

    @classmethod
    def from_window(cls, window: Window, only: Collection[str] | None = None) -> PhaseArrays:
        """Scatter the long `steps` table into dense arrays.

        Parameters
        ----------
        only : collection of str, optional
            The phase and load columns that are needed; all if absent.
        """
        table = window.steps
        rank = table.column("rank").to_numpy()
        steps, column = distinct_steps(table.column("step").to_numpy())
        shape = (window.job.world_size, steps.size)
        flat = rank.astype(np.int64) * steps.size + column

        def dense(name: str) -> FloatArray:
            out = np.full(shape, np.nan)
            out.ravel()[flat] = table.column(name).to_numpy()
            return out

        present = np.zeros(shape, dtype=bool)
        present.ravel()[flat] = True
        wanted = (*PHASES, *LOAD_COLUMNS) if only is None else only
        held = [name for name in table.column_names if name in wanted]
        arrays = {name: dense(name) for name in held}
        for name in OCCASIONAL_PHASES & arrays.keys():
            arrays[name] = _with_zeros(name, arrays)
        measured = {name: array for name, array in arrays.items() if np.isfinite(array).any()}
        return cls(
            steps=steps,
            present=present,
            start_time=dense("start_time"),
            seconds={name: array for name, array in measured.items() if name in PHASES},
            load={name: array for name, array in measured.items() if name in LOAD_COLUMNS},
        )


def _with_zeros(name: str, arrays: Mapping[str, FloatArray]) -> FloatArray:
    """The phase with zeros instead of missing values, if the trainer writes it only where it happened.

    Only steps with other timed phases are filled: a missing timer is not zero work. If a rank mostly writes
    zeros, a missing value means "not measured" and stays.
    """
    seconds, step = arrays[name], arrays.get("step_seconds")
    steady = [arrays[other] for other in STEADY_PHASES if other in arrays]
    if step is None or not steady:
        return seconds
    timed = np.isfinite(step) & np.logical_or.reduce([np.isfinite(each) for each in steady])
    measured = np.isfinite(seconds)
    happened = (measured & (seconds > 0)).sum(axis=1)
    seldom = 2 * (measured & timed).sum(axis=1) < timed.sum(axis=1)
    left_out = seldom & (2 * happened > measured.sum(axis=1))
    if name == "checkpoint_seconds" and left_out.any():
        # One rank may write the checkpoint for all; every rank has its own garbage collector.
        left_out |= ~measured.any(axis=1)
    return np.where(left_out[:, None] & timed & ~measured, 0.0, seconds)
