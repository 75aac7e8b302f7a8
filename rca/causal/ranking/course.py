"""Share of each column's anomaly that lies outside the time of the trouble it would explain.

A cause is anomalous when its effects are, or shortly before. A column that is as extreme while they are usual
explains nothing. The effects are the column's own children on the way to the target: a slow effect may reach
the target much later than its cause began. Without a graph this is unknown, so the evidence needs one.

The time of a trouble is the run of rows with the largest sum above a threshold [1]_.

References
----------
.. [1] Levin, Kline, "The cusum test of homogeneity with an application in spontaneous abortion epidemiology",
   Statistics in Medicine 4, 1985: the maximal segment of a cumulative sum, for an epidemic that ends.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.causal.ranking.graphs import ColumnGraph
from rca.causal.ranking.onset import MIN_ROWS
from rca.robust import nan_mean

#: A cause may begin this share of the anomalous rows before its effect, and at least one row.
LEAD_SHARE = 0.2
#: A usual row's compressed excess; only what exceeds it counts.
USUAL = 1.0
#: Compressed contrast between a trouble and the other rows from which on the trouble is clear.
CLEAR = 2.0


def outside(normal: FloatArray, anomalous: FloatArray, target: int, graph: ColumnGraph) -> FloatArray:
    """Share of each column's level that it also has while its effect is usual.

    Parameters
    ----------
    normal, anomalous : ndarray of shape (n_normal, n_columns) and (n_anomalous, n_columns)
        Units of spread, in time order, the worse direction positive; NaN where nothing was measured.
    target : int
        The effect of every column for which `graph` has no nearer one that moved.

    Returns
    -------
    ndarray of shape (n_columns,), 0 to 1
        The least share over a column's effects that moved. It is less where the contrast of the effect is
        small. 0 if the effect moved no more than in normal rows, or if it was never usual. 0 as well below
        `MIN_ROWS` rows.
    """
    n_columns = anomalous.shape[1]
    if anomalous.shape[0] < MIN_ROWS:
        return np.zeros(n_columns)
    # Compressed, so that one extreme row is not the whole level.
    usual, excess = (np.arcsinh(np.maximum(rows, 0.0)) for rows in (normal, anomalous))
    every = np.arange(n_columns)
    of_target = _outside(usual, excess, every, target)
    far = np.zeros(n_columns) if of_target is None else of_target
    if not graph.known[target]:
        return far
    near = np.full(n_columns, np.inf)
    for effect in np.flatnonzero(graph.reach[:, target]):
        causes = graph.parents[effect]
        share = _outside(usual, excess, causes, int(effect)) if causes.size else None
        if share is not None:
            near[causes] = np.minimum(near[causes], share)
    return np.where(np.isfinite(near), near, far)


def _outside(usual: FloatArray, excess: FloatArray, causes: IntArray, effect: int) -> FloatArray | None:
    """Shares of some columns for one effect; None if the effect did not move."""
    course = excess[:, effect]
    threshold = min(float(np.nanmax(course)) / 2, USUAL)
    start, end, height = _trouble(course - threshold)
    if height <= _trouble(usual[:, effect] - threshold)[2]:
        return None
    n_rows = course.size
    quiet = np.ones(n_rows, dtype=np.bool_)
    quiet[max(start - max(1, int(LEAD_SHARE * n_rows)), 0) : end] = False
    if not quiet.any():
        return np.zeros(causes.size)
    members = np.append(causes, effect)
    without, within = (
        np.nan_to_num(nan_mean(rows[:, members])) for rows in (excess[quiet], excess[start:end])
    )
    clear = min(max(float(within[-1] - without[-1]) / CLEAR, 0.0), 1.0)
    left, whole = np.maximum(without - USUAL, 0.0), np.maximum(within - USUAL, 0.0)
    share = np.divide(left, whole, out=(left > 0).astype(np.float64), where=whole > 0)
    share = np.minimum(share, 1.0)
    result: FloatArray = clear * np.maximum(share[:-1] - share[-1], 0.0)
    return result


def _trouble(above: FloatArray) -> tuple[int, int, float]:
    """First row, end and sum of the run with the largest sum; gaps count as 0."""
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(above))])
    heights = sums - np.minimum.accumulate(sums)
    end = int(heights.argmax())
    return int(sums[: end + 1].argmin()), end, float(heights[end])
