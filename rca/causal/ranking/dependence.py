"""Which part of a column's shift the other columns account for, read off the normal rows' covariance.

Without a graph: in a linear model, the shift of a root cause's noise moves the root cause and its
descendants, while the same shift multiplied by the precision matrix is non-zero at the root cause and its
*parents* only [1]_. A column for which both are large is the root cause. With a graph the parents' part is
taken off directly.

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

#: Normal rows are cut here before covariances are taken; units of spread.
CUT = 4.0
#: Variance added to every column: what the normal rows are never sure of.
RIDGE = 0.1
#: How wrong a slope may be far outside the range it was learned in.
SLOPE_DOUBT = 0.5


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
    # Constant columns cost nothing: adding one must not change the others' evidence.
    n_moving = int((np.diag(moments) > 0).sum())
    moments[np.diag_indices(n_columns)] += RIDGE * (1.0 + 2.0 * n_moving / n_rows)
    result: FloatArray = moments
    return result


def conditional_shifts(shift: FloatArray, moments: FloatArray) -> FloatArray:
    """Shift of every column beyond what all the others predict, in units of what they leave open.

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
    """Shift of every column beyond what its parents in the graph predict, in units of the doubt about it.

    The doubt is the noise that the parents leave on normal rows, and a share of what they predict: a slope
    learned within the usual range is no law ten spreads outside of it.

    Parameters
    ----------
    shift : ndarray of shape (n_rounds, n_columns), units of spread
    moments : ndarray of shape (n_columns, n_columns)
    parents : sequence of ndarray of int
        Per column, the columns that act on it.
    """
    result = shift / np.sqrt(np.diag(moments))
    for column, causes in enumerate(parents):
        if causes.size == 0:
            continue
        slopes = np.linalg.solve(moments[np.ix_(causes, causes)], moments[causes, column])
        left = max(float(moments[column, column] - slopes @ moments[causes, column]), RIDGE / 2)
        moved = shift[:, causes] * slopes
        doubt = np.sqrt(left + (SLOPE_DOUBT * np.abs(moved).sum(axis=1)) ** 2)
        result[:, column] = (shift[:, column] - moved.sum(axis=1)) / doubt
    return result


def resemblance(normal: FloatArray, anomalous: FloatArray, target: int) -> FloatArray:
    """Correlation of every column with the target over both frames; 0 for itself and for opposites.

    Parameters
    ----------
    normal, anomalous : ndarray of shape (n_rows, n_columns), units of spread
    target : int

    Returns
    -------
    ndarray of shape (n_columns,), 0 to 1
    """
    # Compressed, so that one extreme row does not make two columns alike.
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
