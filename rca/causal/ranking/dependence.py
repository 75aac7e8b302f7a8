"""The part of a column's shift that other columns explain, by the normal rows' covariance.

Without a graph: in a linear model, a shift of the root cause's noise moves the root cause and its
descendants. The same shift times the precision matrix is non-zero only at the root cause and its *parents*
[1]_. At the root cause both are large. With a graph, the parents' part is subtracted.

References
----------
.. [1] With ``x = B x + e``, the covariance is ``A D A'`` for ``A = (I - B)^-1``; a shift ``s`` of noise ``r``
   moves the mean by ``s A[:, r]``, and ``(A D A')^-1 A[:, r] = (I - B)' D^-1[:, r]``, which is row ``r`` of
   ``I - B`` over the noise variance: one at ``r``, minus its coefficients at its parents, zero elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray

#: Normal rows are clipped here before covariances are computed; units of spread.
CUT = 4.0
#: Variance added to every column, for the uncertainty of the normal rows.
RIDGE = 0.1
#: Relative error of a slope far outside the range of the normal rows.
SLOPE_ERROR = 0.5


def covariance(normal: FloatArray) -> FloatArray:
    """Regularised covariance of the normal rows, shape (n_columns, n_columns).

    Parameters
    ----------
    normal : ndarray of shape (n_normal, n_columns), units of spread
        Missing values count as usual ones.
    """
    cut = np.clip(normal, -CUT, CUT)
    known = np.isfinite(cut)
    count = np.maximum(known.sum(axis=0), 1)
    centred = np.where(known, cut - np.where(known, cut, 0.0).sum(axis=0) / count, 0.0)
    n_rows, n_columns = normal.shape
    moments = centred.T @ centred / n_rows
    # Constant columns do not count: another one must not change the evidence of the others.
    n_moving = int((np.diag(moments) > 0).sum())
    moments[np.diag_indices(n_columns)] += RIDGE * (1.0 + 2.0 * n_moving / n_rows)
    result: FloatArray = moments
    return result


def conditional_shifts(shift: FloatArray, moments: FloatArray) -> FloatArray:
    """Shift of every column beyond the prediction by all others, in units of the residual noise.

    Parameters
    ----------
    shift : ndarray of shape (n_rounds, n_columns), units of spread
    moments : ndarray of shape (n_columns, n_columns)
        From `covariance`.

    Returns
    -------
    ndarray of shape (n_rounds, n_columns)
    """
    precision = np.linalg.inv(moments)
    result: FloatArray = shift @ precision / np.sqrt(np.diag(precision))
    return result


def own_shifts(shift: FloatArray, moments: FloatArray, parents: Sequence[IntArray]) -> FloatArray:
    """Shift of every column beyond the prediction by its parents in the graph, in units of its uncertainty.

    The uncertainty is the residual noise on normal rows and a share of the prediction: the slope of the usual
    range may be wrong ten spreads outside.

    Parameters
    ----------
    shift : ndarray of shape (n_rounds, n_columns), units of spread
    moments : ndarray of shape (n_columns, n_columns)
    parents : sequence of ndarray of int
        Per column, its direct causes.
    """
    result = shift / np.sqrt(np.diag(moments))
    for column, causes in enumerate(parents):
        if causes.size == 0:
            continue
        slopes = np.linalg.solve(moments[np.ix_(causes, causes)], moments[causes, column])
        left = max(float(moments[column, column] - slopes @ moments[causes, column]), RIDGE / 2)
        predicted = shift[:, causes] * slopes
        uncertainty = np.sqrt(left + (SLOPE_ERROR * np.abs(predicted).sum(axis=1)) ** 2)
        result[:, column] = (shift[:, column] - predicted.sum(axis=1)) / uncertainty
    return result


def resemblance(normal: FloatArray, anomalous: FloatArray, target: int) -> FloatArray:
    """Correlation of every column with the target over both frames; 0 for itself and for opposites.

    Parameters
    ----------
    normal, anomalous : ndarray of shape (n_rows, n_columns), units of spread

    Returns
    -------
    ndarray of shape (n_columns,), 0 to 1
    """
    # Compressed, so that one extreme row does not make two columns similar.
    rows = np.arcsinh(np.concatenate([normal, anomalous]))
    both = np.isfinite(rows) & np.isfinite(rows[:, [target]])
    count = np.maximum(both.sum(axis=0), 1)
    theirs = _centred(rows, both, count)
    wanted = _centred(np.broadcast_to(rows[:, [target]], rows.shape), both, count)
    product = (theirs * wanted).sum(axis=0)
    size = np.sqrt((theirs**2).sum(axis=0) * (wanted**2).sum(axis=0))
    alike = np.divide(product, size, out=np.zeros_like(product), where=size > 0)
    alike[target] = 0.0
    result: FloatArray = np.maximum(alike, 0.0)
    return result


def _centred(rows: FloatArray, used: BoolArray, count: IntArray) -> FloatArray:
    filled = np.where(used, rows, 0.0)
    result: FloatArray = np.where(used, filled - filled.sum(axis=0) / count, 0.0)
    return result
