"""Queue lengths are seen for a moment: a few high samples are chance, many are a queue that stands.

A healthy node that is sampled 15 times has its send queue full in one of them, because a message was on its
way just then; its mean is then thousands of bytes where its peers' is none.
"""

from __future__ import annotations

import numpy as np

from rca.telemetry.binning import BoolArray, FloatArray, IntArray

#: This share of the samples, one at least, counts no more than the next highest: a queue that stands is
#: seen more often.
CHANCE = 0.3


def without_bursts(value: FloatArray, offsets: IntArray, momentary: BoolArray) -> FloatArray:
    """Samples of momentary series with their highest ones cut to what more than a few of them show.

    Parameters
    ----------
    value : ndarray of shape (n_samples,)
        Series one after another, without NaN.
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
    counts = np.diff(offsets)
    series = np.repeat(np.arange(counts.size), counts)
    descending = np.lexsort((-value, series))
    chance = np.ceil(CHANCE * counts).astype(np.int64)
    ceiling = value[descending[offsets[:-1] + np.minimum(chance, counts - 1)]]
    return np.where(momentary[series], np.minimum(value, ceiling[series]), value)
