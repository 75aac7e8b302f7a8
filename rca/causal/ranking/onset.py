"""Onset of each column's departure: causes start before their effects."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray, IntArray

#: A cumulative sum ignores this drift per row, and rows are clipped at the second value; units of spread.
ALLOWANCE, ROW_LIMIT = 0.75, 8.0
#: Least height at which a cumulative sum counts as an alarm.
ALARM = 5.0
#: Onsets closer than this share of the anomalous rows (or one row) are simultaneous.
TOLERANCE = 0.01
#: Fewer rows give no order.
MIN_ROWS = 4


def onsets(normal: FloatArray, anomalous: FloatArray) -> IntArray:
    """Row of the anomalous frame in which each column's departure begins.

    Parameters
    ----------
    normal, anomalous : ndarray of shape (n_normal, n_columns) and (n_anomalous, n_columns)
        Units of spread, the worse direction positive.

    Returns
    -------
    ndarray of shape (n_columns,)
        ``n_anomalous`` without a departure. A one-sided cumulative sum has to exceed its maximum on the
        normal rows, so that a slowly drifting column does not start early.
    """
    n_rows = anomalous.shape[0]
    usual = _excursions(_prefix_sums(normal)).max(axis=0)
    sums = _prefix_sums(anomalous)
    alarm = _excursions(sums)[1:] > np.maximum(ALARM, usual)
    first = np.where(alarm.any(axis=0), alarm.argmax(axis=0), n_rows)
    # The departure begins at the sum's last minimum.
    before = np.arange(n_rows + 1)[:, None] <= first
    began = np.where(before, sums, np.inf).argmin(axis=0)
    found: IntArray = np.where(first < n_rows, began, n_rows).astype(np.int64)
    return found


def holds(normal: FloatArray) -> FloatArray:
    """Mean number of rows for which a column keeps a value, shape (n_columns,): some are sampled rarely."""
    changes = (np.diff(normal, axis=0) != 0).sum(axis=0)
    result: FloatArray = normal.shape[0] / (1.0 + changes)
    return result


def precedence(onset: IntArray, mass: FloatArray, held: FloatArray, n_rows: int) -> FloatArray:
    """Share of the other anomalies that begin later, minus the share that begins earlier, -1 to 1.

    Parameters
    ----------
    onset : ndarray of shape (n_columns,), rows
    mass : ndarray of shape (n_columns,)
        Weight of each column's anomaly.
    held : ndarray of shape (n_columns,), rows
        From `holds`: the order of two closer onsets is unknown.
    n_rows : int
        Anomalous rows; below `MIN_ROWS` every column gets 0.
    """
    total = float(mass.sum())
    if n_rows < MIN_ROWS or total <= 0:
        return np.zeros(onset.size)
    near = np.maximum(np.maximum.outer(held, held), max(1.0, TOLERANCE * n_rows))
    apart = onset[None, :] - onset[:, None]
    order = np.where(apart > near, 1.0, np.where(apart < -near, -1.0, 0.0))
    result: FloatArray = order @ mass / total
    return result


def _prefix_sums(values: FloatArray) -> FloatArray:
    """Sums of the first 0, 1, ... n rows, less the allowance, shape (n_rows + 1, n_columns)."""
    steps = np.where(np.isfinite(values), np.clip(values, -ROW_LIMIT, ROW_LIMIT) - ALLOWANCE, 0.0)
    return np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(steps, axis=0)])


def _excursions(sums: FloatArray) -> FloatArray:
    """Height above the lowest point so far."""
    result: FloatArray = sums - np.minimum.accumulate(sums, axis=0)
    return result
