"""Means of irregular samples over time bins, on plain arrays.

Assumptions between two samples:

- A gauge changes linearly. Its mean over a bin is the integral divided by the bin's width.
- A counter grows evenly. Its mean rate is the increase divided by the bin's width.
- A state code holds its value until the next sample. A bin shows the largest code.

Gaps stay gaps: a pause longer than `GAP_INTERVALS` median sampling intervals counts for no bin. Before its
first and after its last sample, a series is extended by one median interval. A bin's mean is over its known
part; the bin is NaN if no part is known.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray

#: A longer pause, in median sampling intervals, is a gap.
GAP_INTERVALS = 5.0
#: Samples closer than this (seconds) are simultaneous: there is no rate between them.
MOMENT = 1e-9
#: Some counters (such as iowait) fall by up to this share without a reset.
JITTER = 0.01
#: Series are processed in blocks of about this many cells, so that temporaries stay in the cache.
BLOCK_CELLS = 25_000
#: Floats hold every bit pattern exactly up to here.
MAX_CODE = 2.0**53


def increments(value: FloatArray) -> FloatArray:
    """Increase of a counter between neighbouring samples along the last axis, never negative.

    After a fall the counter restarted from about zero, so the new value is the increase. Two kinds of fall
    count as no increase:

    - a fall by less than `JITTER` of the value;
    - a fall after which the counter never rises again, as when the counted threads have ended.

    Parameters
    ----------
    value : ndarray of shape (..., n_samples)
        Without NaN.

    Returns
    -------
    ndarray of shape (..., n_samples - 1)
    """
    before, after = value[..., :-1], value[..., 1:]
    step = after - before
    falls = step < 0
    if falls.any():
        rises_later = np.flip(np.logical_or.accumulate(np.flip(step > 0, axis=-1), axis=-1), axis=-1)
        restarts = falls & rises_later & (after < (1 - JITTER) * before)
        step = np.where(restarts, after, np.where(falls, 0.0, step))
    return step


def bin_means(
    time: FloatArray, value: FloatArray, offsets: IntArray, counter: BoolArray, edges: FloatArray
) -> FloatArray:
    """Mean of each gauge and mean rate of each counter in each bin.

    Parameters
    ----------
    time : ndarray of shape (n_samples,), seconds
        Ascending within each series.
    value : ndarray of shape (n_samples,)
        Without NaN.
    offsets : ndarray of shape (n_series + 1,), int
        Series ``i`` owns the samples ``offsets[i]:offsets[i + 1]``; none is empty.
    counter : ndarray of shape (n_series,), bool
    edges : ndarray of shape (n_bins + 1,), seconds
        Ascending, same clock as `time`.

    Returns
    -------
    ndarray of shape (n_series, n_bins)
        In the signal's unit, for counters per second; NaN where the bin is not covered.
    """
    out = np.full((offsets.size - 1, edges.size - 1), np.nan)
    for rows, index, count in _blocks(offsets, edges.size):
        # Times relative to the first edge keep the digits that Unix seconds would need.
        block = _Block(time[index] - edges[0], value[index], count, counter[rows])
        out[rows] = block.means(edges - edges[0])
    return out


def codes_of_values(value: FloatArray) -> IntArray:
    """Samples as codes; nonsense below 0 or beyond `MAX_CODE` becomes the nearest code."""
    return np.clip(value, 0, MAX_CODE).astype(np.int64)


def bin_codes(time: FloatArray, value: FloatArray, offsets: IntArray, edges: FloatArray) -> FloatArray:
    """Largest code of each series in each bin.

    Parameters
    ----------
    time, value, offsets, edges
        As in `bin_means`.

    Returns
    -------
    ndarray of shape (n_series, n_bins)
    """
    out = np.full((offsets.size - 1, edges.size - 1), np.nan)
    codes = codes_of_values(value)
    for rows, index, count in _blocks(offsets, edges.size):
        block_time = time[index]
        first, last = _shown_samples(block_time, count, edges)
        seen = first < last
        begin = np.arange(rows.size)[:, None] * index.shape[1]
        pairs = np.column_stack([(begin + first)[seen], (begin + last)[seen]]).ravel()
        # One more cell, because a pair may end after the block's last sample.
        held = np.append(codes[index].ravel(), 0)
        largest = np.full(seen.shape, np.nan)
        if pairs.size:
            largest[seen] = np.maximum.reduceat(held, pairs)[::2]
        out[rows] = largest
    return out


def _shown_samples(time: FloatArray, count: IntArray, edges: FloatArray) -> tuple[IntArray, IntArray]:
    """Range of samples per bin, with the one that still holds at the bin's left edge."""
    gap = np.diff(time, axis=1)
    interval = _usual_interval(gap, count)[:, None]
    lasts = np.where((gap > MOMENT) & (gap <= GAP_INTERVALS * interval), gap, interval)
    until = time + np.concatenate([lasts, interval], axis=1)
    before = _samples_before(time, count, edges)
    first, last = before[:, :-1], before[:, 1:]
    holds = np.take_along_axis(until, np.maximum(first - 1, 0), axis=1) > edges[:-1]
    return first - ((first > 0) & holds), last


