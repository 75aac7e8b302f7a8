"""Bootstrap intervals over steps for ratios of means."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rca.errors import InvalidInput

FloatArray = npt.NDArray[np.float64]

RESAMPLES = 1000
LEVEL = 0.9


def step_weights(n_steps: int, seed: int, resamples: int = RESAMPLES) -> FloatArray:
    """Resampling weights of the steps.

    Returns
    -------
    ndarray of shape (resamples, n_steps)
        Each row sums to 1.

    Raises
    ------
    InvalidInput
        If the seed is negative.
    """
    if seed < 0:
        raise InvalidInput(f"seed is {seed}", hint="a seed is 0 or larger")
    drawn = np.random.default_rng(seed).multinomial(n_steps, np.full(n_steps, 1 / n_steps), size=resamples)
    return drawn / n_steps


def ratio_interval(weights: FloatArray, above: FloatArray, below: FloatArray) -> tuple[float, float]:
    """Percentile interval (90 %) of ``mean(above) / mean(below)``.

    Parameters
    ----------
    weights : ndarray of shape (resamples, n_steps)
    above, below : ndarray of shape (n_steps,), seconds
    """
    ratios = (weights @ above) / (weights @ below)
    lower, upper = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(lower), float(upper)
