"""The usual spread of a column, with lower limits.

A column that hardly ever changes has a spread of zero, or of its last digit, so its robust z-scores are huge.
Three lower limits keep such columns from the top of a ranking: a share of the level, a share of the
quantisation step and, for columns that mostly repeat one value, a share of their whole range.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.robust import nan_median, nan_quantile

#: One unit of spread is at least this share of the usual level ...
LEVEL_SHARE = 0.01
#: ... and at least this share of the smallest difference between two values.
STEP_SHARE = 0.5
#: A column with one constant value changes by at most ten units.
REPEATED_SHARE = 0.1
#: Standard normal quantiles, so that the spreads agree on Gaussian data.
NORMAL_MAD, NORMAL_IQR, NORMAL_TAIL = 0.6745, 1.349, 1.96
#: z-scores are clipped here; beyond, differences are rounding errors.
LARGEST = 1e6


def standardise(normal: FloatArray, anomalous: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Both arrays in units of the usual spread around the usual level.

    Parameters
    ----------
    normal : ndarray of shape (n_normal, n_columns)
        NaN where nothing was measured; at least two values per column.
    anomalous : ndarray of shape (n_anomalous, n_columns)

    Returns
    -------
    normal, anomalous : ndarray
        Same shapes; zero is the usual level. A column without any difference in either is zero throughout.
    """
    centre = nan_median(normal)
    scale = np.maximum(spread(normal, centre), floors(normal, anomalous, centre))
    # The smallest floats have no finite inverse; such a column counts as zero.
    usable = scale > 1.0 / np.finfo(np.float64).max
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=usable)
    with np.errstate(over="ignore"):  # Overflows are clipped as well.
        return (
            np.clip((normal - centre) * inverse, -LARGEST, LARGEST),
            np.clip((anomalous - centre) * inverse, -LARGEST, LARGEST),
        )


def spread(normal: FloatArray, centre: FloatArray) -> FloatArray:
    """Standard deviation of a Gaussian that is as wide as the column, in the middle or in the longer tail.

    Because of the tail, usual values of skewed metrics (latencies, bytes, counts) get no large z-scores.
    """
    away = normal - centre
    low, lower, upper, high = (nan_quantile(away, q) for q in (0.025, 0.25, 0.75, 0.975))
    middle = np.maximum(nan_median(np.abs(away)) / NORMAL_MAD, (upper - lower) / NORMAL_IQR)
    tail = np.maximum(high, -low) / NORMAL_TAIL
    # Few rows underestimate the spread.
    count = np.isfinite(normal).sum(axis=0)
    widened: FloatArray = np.maximum(middle, tail) * (1.0 + 3.0 / count)
    return widened


def floors(normal: FloatArray, anomalous: FloatArray, centre: FloatArray) -> FloatArray:
    """Lower limit of a column's spread, in its own unit."""
    count = np.isfinite(normal).sum(axis=0)
    repeated = (normal == centre).sum(axis=0) / count
    reach = np.nanmax(np.abs(np.concatenate([normal, anomalous]) - centre), axis=0)
    seen = REPEATED_SHARE * repeated**2 * reach
    granted: FloatArray = np.maximum(
        np.maximum(LEVEL_SHARE * np.abs(centre), STEP_SHARE * _step(normal)), seen
    )
    return granted


def _step(normal: FloatArray) -> FloatArray:
    """Smallest positive difference between two values of a column; 0 where there is none."""
    gaps = np.diff(np.sort(normal, axis=0), axis=0)
    positive = np.where(gaps > 0, gaps, np.inf).min(axis=0, initial=np.inf)
    return np.where(np.isfinite(positive), positive, 0.0)
