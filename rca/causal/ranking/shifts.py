"""The shift of each column and its uncertainty: block-bootstrap rounds of the difference of locations.

All later evidence is a function of these locations, so one matrix product per frame serves all intervals.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.robust import nan_quantile

#: Rounds of the bootstrap; the first row of every result is the estimate itself.
ROUNDS = 200
#: A column's rows are clipped at this quantile, and at its counterpart, before they are averaged.
TAIL = 0.02
#: Rows are clipped here before their noise is measured; units of spread.
NOISE_CUT = 4.0
#: Limit on the correlation of neighbouring rows: a trend would otherwise have no noise.
MAX_MEMORY = 0.95
#: Quantile of a peak: high enough for short bursts, but not the single highest row.
PEAK = 0.95


def locations(normal: FloatArray, anomalous: FloatArray, seed: int, rounds: int = ROUNDS) -> FloatArray:
    """Anomalous minus normal location, resampled.

    Parameters
    ----------
    normal : ndarray of shape (n_normal, n_columns), units of spread
    anomalous : ndarray of shape (n_anomalous, n_columns), units of spread

    Returns
    -------
    ndarray of shape (1 + rounds, n_columns), units of spread
        Row 0 is the estimate. Rows are resampled in blocks, because neighbouring samples are similar.
    """
    rng = np.random.default_rng(seed)
    found = _means(anomalous, _weights(anomalous.shape[0], rounds, rng))
    found -= _means(normal, _weights(normal.shape[0], rounds, rng))
    # k blocks show only (k - 1) / k of the variance; normal noise is added for the rest.
    n_rows = anomalous.shape[0]
    missed = np.sqrt(_noise(normal)[0] / (n_rows * _blocks(n_rows)[1]))
    found[1:] += rng.standard_normal(found[1:].shape) * missed
    return found


def standard_error(normal: FloatArray, anomalous: FloatArray) -> FloatArray:
    """Standard error of a shift between normal rows, shape (n_columns,), units of spread.

    The correlation of neighbouring rows counts: a slowly drifting column has fewer independent rows.
    """
    variance, memory = _noise(normal)
    shares = sum(1.0 / np.isfinite(rows).sum(axis=0) for rows in (normal, anomalous))
    result: FloatArray = np.sqrt(variance * np.minimum((1 + memory) / (1 - memory) * shares, 1.0 + shares))
    return result


def peaks(normal: FloatArray, anomalous: FloatArray) -> FloatArray:
    """Peak of a column above its usual peak, shape (n_columns,), units of spread."""
    return nan_quantile(anomalous, PEAK) - np.maximum(nan_quantile(normal, PEAK), 0.0)


def _noise(normal: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Variance and lag-one correlation of the normal rows; gaps count as usual values."""
    cut = np.clip(normal, -NOISE_CUT, NOISE_CUT)
    known = np.isfinite(cut)
    count = known.sum(axis=0)
    away = np.where(known, cut - np.where(known, cut, 0.0).sum(axis=0) / count, 0.0)
    variance = (away**2).sum(axis=0) / count
    following = (away[1:] * away[:-1]).sum(axis=0) / count
    memory = np.divide(following, variance, out=np.zeros_like(variance), where=variance > 0)
    return variance, np.clip(memory, 0.0, MAX_MEMORY)


def _blocks(n_rows: int) -> tuple[int, int]:
    """Length and number of the blocks that `n_rows` are resampled in."""
    length = max(1, int(np.sqrt(n_rows)))
    return length, -(-n_rows // length)


def _weights(n_rows: int, rounds: int, rng: np.random.Generator) -> FloatArray:
    """How often each row is drawn, shape (1 + rounds, n_rows); the first round draws each once."""
    length, number = _blocks(n_rows)
    starts = rng.integers(0, n_rows, (rounds, number))
    marks = np.zeros((rounds, n_rows + length + 1))
    # Mark starts and ends of blocks, then sum up: blocks overlap, and wrap around the end.
    row = np.arange(rounds)[:, None]
    np.add.at(marks, (row, starts), 1.0)
    np.add.at(marks, (row, starts + length), -1.0)
    counts = np.cumsum(marks, axis=1)
    weights = counts[:, :n_rows]
    weights[:, :length] += counts[:, n_rows : n_rows + length]
    return np.vstack([np.ones(n_rows), weights])


def _means(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted means per column, rows clipped at the `TAIL` quantiles."""
    low, high = nan_quantile(values, TAIL), nan_quantile(values, 1.0 - TAIL)
    kept = np.clip(values, low, high)
    known = np.isfinite(kept)
    total = weights @ np.where(known, kept, 0.0)
    if known.all():
        result: FloatArray = total / weights.sum(axis=1, keepdims=True)
        return result
    count = weights @ known.astype(np.float64)
    mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    # A round without a value of a sparse column keeps its estimate.
    return np.where(count > 0, mean, mean[0])
