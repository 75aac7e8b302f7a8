"""Queue lengths are seen for a moment: a few high samples are chance, many are a queue that stands.

A healthy node that is sampled 15 times has its send queue full in one of them, because a message was on its
way just then; its mean is then thousands of bytes where its peers' is none.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray

#: This share of the samples, one at least, counts no more than the next highest: a queue that stands is
#: seen more often, ...
CHANCE = 0.3
#: ... or for so long: this share of the samples in a row, and at least so many.
STANDS, AT_LEAST = 0.25, 4


def without_bursts(value: FloatArray, offsets: IntArray, momentary: BoolArray) -> FloatArray:
    """Samples of momentary series with chance ones cut to what more than a few of them show.

    Parameters
    ----------
    value : ndarray of shape (n_samples,)
        Series one after another, in time order, none empty, without NaN.
    offsets : ndarray of shape (n_series + 1,), int
        Series ``i`` owns the samples ``offsets[i]:offsets[i + 1]``.
    momentary : ndarray of shape (n_series,), bool

    Returns
    -------
    ndarray of shape (n_samples,)
        The same array where no series is momentary.
    """
    if not momentary.any():
        return value
    counts = np.diff(offsets)[momentary]
    samples = np.flatnonzero(np.repeat(momentary, np.diff(offsets)))
    series = np.repeat(np.arange(counts.size), counts)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    held = value[samples]
    descending = np.lexsort((-held, series))
    chance = np.ceil(CHANCE * counts).astype(np.int64)
    ceiling = held[descending[first + np.minimum(chance, counts - 1)]][series]
    out = value.copy()
    enough = np.maximum(AT_LEAST, np.ceil(STANDS * counts))[series]
    standing = _row(held > ceiling, series) >= enough
    out[samples] = np.where(standing, held, np.minimum(held, ceiling))
    return out


def _row(high: BoolArray, series: IntArray) -> IntArray:
    """How many high samples in a row of one series each sample is among; 0 for one that is not high."""
    breaks = np.flatnonzero((np.diff(high) != 0) | (np.diff(series) != 0)) + 1
    starts = np.concatenate([[0], breaks])
    length = np.diff(np.append(starts, high.size))
    return np.where(high, np.repeat(length, length), 0)
