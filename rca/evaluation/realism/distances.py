"""How far two samples are apart: Kolmogorov-Smirnov, a scale-free Wasserstein distance, and many of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray

#: Fewer values on a side say nothing about a distribution.
LEAST_VALUES = 5
#: Terms of the Kolmogorov distribution's series; they fall like exp(-2 k^2).
TERMS = 60
#: Spread that a Wasserstein distance is given in units of.
SPREAD = (0.1, 0.9)


class Distance(NamedTuple):
    """Two samples of one quantity compared; NaN where a side has too few values.

    Attributes
    ----------
    ks : float
        Largest gap between the two distribution functions, 0 to 1.
    wasserstein : float
        Area between them, in units of the pooled sample's inner 80 % (its standard deviation if that is 0).
    p : float
        Of `ks` under one common distribution, asymptotic; conservative where values repeat.
    missing_real, missing_simulated : float
        Share of NaN.
    real, simulated : float
        Medians.
    quantile : float
        Where the real median lies in the simulated sample.
    """

    ks: float
    wasserstein: float
    p: float
    missing_real: float
    missing_simulated: float
    real: float
    simulated: float
    quantile: float


def distance(real: FloatArray, simulated: FloatArray, least_spread: float = 0.0) -> Distance:
    """Compare two samples, NaN left out.

    Parameters
    ----------
    real, simulated : ndarray of shape (n_real,) and (n_simulated,)
    least_spread : float
        Spread that the Wasserstein distance is at least measured in, so that a difference nobody would
        remark stays small.

    References
    ----------
    Stephens, "Use of the Kolmogorov-Smirnov, Cramer-von Mises and related statistics without extensive
    tables", Journal of the Royal Statistical Society B 32 (1970): the effective sample size in the p-value.
    """
    kept = [values[np.isfinite(values)] for values in (real, simulated)]
    missing = [
        1.0 - held.size / max(values.size, 1) for held, values in zip(kept, (real, simulated), strict=True)
    ]
    medians = [float(np.median(held)) if held.size else float("nan") for held in kept]
    left, right = map(np.sort, kept)
    ks = area = p = float("nan")
    if min(left.size, right.size) >= LEAST_VALUES:
        pooled = np.sort(np.concatenate([left, right]))
        gap = np.abs(_share_up_to(left, pooled) - _share_up_to(right, pooled))
        ks = float(gap.max())
        area = _scaled(float((gap[:-1] * np.diff(pooled)).sum()), pooled, least_spread)
        p = kolmogorov_p(ks, left.size, right.size)
    within = quantile_within(medians[0], right)
    return Distance(ks, area, p, missing[0], missing[1], medians[0], medians[1], within)


def kolmogorov_p(ks: float, n: int, m: int) -> float:
    """Chance of so large a gap between samples of sizes `n` and `m` from one distribution."""
    root = np.sqrt(n * m / (n + m))
    argument = (root + 0.12 + 0.11 / root) * ks
    if argument < 0.2:
        # The series converges slowly there; its value is 1 to many digits.
        return 1.0
    k = np.arange(1, TERMS + 1)
    chance = 2.0 * ((-1.0) ** (k - 1) * np.exp(-2.0 * (k * argument) ** 2)).sum()
    return float(np.clip(chance, 0.0, 1.0))


def benjamini_hochberg(p: FloatArray) -> FloatArray:
    """False discovery rate at which each test would just be called; NaN stays NaN.

    Parameters
    ----------
    p : ndarray of shape (n_tests,)

    References
    ----------
    Benjamini, Hochberg, "Controlling the false discovery rate", Journal of the Royal Statistical Society
    B 57 (1995).
    """
    q = np.full(p.shape, np.nan)
    known = np.flatnonzero(np.isfinite(p))
    if known.size == 0:
        return q
    order = known[np.argsort(-p[known], kind="stable")]
    rank = np.arange(known.size, 0, -1)
    q[order] = np.minimum(np.minimum.accumulate(p[order] * known.size / rank), 1.0)
    return q


def quantile_within(value: float, sample: FloatArray) -> float:
    """Share of the sample below a value, ties counted half; NaN where either is unknown."""
    held = sample[np.isfinite(sample)]
    if held.size == 0 or not np.isfinite(value):
        return float("nan")
    return float(((held < value).sum() + 0.5 * (held == value).sum()) / held.size)


def _share_up_to(ordered: FloatArray, at: FloatArray) -> FloatArray:
    share: FloatArray = np.searchsorted(ordered, at, side="right") / ordered.size
    return share


def _scaled(area: float, pooled: FloatArray, least_spread: float) -> float:
    low, high = np.quantile(pooled, SPREAD)
    spread = max(float(high - low) or float(pooled.std()), least_spread)
    return area / spread if spread > 0 else 0.0
