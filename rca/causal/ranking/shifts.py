"""How far each column moved, and how sure that is: block-bootstrap rounds of the locations' difference.

Every later piece of evidence is a function of these locations, so that one matrix product per frame pays for
all of the intervals.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.robust import nan_quantile

#: Rounds of the bootstrap; the first row of every result is the estimate itself.
ROUNDS = 200
#: A column's rows are cut at these quantiles before they are averaged.
CUT = 0.02
#: Rows are cut here before their noise is measured; units of spread.
NOISE_CUT = 4.0
#: Memory beyond this would leave a trend no noise to stand out from.
MOST_MEMORY = 0.95
#: Peaks are read here: high enough to see what comes and goes, not the single highest row of many.
PEAK = 0.95


def locations(normal: FloatArray, anomalous: FloatArray, seed: int, rounds: int = ROUNDS) -> FloatArray:
    """Anomalous minus normal location, resampled.

    Parameters
    ----------
    normal : ndarray of shape (n_normal, n_columns), units of spread
    anomalous : ndarray of shape (n_anomalous, n_columns), units of spread
    seed : int
    rounds : int

    Returns
    -------
    ndarray of shape (1 + rounds, n_columns), units of spread
        Row 0 is the estimate. Rows are resampled in blocks, as neighbouring samples resemble each other.
    """
    rng = np.random.default_rng(seed)
    found = _means(anomalous, _weights(anomalous.shape[0], rounds, rng))
    found -= _means(normal, _weights(normal.shape[0], rounds, rng))
    # k blocks show (k - 1) / k of the variance only, one block none: normal noise stands in for the rest.
    n_rows = anomalous.shape[0]
    missed = np.sqrt(_noise(normal)[0] / (n_rows * _blocks(n_rows)[1]))
    found[1:] += rng.standard_normal(found[1:].shape) * missed
    return found


def doubt(normal: FloatArray, anomalous: FloatArray) -> FloatArray:
    """Standard error of a shift on a normal day over as many rows, shape (n_columns,), units of spread.

    A first-order memory is allowed for: a column that wanders slowly has fewer independent rows than rows.
    """
    variance, memory = _noise(normal)
    shares = sum(1.0 / np.isfinite(rows).sum(axis=0) for rows in (normal, anomalous))
    result: FloatArray = np.sqrt(variance * np.minimum((1 + memory) / (1 - memory) * shares, 1.0 + shares))
    return result


def peaks(normal: FloatArray, anomalous: FloatArray) -> FloatArray:
    """How much higher a column gets than it usually gets, shape (n_columns,), units of spread."""
    return nan_quantile(anomalous, PEAK) - np.maximum(nan_quantile(normal, PEAK), 0.0)


def _noise(normal: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Variance and lag-one correlation of the normal rows, gaps taken as usual values."""
    cut = np.clip(normal, -NOISE_CUT, NOISE_CUT)
    known = np.isfinite(cut)
    count = known.sum(axis=0)
    away = np.where(known, cut - np.where(known, cut, 0.0).sum(axis=0) / count, 0.0)
    variance = (away**2).sum(axis=0) / count
    following = (away[1:] * away[:-1]).sum(axis=0) / count
    memory = np.divide(following, variance, out=np.zeros_like(variance), where=variance > 0)
    return variance, np.clip(memory, 0.0, MOST_MEMORY)


def _blocks(n_rows: int) -> tuple[int, int]:
    """Length and number of the blocks that `n_rows` are resampled in."""
    length = max(1, int(np.sqrt(n_rows)))
    return length, -(-n_rows // length)


def _weights(n_rows: int, rounds: int, rng: np.random.Generator) -> FloatArray:
    """How often each row is drawn, shape (1 + rounds, n_rows); the first round draws each once."""
    length, number = _blocks(n_rows)
    starts = rng.integers(0, n_rows, (rounds, number))
    marks = np.zeros((rounds, n_rows + length + 1))
    # Counting starts and ends, then summing up: blocks overlap, and wrap around the end.
    row = np.arange(rounds)[:, None]
    np.add.at(marks, (row, starts), 1.0)
    np.add.at(marks, (row, starts + length), -1.0)
    counts = np.cumsum(marks, axis=1)
    weights = counts[:, :n_rows]
    weights[:, :length] += counts[:, n_rows : n_rows + length]
    return np.vstack([np.ones(n_rows), weights])


def _means(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted means per column, rows beyond the cut quantiles brought back to them."""
    low, high = nan_quantile(values, CUT), nan_quantile(values, 1.0 - CUT)
    kept = np.clip(values, low, high)
    known = np.isfinite(kept)
    total = weights @ np.where(known, kept, 0.0)
    if known.all():
        result: FloatArray = total / weights.sum(axis=1, keepdims=True)
        return result
    count = weights @ known.astype(np.float64)
    mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    # A round that drew none of a sparse column's values says nothing new about it.
    return np.where(count > 0, mean, mean[0])
