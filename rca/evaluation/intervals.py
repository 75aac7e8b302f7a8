"""95 % intervals: exact for shares of windows and for rates, bootstrap over windows for other scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray, IntArray

BOOTSTRAP_ROUNDS = 1000
LEVELS = (0.025, 0.975)
#: Confidence bins of the calibration error.
BINS = 10
#: Halvings of a bracket until doubles have no digits left.
BISECTIONS = 60


class Estimate(NamedTuple):
    """A figure, its 95 % interval, and how many windows it rests on; NaN where there are none."""

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
    """Statistic of the windows a score applies to, with its percentile interval.

    Parameters
    ----------
    values : ndarray of shape (n_windows,)
        NaN where the score does not apply; infinite values are allowed for a median.
    rng : Generator
    statistic : callable
        Takes an array and ``axis``: ``numpy.mean`` or ``numpy.median``.
    """
    held = values[~np.isnan(values)]
    if held.size == 0:
        return UNKNOWN
    drawn = statistic(held[rng.integers(0, held.size, (BOOTSTRAP_ROUNDS, held.size))], axis=1)
    # Interpolating between two infinities would give NaN; a drawn value never does.
    finite = bool(np.isfinite(drawn).all())
    low, high = np.quantile(drawn, LEVELS, method="linear" if finite else "inverted_cdf")
    return Estimate(float(statistic(held)), float(low), float(high), int(held.size))


def score(values: FloatArray, rng: np.random.Generator) -> Estimate:
    """Mean of a score; where every window is simply right or wrong, with the exact interval of a share.

    Draws from eight successes hold no failure, which does not mean that there is none to come.
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
        Probability the answer was given, and 1 or 0 whether it was right.

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

    Resampling adds noise to every bin's gap, and the error sums up magnitudes: drawn errors are too large
    on average. The interval is moved back by that bias, which the bootstrap itself estimates.
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
        Confidence, and 1 or 0 whether the answer was right; the same windows in the same order.
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
    Garwood, "Fiducial limits for the Poisson distribution", Biometrika 28 (1936): the means at which as many
    events or more, and as many or fewer, have a probability of 2.5 %.
    """
    if not exposure > 0:
        return (float("nan"),) * 3
    low = _mean_with(events - 1, LEVELS[1]) if events else 0.0
    return events / exposure, low / exposure, _mean_with(events, LEVELS[0]) / exposure


def _mean_with(at_most: int, chance: float) -> float:
    """Mean of a Poisson variable that is `at_most` or less with the given chance."""
    counts = np.arange(at_most + 1)
    log_factorials = np.cumsum(np.log(np.maximum(counts, 1)))

    def log_chances(mean: float) -> FloatArray:
        logs: FloatArray = counts * np.log(mean) - mean - log_factorials
        return logs

    return _parameter_with(chance, log_chances, at_most + 10.0 * math.sqrt(at_most + 1.0) + 10.0)


def share_interval(successes: int, n: int) -> tuple[float, float]:
    """95 % interval of a share.

    References
    ----------
    Clopper, Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika 26 (1934): the shares at which as many successes or more, and as many or fewer, have a
    probability of 2.5 %.
    """
    low = _share_with(successes - 1, n, LEVELS[1]) if successes else 0.0
    high = _share_with(successes, n, LEVELS[0]) if successes < n else 1.0
    return low, high


def _share_with(at_most: int, n: int, chance: float) -> float:
    """Share at which a binomial variable of `n` draws is `at_most` or less with the given chance."""
    counts = np.arange(at_most + 1)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    log_ways = log_factorials[n] - log_factorials[counts] - log_factorials[n - counts]

    def log_chances(share: float) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            logs: FloatArray = log_ways + counts * np.log(share) + (n - counts) * np.log1p(-share)
        return logs

    return _parameter_with(chance, log_chances, 1.0)


def _parameter_with(chance: float, log_chances: Callable[[float], FloatArray], largest: float) -> float:
    """Parameter at which the outcomes together have the given chance, which falls as it grows.

    Bisection: the quantiles of `scipy.special` would cost every `rca evaluate` most of a second to import.
    """
    below, above = 0.0, largest
    for _ in range(BISECTIONS):
        middle = (below + above) / 2
        likely = np.exp(log_chances(middle)).sum() > chance
        below, above = (middle, above) if likely else (below, middle)
    return (below + above) / 2


def confidence_bin(confidence: FloatArray, bins: int = BINS) -> IntArray:
    """Equal-width bin of each confidence, shape (n_windows,); 1.0 belongs to the last."""
    return np.minimum((confidence * bins).astype(np.int64), bins - 1)
