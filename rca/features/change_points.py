"""Temporal shape of a series of steps: when it was high, how long, how regularly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.robust import nan_median

#: Both sides of a change need this many steps, or a hiccup would pass for a phase of the job.
MIN_SEGMENT_STEPS = 4
#: Length of the running median that periodicity is measured against.
BASELINE_STEPS = 9
#: Quantiles the series is clipped at: the high one keeps a short stretch, the low one the extent of a long
#: stretch with a few much higher steps in it.
CEILINGS = (0.98, 0.8)
#: Longer series are averaged down to this many bins before the quadratic search.
MAX_BINS = 160


@dataclass(frozen=True)
class Segment:
    """The contiguous stretch of columns in which a series is high.

    Attributes
    ----------
    first, last : int
        Column indices, inclusive.
    contrast : float
        Mean inside minus mean outside, in the series' unit.
    z : float
        The contrast in units of its own standard error.
    whole : bool
        True if no change was found and the segment is simply everything.
    """

    first: int
    last: int
    contrast: float
    z: float
    whole: bool

    @classmethod
    def everything(cls, n_columns: int) -> Segment:
        """All columns, where no change is to be told."""
        return cls(0, max(n_columns - 1, 0), 0.0, 0.0, True)

    def mask(self, n_columns: int) -> BoolArray:
        """Boolean array of shape (n_columns,), True inside."""
        inside = np.zeros(n_columns, dtype=bool)
        inside[self.first : self.last + 1] = True
        return inside


def high_segment(series: FloatArray, *, min_z: float = 6.0, min_contrast: float = 0.0) -> Segment:
    """Best two-level fit with one high stretch, by exhaustive search over its ends.

    Parameters
    ----------
    series : ndarray of shape (n_steps,)
        NaN tolerated.
    min_z, min_contrast : float
        Below either, the whole series is returned with ``whole=True``.

    Notes
    -----
    Least squares with one interval: the reduction of the squared error when ``[a, b]`` gets its own
    level is ``contrast**2 * n_in * n_out / n``; values are clipped first so that single spikes weigh
    little. The circular binary segmentation statistic of Olshen et al. (2004) has the same form.
    """
    everything = Segment.everything(series.size)
    if np.isfinite(series).sum() < 2 * MIN_SEGMENT_STEPS:
        return everything
    filled = _filled(series)
    candidates = [_fit_interval(_clip_spikes(filled, ceiling)) for ceiling in CEILINGS]
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


def _filled(series: FloatArray) -> FloatArray:
    return np.where(np.isfinite(series), series, nan_median(series[None, :], axis=1)[0])


def _clip_spikes(series: FloatArray, ceiling: float) -> FloatArray:
    ordered = np.sort(series)
    low, high = (_at(ordered, share) for share in (0.02, ceiling))
    # A median of three removes single-step spikes but keeps every edge of three steps or more.
    left = np.concatenate([series[:1], series[:-1]])
    right = np.concatenate([series[1:], series[-1:]])
    smooth = np.maximum(np.minimum(left, right), np.minimum(np.maximum(left, right), series))
    clipped: FloatArray = np.clip(smooth, low, high)
    return clipped


def _at(ordered: FloatArray, share: float) -> float:
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
    """All intervals of `n` bins with at least `shortest` inside and outside: first, end, and their weight."""
    first, end = np.triu_indices(n + 1, k=shortest)
    length = end - first
    outside = n - length
    valid = outside >= shortest
    first, end, length, outside = first[valid], end[valid], length[valid], outside[valid]
    return first, end, n / (length * outside)


def periodicity(series: FloatArray) -> tuple[float, float]:
    """Strongest repetition of a series.

    Returns
    -------
    period : float, steps
        NaN below 16 measured steps or without variation.
    strength : float
        Autocorrelation at that lag, 0 to 1.
    """
    if np.isfinite(series).sum() < 16:
        return float("nan"), 0.0
    filled = _filled(series)
    # Against the running median, or a single change of level would look like a repetition.
    padded = np.pad(filled, BASELINE_STEPS // 2, mode="edge")
    centred = filled - np.median(np.lib.stride_tricks.sliding_window_view(padded, BASELINE_STEPS), axis=1)
    centred -= centred.mean()
    n = centred.size
    power = float(centred @ centred)
    if power <= 0:
        return float("nan"), 0.0
    spectrum = np.fft.rfft(centred, 2 * n)
    correlation = np.fft.irfft(spectrum * spectrum.conj())[:n] / power
    lags = np.arange(n)
    scaled = correlation * n / np.maximum(n - lags, 1)
    candidate = scaled[2 : n // 2]
    if candidate.size == 0:
        return float("nan"), 0.0
    best = int(candidate.argmax()) + 2
    return float(best), float(np.clip(scaled[best], 0.0, 1.0))


def trend(series: FloatArray) -> float:
    """Relative growth over the window: slope times length over the mean; 0 below 8 measured steps."""
    finite = np.isfinite(series)
    if finite.sum() < 8:
        return 0.0
    x = np.flatnonzero(finite).astype(np.float64)
    y = series[finite]
    x -= x.mean()
    mean = float(y.mean())
    if mean <= 0:
        return 0.0
    return float((x @ (y - mean)) / (x @ x) * series.size / mean)
