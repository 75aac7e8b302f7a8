"""The interval of a series in which its values are high: change points of a level, by least squares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.robust import nan_median

#: Steps that a segment has at least, inside and outside. Shorter changes are hiccups.
MIN_SEGMENT_STEPS = 4
#: Quantiles at which the series is clipped. The high one keeps a short segment. The low one keeps the extent
#: of a long segment in which a few steps are much higher.
CLIP_QUANTILES = (0.98, 0.8)
#: Longer series are averaged into this many bins before the quadratic search.
MAX_BINS = 160


@dataclass(frozen=True)
class Segment:
    """The contiguous columns in which a series is high.

    Attributes
    ----------
    first, last : int
        Column indices, inclusive.
    contrast : float
        Mean inside minus mean outside, in the series' unit.
    z : float
        The contrast in units of its own standard error.
    whole : bool
        True if no change was found. Then the segment holds all columns.
    """

    first: int
    last: int
    contrast: float
    z: float
    whole: bool

    @classmethod
    def everything(cls, n_columns: int) -> Segment:
        """All columns: no change was found."""
        return cls(0, max(n_columns - 1, 0), 0.0, 0.0, True)

    def mask(self, n_columns: int) -> BoolArray:
        """Boolean array of shape (n_columns,), True inside."""
        inside = np.zeros(n_columns, dtype=bool)
        inside[self.first : self.last + 1] = True
        return inside


def high_segment(series: FloatArray, *, min_z: float = 6.0, min_contrast: float = 0.0) -> Segment:
    """Best two-level fit with one high interval, by exhaustive search over its ends.

    Parameters
    ----------
    series : ndarray of shape (n_steps,)
        NaN tolerated.
    min_z, min_contrast : float
        Below either, the result holds the whole series, with ``whole=True``.

    Notes
    -----
    This is least squares with one interval. Giving ``[a, b]`` its own level reduces the squared error by
    ``contrast**2 * n_in * n_out / n``. Values are clipped first, so that single spikes weigh little. The
    statistic of circular binary segmentation has the same form (Olshen et al., Biostatistics, 2004).
    """
    everything = Segment.everything(series.size)
    if np.isfinite(series).sum() < 2 * MIN_SEGMENT_STEPS:
        return everything
    filled = without_gaps(series)
    candidates = [_fit_interval(_clip_spikes(filled, quantile)) for quantile in CLIP_QUANTILES]
    strong = [found for found in candidates if found.z >= min_z and found.contrast >= min_contrast]
    return max(strong, key=lambda found: found.z, default=everything)


def _fit_interval(clipped: FloatArray) -> Segment:
    n = clipped.size
    everything = Segment.everything(n)
    width = -(-n // MAX_BINS)
    bins = _bin(clipped, width)
    first, last = _best_interval(bins, max(1, -(-MIN_SEGMENT_STEPS // width)))
    if last < first:
        return everything
    first, last = first * width, min((last + 1) * width, n) - 1
    inside = np.zeros(n, dtype=bool)
    inside[first : last + 1] = True
    high, low = clipped[inside], clipped[~inside]
    if low.size == 0:
        return everything
    contrast = float(high.mean() - low.mean())
    spread = np.sqrt(high.var() / high.size + low.var() / low.size)
    return Segment(first, last, contrast, contrast / max(float(spread), 1e-12), False)


def without_gaps(series: FloatArray) -> FloatArray:
    """The series with its median in place of NaN."""
    return np.where(np.isfinite(series), series, nan_median(series[None, :], axis=1)[0])


def _clip_spikes(series: FloatArray, quantile: float) -> FloatArray:
    ordered = np.sort(series)
    low, high = (_sorted_quantile(ordered, share) for share in (0.02, quantile))
    # A median of three removes single-step spikes and keeps every edge of three steps or more.
    left = np.concatenate([series[:1], series[:-1]])
    right = np.concatenate([series[1:], series[-1:]])
    smooth = np.maximum(np.minimum(left, right), np.minimum(np.maximum(left, right), series))
    clipped: FloatArray = np.clip(smooth, low, high)
    return clipped


def _sorted_quantile(ordered: FloatArray, share: float) -> float:
    """Quantile of sorted values, linear interpolation."""
    position = share * (ordered.size - 1)
    index = int(position)
    following = min(index + 1, ordered.size - 1)
    return float(ordered[index] + (ordered[following] - ordered[index]) * (position - index))


def _bin(series: FloatArray, width: int) -> FloatArray:
    if width == 1:
        return series
    n_bins = -(-series.size // width)
    padded = np.pad(series, (0, n_bins * width - series.size), mode="edge")
    result: FloatArray = padded.reshape(n_bins, width).mean(axis=1)
    return result


def _best_interval(bins: FloatArray, shortest: int) -> tuple[int, int]:
    centred = bins - bins.mean()
    cumulative = np.concatenate([[0.0], np.cumsum(centred)])
    first, end, weight = _intervals(bins.size, shortest)
    if first.size == 0:
        return 0, -1
    total = cumulative[end] - cumulative[first]
    gain = np.where(total > 0, total * total * weight, -np.inf)
    best = int(gain.argmax())
    if not np.isfinite(gain[best]):
        return 0, -1
    return int(first[best]), int(end[best]) - 1


@lru_cache(maxsize=32)
def _intervals(n: int, shortest: int) -> tuple[IntArray, IntArray, FloatArray]:
    """First bin, end bin and weight of all intervals with at least `shortest` of `n` bins in and outside."""
    first, end = np.triu_indices(n + 1, k=shortest)
    length = end - first
    outside = n - length
    valid = outside >= shortest
    first, end, length, outside = first[valid], end[valid], length[valid], outside[valid]
    return first, end, n / (length * outside)
