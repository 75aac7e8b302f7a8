"""Late episodes: for each rank, the contiguous steps in which its lateness adds up to most.

A job has one slow segment that all features compare in. Some ranks are late elsewhere: in every third step,
during a longer change of the whole job, or while another rank is late. Each rank's own episode shows these.
A single long step counts little, because the lateness of one step is capped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.robust import nan_max, nan_min

#: A rank is late in a step when its excess is above both: this share of the usual step, this many times the
#: noise.
LATE_SHARE = 0.03
LATE_NOISE = 4.0
#: Largest excess that one step counts for, as a share of the usual step.
MAX_STEP_LATENESS = 0.3
#: Excess that every step of an episode must exceed on average: the larger of a share of the usual step and a
#: multiple of the noise.
EPISODE_MIN_SHARE, EPISODE_MIN_NOISE = 0.015, 2.0
#: Pairs of an episode and a member that are compared at once.
MAX_COMPARED = 1_000_000


def late_threshold(usual: float, noise: float) -> float:
    """Excess above which a rank is late in a step, seconds; infinite without a usual step."""
    return max(LATE_SHARE * usual, LATE_NOISE * noise) if np.isfinite(usual) else np.inf


def capped(excess: FloatArray, usual: float) -> FloatArray:
    """Excess clipped to `MAX_STEP_LATENESS` of the usual step in both directions, seconds; NaN stays."""
    result: FloatArray = np.clip(excess, -MAX_STEP_LATENESS * usual, MAX_STEP_LATENESS * usual)
    return result


def capped_lateness(excess: FloatArray, usual: float) -> FloatArray:
    """Capped lateness of the last rank in every step, shape (n_steps,), seconds.

    Parameters
    ----------
    excess : ndarray of shape (n_ranks, n_steps), seconds
    usual : float, seconds
        The usual step.
    """
    lateness: FloatArray = np.clip(nan_max(excess), 0.0, MAX_STEP_LATENESS * usual)
    return lateness


@dataclass(frozen=True)
class LateEpisodes:
    """The costliest contiguous steps of every rank's lateness.

    Attributes
    ----------
    first, past : ndarray of shape (n_ranks,), int
        First column, and the column after the last. They are equal for a rank that was never late.
    cost : ndarray of shape (n_ranks,), seconds
        Sum of the capped excess above the allowed excess within the episode.
    """

    first: IntArray
    past: IntArray
    cost: FloatArray

    @classmethod
    def of(cls, excess: FloatArray, unit: float, noise: float) -> LateEpisodes:
        """Find the interval of each row in which the excess above the allowed excess has the largest sum.

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
        This is Kadane's maximum subarray, by running minima of the cumulated sum. It is linear in ranks and
        steps.
        """
        n_ranks, n_steps = excess.shape
        nowhere = np.zeros(n_ranks, dtype=np.int64)
        if not n_steps or not np.isfinite(unit):
            return cls(nowhere, nowhere, np.zeros(n_ranks))
        allowed = max(EPISODE_MIN_SHARE * unit, EPISODE_MIN_NOISE * noise) if np.isfinite(noise) else np.inf
        total = _cumulated(np.where(np.isfinite(excess), capped(excess, unit) - allowed, 0.0))
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
        """Steps that each rank's episode holds, shape (n_ranks, n_steps)."""
        step = np.arange(n_steps)
        inside: BoolArray = (step >= self.first[:, None]) & (step < self.past[:, None])
        return inside

    def mean(self, values: FloatArray) -> FloatArray:
        """Mean of each row of (n_ranks, n_steps) over its episode, without NaN; 0 without an episode."""
        rows, columns = self._cells
        inside = values[rows, columns]
        known = np.isfinite(inside)
        summed = self._per_rank(np.where(known, inside, 0.0))
        count = self._per_rank(known.astype(float))
        result: FloatArray = summed / np.maximum(count, 1.0)
        return np.where((count == 0) & (self.length > 0), np.nan, result)

    def count(self, marked: BoolArray) -> FloatArray:
        """Marked steps of each row within its episode, shape (n_ranks,)."""
        return self._per_rank(marked[self._cells].astype(float))

    def smallest_of_peers(self, values: FloatArray, groups: Iterable[IntArray]) -> FloatArray:
        """Smallest mean of another member's values over each member's episode, shape (n_ranks,).

        NaN without a group or an episode, or if no other member's values are known in it.

        Parameters
        ----------
        values : ndarray of shape (n_ranks, n_steps)
        groups : iterable of ndarray of int
            Ranks of each group; every rank is in one group at most.
        """
        known = np.isfinite(values)
        summed = _cumulated(np.where(known, values, 0.0))
        count = _cumulated(known.astype(float))
        least = np.full(values.shape[0], np.nan)
        for size, alike in _by_size(groups).items():
            # In blocks of episodes: all at once would take the square of a large node's ranks.
            together = max(MAX_COMPARED // size, 1)
            for begin in range(0, alike.size, together):
                episode = np.arange(begin, min(begin + together, alike.size))
                own, peers = alike.ravel()[episode], alike[episode // size]
                first, past = self.first[own, None], self.past[own, None]
                with np.errstate(invalid="ignore", divide="ignore"):
                    means: FloatArray = (summed[peers, past] - summed[peers, first]) / (
                        count[peers, past] - count[peers, first]
                    )
                means[peers == own[:, None]] = np.nan
                least[own] = nan_min(means, axis=1)
        return least

    @cached_property
    def _cells(self) -> tuple[IntArray, IntArray]:
        """Row and column of every cell within its rank's episode."""
        rows = np.repeat(np.arange(self.first.size), self.length)
        begins = np.cumsum(self.length) - self.length
        columns = np.arange(rows.size) + (self.first - begins)[rows]
        return rows, columns

    def _per_rank(self, cells: FloatArray) -> FloatArray:
        """Sums over each rank's part of `_cells`, shape (n_ranks,)."""
        summed = np.bincount(self._cells[0], weights=cells, minlength=self.first.size)
        return summed.astype(np.float64)


def _by_size(groups: Iterable[IntArray]) -> dict[int, IntArray]:
    """Groups of one size as rows of an array of shape (n_groups, size)."""
    found: dict[int, list[IntArray]] = {}
    for members in groups:
        found.setdefault(members.size, []).append(members)
    return {size: np.array(alike) for size, alike in found.items()}


def _cumulated(values: FloatArray) -> FloatArray:
    """Sums of each row before every column, and of the whole row; shape (n_rows, n_columns + 1)."""
    total = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=total[:, 1:])
    return total
