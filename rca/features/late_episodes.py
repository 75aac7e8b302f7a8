"""When each rank was late itself: one episode of steps per rank, whatever the job did meanwhile.

A job has one slow stretch that everything is compared in. A rank that is late in every third step, for a few
steps beside a longer change of everybody's, or while another one is, is hardly late in *that*; in its own
episode it is. Of single long steps an episode holds little: what one step counts for is capped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.robust import MAD_TO_SIGMA, nan_max, nan_median

#: A rank is late in a step when it is above its peers by this share of the step and by this much noise.
LATE_SHARE = 0.03
LATE_NOISE = 4.0
#: No step counts for more than this share of the usual step.
CAP = 0.3
#: Excess that every step of an episode has to make up for: this share of a step, or so many times the noise.
ALLOWED_SHARE, ALLOWED_NOISE = 0.015, 2.0


def healthy_spread(excess: FloatArray) -> float:
    """Robust spread of the excess of ranks most of which are healthy, seconds."""
    return float(MAD_TO_SIGMA * nan_median(np.abs(excess).ravel()[:, None])[0])


def late_from(usual: float, noise: float) -> float:
    """Excess above which a rank is late in a step, seconds; infinite where there is no usual step."""
    return max(LATE_SHARE * usual, LATE_NOISE * noise) if np.isfinite(usual) else np.inf


def capped(excess: FloatArray, usual: float) -> FloatArray:
    """Excess of no more than `CAP` of the usual step either way, seconds; NaN stays."""
    result: FloatArray = np.clip(excess, -CAP * usual, CAP * usual)
    return result


def capped_lateness(excess: FloatArray, usual: float) -> FloatArray:
    """How late whoever comes last is, up to `CAP` of the usual step; shape (n_steps,), seconds.

    Parameters
    ----------
    excess : ndarray of shape (n_ranks, n_steps), seconds
    usual : float, seconds
    """
    lateness: FloatArray = np.clip(nan_max(excess), 0.0, CAP * usual)
    return lateness


@dataclass(frozen=True)
class LateEpisodes:
    """The costliest contiguous steps of every rank's lateness.

    Attributes
    ----------
    first, past : ndarray of shape (n_ranks,), int
        First column, and the one behind the last; equal where a rank was never late.
    cost : ndarray of shape (n_ranks,), seconds
        Excess within the episode above what is allowed, every step capped, added up.
    """

    first: IntArray
    past: IntArray
    cost: FloatArray

    @classmethod
    def of(cls, excess: FloatArray, unit: float, noise: float) -> LateEpisodes:
        """The interval of each row in which the excess above the allowed has the largest sum.

        Parameters
        ----------
        excess : ndarray of shape (n_ranks, n_steps), seconds
            NaN counts for nothing.
        unit : float, seconds
            The usual step.
        noise : float, seconds
            Robust spread of the healthy excess.

        Notes
        -----
        Kadane's maximum subarray, by running minima of the cumulated sum: linear in ranks and steps.
        """
        n_ranks, n_steps = excess.shape
        nowhere = np.zeros(n_ranks, dtype=np.int64)
        if not n_steps or not np.isfinite(unit):
            return cls(nowhere, nowhere, np.zeros(n_ranks))
        allowed = max(ALLOWED_SHARE * unit, ALLOWED_NOISE * noise) if np.isfinite(noise) else np.inf
        total = _from_zero(np.where(np.isfinite(excess), capped(excess, unit) - allowed, 0.0))
        before, total = total[:, :-1], total[:, 1:]
        least = np.minimum.accumulate(before, axis=1)
        risen = total - least
        last = risen.argmax(axis=1)
        rows = np.arange(n_ranks)
        cost = risen[rows, last]
        lowest = np.maximum.accumulate(np.where(before <= least, np.arange(n_steps), 0), axis=1)
        found = cost > 0
        return cls(
            np.where(found, lowest[rows, last], 0),
            np.where(found, last + 1, 0),
            np.where(found, cost, 0.0),
        )

    @property
    def length(self) -> IntArray:
        """Columns of every rank's episode, shape (n_ranks,)."""
        length: IntArray = self.past - self.first
        return length

    def mask(self, n_steps: int) -> BoolArray:
        """Which steps each rank's episode holds, shape (n_ranks, n_steps)."""
        step = np.arange(n_steps)
        inside: BoolArray = (step >= self.first[:, None]) & (step < self.past[:, None])
        return inside

    def mean(self, values: FloatArray) -> FloatArray:
        """Mean of each row of (n_ranks, n_steps) over its episode, ignoring NaN; zero where it has none."""
        rows, columns = self._cells
        inside = values[rows, columns]
        known = np.isfinite(inside)
        summed = self._per_rank(np.where(known, inside, 0.0))
        count = self._per_rank(known.astype(float))
        result: FloatArray = summed / np.maximum(count, 1.0)
        return np.where((count == 0) & (self.length > 0), np.nan, result)

    def count(self, marked: BoolArray) -> FloatArray:
        """Marked steps of each row within its episode."""
        return self._per_rank(marked[self._cells].astype(float))

    def of_peers(self, values: FloatArray, members: IntArray) -> FloatArray:
        """Mean of every member's values over every member's episode, shape (whose episode, whose values)."""
        known = np.isfinite(values[members])
        summed = _from_zero(np.where(known, values[members], 0.0))
        count = _from_zero(known.astype(float))
        first, past = self.first[members], self.past[members]
        with np.errstate(invalid="ignore", divide="ignore"):
            result: FloatArray = (summed[:, past] - summed[:, first]) / (count[:, past] - count[:, first])
        return result.T

    @cached_property
    def _cells(self) -> tuple[IntArray, IntArray]:
        """Row and column of every cell that lies within its rank's episode."""
        rows = np.repeat(np.arange(self.first.size), self.length)
        begins = np.cumsum(self.length) - self.length
        columns = np.arange(rows.size) + (self.first - begins)[rows]
        return rows, columns

    def _per_rank(self, cells: FloatArray) -> FloatArray:
        """Sums of what belongs to each of `_cells`, shape (n_ranks,)."""
        summed = np.bincount(self._cells[0], weights=cells, minlength=self.first.size)
        return summed.astype(np.float64)


def _from_zero(values: FloatArray) -> FloatArray:
    """Sums of each row before every column, and of all, shape (n_rows, n_columns + 1)."""
    total = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=total[:, 1:])
    return total
