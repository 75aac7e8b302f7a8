"""Bootstrap intervals over steps for ratios of means."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.errors import InvalidInput

Interval = tuple[float, float]

RESAMPLES = 1000
LEVEL = 0.9

MAX_UNITS = 1000
"""Largest number of resampled units. In longer traces a unit is a run of steps, which keeps correlations."""

TOGETHER = 1024
"""Numerators that are resampled together: each takes `RESAMPLES` numbers."""

MIN_LOSS = 1e-3
"""Share of the step time. A smaller loss is within the error of any replay."""


@dataclass(frozen=True)
class StepBootstrap:
    """Resampling of the steps of a trace.

    Attributes
    ----------
    counts : ndarray of shape (RESAMPLES, n_units)
        How often each unit is drawn.
    starts : ndarray of shape (n_units,), int
        First step of each unit.
    """

    counts: FloatArray
    starts: IntArray

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, n_steps: int, seed: int) -> StepBootstrap:
        """Draw the resamples. The same seed gives the same numbers.

        Raises
        ------
        InvalidInput
            If the seed is negative.
        """
        if seed < 0:
            raise InvalidInput(f"seed is {seed}", hint="a seed is 0 or larger")
        n_units = min(n_steps, MAX_UNITS)
        drawn = np.random.default_rng(seed).multinomial(
            n_units, np.full(n_units, 1 / n_units), size=RESAMPLES
        )
        return cls(drawn.astype(np.float64), np.arange(n_units) * n_steps // n_units)

    def sums(self, seconds: FloatArray) -> FloatArray:
        """Sum over the drawn steps: (..., n_steps) -> (RESAMPLES, ...)."""
        units = np.moveaxis(np.add.reduceat(seconds, self.starts, axis=-1), -1, 0)
        drawn = self.counts @ units.reshape(self.starts.size, units[0].size)
        return drawn.reshape(self.counts.shape[0], *units.shape[1:])

    def ratio(self, above: FloatArray, below: FloatArray) -> Interval:
        """Percentile interval of ``mean(above) / mean(below)``, over draws with a positive denominator.

        Parameters
        ----------
        above, below : ndarray of shape (n_steps,), seconds
        """
        denominator = self.sums(below)
        positive = denominator > 0
        if not positive.any():
            return float("nan"), float("nan")
        ratios = self.sums(above)[positive] / denominator[positive]
        lower, upper = np.quantile(ratios, _BOUNDS)
        return float(lower), float(upper)

    def ratios(self, above: FloatArray, below: FloatArray) -> list[Interval]:
        """Intervals of many numerators of shape (n, n_steps) over one positive denominator."""
        denominator = self.sums(below)[:, None]
        found: list[Interval] = []
        for first in range(0, len(above), TOGETHER):
            drawn = self.sums(above[first : first + TOGETHER]) / denominator
            lower, upper = np.quantile(drawn, _BOUNDS, axis=0)
            found += zip(lower.tolist(), upper.tolist(), strict=True)
        return found


_BOUNDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)


def loses(no_delay: FloatArray, ideal: FloatArray) -> bool:
    """Whether the loss of a job is larger than noise. Only then do shares of the loss have a meaning.

    Parameters
    ----------
    no_delay, ideal : ndarray of shape (n_steps,), seconds
    """
    lost = no_delay - ideal
    if not lost.mean() > MIN_LOSS * ideal.mean():
        return False
    sums = StepBootstrap.of(lost.size, seed=0).sums(lost)
    return bool(np.quantile(sums, _BOUNDS[0]) > 0)