def _blocks(offsets: IntArray, n_edges: int) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """Series of similar length as rectangles of sample positions.

    Yields
    ------
    rows : ndarray of shape (n_rows,), int
        The series in this block.
    index : ndarray of shape (n_rows, width), int
        Their samples. Shorter series repeat their last one, which spans no time and adds nothing.
    count : ndarray of shape (n_rows,), int
        How many samples are real.
    """
    counts = np.diff(offsets)
    order = np.argsort(counts, kind="stable")
    ascending = counts[order]
    begin = 0
    while begin < order.size:
        shortest = int(ascending[begin])
        widest = max(2, shortest + shortest // 4)
        similar = int(np.searchsorted(ascending, widest, side="right"))
        end = min(similar, begin + max(1, BLOCK_CELLS // max(widest, n_edges)))
        rows = order[begin:end]
        count = ascending[begin:end]
        width = max(2, int(count[-1]))
        index = offsets[rows][:, None] + np.minimum(np.arange(width), count[:, None] - 1)
        yield rows, index, count
        begin = end


class _Block:
    """Series of similar length as a rectangle: known time and integral up to any moment.

    Parameters
    ----------
    time, value : ndarray of shape (n_rows, width)
    count : ndarray of shape (n_rows,), int
    counter : ndarray of shape (n_rows,), bool
    """

    def __init__(self, time: FloatArray, value: FloatArray, count: IntArray, counter: BoolArray) -> None:
        self.time, self.value, self.count = time, value, count
        gap = np.diff(time, axis=1)
        self.interval = _usual_interval(gap, count)
        known = (gap > MOMENT) & (gap <= GAP_INTERVALS * self.interval[:, None])
        self.width = np.where(known, gap, 0.0)
        before, after = value[:, :-1], value[:, 1:]
        inverse = np.divide(1.0, gap, out=np.zeros_like(gap), where=known)
        rate = increments(value) * inverse
        rows = counter[:, None]
        # Within an interval the integrand is level + slope * (time since its first sample).
        self.level = np.where(rows, rate, before)
        self.slope = np.where(rows, 0.0, (after - before) * inverse)
        area = self.width * (self.level + 0.5 * self.slope * self.width)
        self.known_before = _running(self.width)
        self.area_before = _running(area)
        self.head = np.where(counter, rate[:, 0], value[:, 0])
        last = np.maximum(count - 2, 0)
        self.tail = np.where(counter, rate[np.arange(count.size), last], value[:, -1])
        self.has_head = ~counter | known[:, 0]
        self.has_tail = ~counter | known[np.arange(count.size), last]
        self.counter = counter

    def means(self, edges: FloatArray) -> FloatArray:
        """Integral over known time, bin by bin; shape (n_rows, n_bins)."""
        n_before = _samples_before(self.time, self.count, edges)
        known, area = self._up_to(edges, n_before)
        covered, total = np.diff(known, axis=1), np.diff(area, axis=1)
        enough = covered > 1e-9 * np.diff(edges) + 1e-12
        out: FloatArray = np.full(total.shape, np.nan)
        np.divide(total, covered, out=out, where=enough)
        lone = ~enough & (np.diff(n_before, axis=1) > 0) & ~self.counter[:, None]
        if lone.any():
            # A gauge's single sample between two gaps is the bin's value.
            row, column = np.nonzero(lone)
            out[row, column] = self.value[row, n_before[row, column + 1] - 1]
        return out

    def _up_to(self, edges: FloatArray, n_before: IntArray) -> tuple[FloatArray, FloatArray]:
        """Known time and integral from the first sample to each edge (negative before it)."""
        row = np.arange(self.count.size)[:, None]
        at = np.clip(n_before - 1, 0, self.width.shape[1] - 1)
        since = np.clip(edges - self.time[row, at], 0.0, self.width[row, at])
        known = self.known_before[row, at] + since
        area = self.area_before[row, at] + since * (self.level[row, at] + 0.5 * self.slope[row, at] * since)
        reach = self.interval[:, None]
        early = np.clip(self.time[:, :1] - edges, 0.0, reach * self.has_head[:, None])
        late = np.clip(edges - self.time[:, -1:], 0.0, reach * self.has_tail[:, None])
        known += late - early
        area += late * self.tail[:, None] - early * self.head[:, None]
        return known, area


def _samples_before(time: FloatArray, count: IntArray, edges: FloatArray) -> IntArray:
    """Real samples strictly before each edge; shape (n_rows, n_edges)."""
    n_rows, width = time.shape
    first_edge_after = np.searchsorted(edges, time.ravel(), side="right")
    cell = first_edge_after + np.repeat(np.arange(n_rows) * (edges.size + 1), width)
    found = np.bincount(cell, minlength=n_rows * (edges.size + 1)).reshape(n_rows, -1)
    before = np.cumsum(found[:, : edges.size], axis=1)
    # This also counts the repetitions of the last sample, so the real count is the limit.
    return np.minimum(before, count[:, None])


def _usual_interval(gap: FloatArray, count: IntArray) -> FloatArray:
    """Lower median of each row's real sampling intervals; 0 for a single sample."""
    real = np.arange(gap.shape[1]) < count[:, None] - 1
    ordered = np.sort(np.where(real, gap, np.inf), axis=1)
    middle = ordered[np.arange(count.size), np.maximum(count - 2, 0) // 2]
    # Duplicated times can make the median zero; the mean interval is then used.
    span = np.where(real, gap, 0.0).sum(axis=1)
    mean = span / np.maximum(count - 1, 1)
    usual: FloatArray = np.where(np.isfinite(middle) & (middle > 0), middle, mean)
    return usual


def _running(parts: FloatArray) -> FloatArray:
    """Sum of everything before each interval; shape as `parts`."""
    total = np.zeros_like(parts)
    np.cumsum(parts[:, :-1], axis=1, out=total[:, 1:])
    return total
