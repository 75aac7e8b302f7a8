"""95 % intervals: exact ones for shares and rates, bootstrap intervals over windows for all other scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, gammaincinv

from rca.arrays import FloatArray, IntArray

BOOTSTRAP_ROUNDS = 1000
LEVELS = (0.025, 0.975)
#: Confidence bins of the calibration error.
BINS = 10


class Estimate(NamedTuple):
    """A figure, its 95 % interval, and its number of windows; NaN without windows."""

    value: float
    low: float
    high: float
    n: int

    def as_row(self) -> dict[str, float]:
        """``{value, low, high, n}``, for JSON."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": float(self.n)}


UNKNOWN = Estimate(float("nan"), float("nan"), float("nan"), 0)


def bootstrap(
    values: FloatArray, rng: np.random.Generator, statistic: Callable[..., FloatArray] = np.mean
) -> Estimate:
    """Statistic of a score, with its percentile interval over windows.

    Parameters
    ----------
    values : ndarray of shape (n_windows,)
        NaN if the score does not apply; a median allows infinite values.
    statistic : callable
        Takes an array and ``axis``: ``numpy.mean`` or ``numpy.median``.
    """
    held = values[~np.isnan(values)]
    if held.size == 0:
        return UNKNOWN
    drawn = statistic(held[rng.integers(0, held.size, (BOOTSTRAP_ROUNDS, held.size))], axis=1)
    # Interpolation between two infinite values would give NaN.
    finite = bool(np.isfinite(drawn).all())
    low, high = np.quantile(drawn, LEVELS, method="linear" if finite else "inverted_cdf")
    return Estimate(float(statistic(held)), float(low), float(high), int(held.size))


def score(values: FloatArray, rng: np.random.Generator) -> Estimate:
    """Mean of a score, with the exact interval of a share if every value is 0 or 1.

    A bootstrap of eight successes draws no failure, so its interval would have no width.
    """
    held = values[~np.isnan(values)]
    if held.size and np.isin(held, (0.0, 1.0)).all():
        return Estimate(float(held.mean()), *share_interval(int(held.sum()), held.size), int(held.size))
    return bootstrap(held, rng)


def calibration_error(confidence: FloatArray, right: FloatArray, bins: int = BINS) -> float:
    """Expected calibration error: mean gap between confidence and accuracy over equal-width bins.

    Parameters
    ----------
    confidence, right : ndarray of shape (n_windows,)
        Probability of the answer, and 1 if it is right, else 0.

    References
    ----------
    Naeini, Cooper, Hauskrecht, "Obtaining well calibrated probabilities using Bayesian binning", AAAI 2015.
    """
    if confidence.size == 0:
        return float("nan")
    gaps = np.bincount(confidence_bin(confidence, bins), confidence - right, minlength=bins)
    return float(np.abs(gaps).sum() / confidence.size)


def calibration_estimate(confidence: FloatArray, right: FloatArray, rng: np.random.Generator) -> Estimate:
    """`calibration_error` with a bootstrap interval.

    Resampling adds noise to the gap of every bin, and the error sums absolute gaps, so drawn errors are too
    large on average. The interval is shifted back by that bias, which the bootstrap estimates.
    """
    known = np.isfinite(confidence)
    confidence, right = confidence[known], right[known]
    if confidence.size == 0:
        return UNKNOWN
    value = calibration_error(confidence, right)
    errors = _drawn_errors(confidence, right, rng.integers(0, right.size, (BOOTSTRAP_ROUNDS, right.size)))
    low, high = np.clip(np.quantile(errors, LEVELS) - (errors.mean() - value), 0.0, 1.0)
    return Estimate(value, min(float(low), value), max(float(high), value), int(right.size))


def calibration_difference(
    one: tuple[FloatArray, FloatArray], other: tuple[FloatArray, FloatArray], rng: np.random.Generator
) -> Estimate:
    """One method's calibration error minus another's, with a paired bootstrap interval.

    Parameters
    ----------
    one, other : pair of ndarray of shape (n_windows,)
        Confidence, and 1 if the answer is right, else 0; the same windows in the same order.
    """
    known = np.isfinite(one[0]) & np.isfinite(other[0])
    if not known.any():
        return UNKNOWN
    left, right = ((confidence[known], truth[known]) for confidence, truth in (one, other))
    n = int(known.sum())
    drawn = rng.integers(0, n, (BOOTSTRAP_ROUNDS, n))
    value = calibration_error(*left) - calibration_error(*right)
    errors = _drawn_errors(*left, drawn) - _drawn_errors(*right, drawn)
    low, high = np.quantile(errors, LEVELS) - (errors.mean() - value)
    return Estimate(value, float(low), float(high), n)


def _drawn_errors(confidence: FloatArray, right: FloatArray, drawn: IntArray) -> FloatArray:
    """Calibration error of every draw, shape (n_rounds,); `drawn` holds window numbers, a draw per row."""
    index, gap = confidence_bin(confidence), confidence - right
    rounds = drawn.shape[0]
    cell = index[drawn] + BINS * np.arange(rounds)[:, None]
    summed = np.bincount(cell.ravel(), gap[drawn].ravel(), minlength=BINS * rounds)
    errors: FloatArray = np.abs(summed.reshape(rounds, BINS)).sum(axis=1) / gap.size
    return errors


def poisson_rate(events: int, exposure: float) -> tuple[float, float, float]:
    """Rate of rare events per unit of exposure, with its exact 95 % interval.

    Returns
    -------
    rate, low, high : float
        All NaN without exposure.

    References
    ----------
    Garwood, "Fiducial limits for the Poisson distribution", Biometrika 28 (1936).
    """
    if not exposure > 0:
        return (float("nan"),) * 3
    low = float(gammaincinv(events, LEVELS[0])) if events else 0.0
    return events / exposure, low / exposure, float(gammaincinv(events + 1, LEVELS[1])) / exposure


def share_interval(successes: int, n: int) -> tuple[float, float]:
    """Exact 95 % interval of a share.

    References
    ----------
    Clopper, Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika 26 (1934).
    """
    # Quantiles of the beta distribution. scipy.stats has them too, but takes much longer to import.
    low = float(betaincinv(successes, n - successes + 1, LEVELS[0])) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, LEVELS[1])) if successes < n else 1.0
    return low, high


def confidence_bin(confidence: FloatArray, bins: int = BINS) -> IntArray:
    """Equal-width bin of each confidence, shape (n_windows,); 1.0 belongs to the last."""
    return np.minimum((confidence * bins).astype(np.int64), bins - 1)
