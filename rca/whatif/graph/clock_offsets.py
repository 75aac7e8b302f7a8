"""Clock offsets of all workers from groups of operations that end together, as one robust fit.

An observed end is the offset of the worker plus the level of the group. Iteratively reweighted least squares
minimise the sum of absolute residuals over all offsets and levels. Like a median, the fit follows the
majority of the groups. It also finds clocks that several workers share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rca.arrays import BoolArray, FloatArray
from rca.robust import nan_median

Gap = tuple[tuple[int, ...], bool, FloatArray]
"""One kind of group: its stages, whether it spans the data ranks, and ends of shape (n_data, len(stages))."""

ROUNDS = 40
SETTLED = 1e-6
"""Seconds. The fit ends when a round changes every offset by less."""
SMOOTHING = 1e-5
"""Seconds. Smaller residuals have equal weights."""
MAX_DENSE = 256
"""Workers. Up to this number the equations are solved as a dense matrix."""
AGREEMENT = 0.25
"""Share of an offset. A group confirms the offset if its residual is smaller."""
SLACK = 1e-3
"""Seconds. A smaller residual always confirms an offset."""
CONFIRMING_SHARE = 0.75
"""Share of the groups that must confirm an offset. One collective may end late on one worker."""


def joint_offsets(gaps: list[Gap], n_data: int, n_stages: int, smallest: float) -> FloatArray:
    """Offset of every worker, relative to the largest set of workers with equal offsets.

    Parameters
    ----------
    smallest : float, seconds
        If the ends of no group differ by more, all offsets are 0.

    Returns
    -------
    ndarray of shape (n_data, n_stages), seconds
        0 where fewer than two kinds of groups, or not enough of them, confirm it.
    """
    offsets = np.zeros((n_data, n_stages))
    residuals = _residuals(gaps, offsets)
    if not any((np.abs(residual) > smallest).any() for residual in residuals):
        return offsets
    for _ in range(ROUNDS):
        weights = [_weights(residual) for residual in residuals]
        change = _least_squares(gaps, weights, residuals, offsets.shape)
        offsets += change
        residuals = _residuals(gaps, offsets)
        if np.abs(change).max() < SETTLED:
            break
    offsets -= _commonest(offsets)
    return np.where(_confirmed(gaps, offsets), offsets, 0.0)


def _centred(values: FloatArray, weights: FloatArray, *, across: bool) -> FloatArray:
    """Values minus the weighted mean of their group. A group is a row or, with `across`, the whole array."""
    axis = None if across else 1
    total = weights.sum(axis=axis, keepdims=True)
    mean = (weights * values).sum(axis=axis, keepdims=True) / np.maximum(total, 1e-300)
    return np.asarray(values - mean)


def _residuals(gaps: list[Gap], offsets: FloatArray) -> list[FloatArray]:
    """Ends minus offsets and group medians; NaN where no end was traced."""
    residuals = []
    for stages, across, spread in gaps:
        left = spread - offsets[:, list(stages)]
        residuals.append(left - _level(left, across=across))
    return residuals


def _level(values: FloatArray, *, across: bool) -> FloatArray:
    groups = values.reshape(1, -1) if across else values
    return np.nan_to_num(nan_median(groups, axis=1))[:, None]


def _weights(residual: FloatArray) -> FloatArray:
    return np.where(np.isfinite(residual), 1.0 / np.maximum(np.abs(np.nan_to_num(residual)), SMOOTHING), 0.0)


def _least_squares(
    gaps: list[Gap], weights: list[FloatArray], residuals: list[FloatArray], shape: tuple[int, int]
) -> FloatArray:
    """Weighted solution with the levels eliminated."""
    right = np.zeros(shape)
    carried = np.zeros(shape)
    for (stages, across, _), weight, residual in zip(gaps, weights, residuals, strict=True):
        pull = weight * _centred(np.nan_to_num(residual), weight, across=across)
        _add(right, stages, pull)
        _add(carried, stages, weight)
    if right.size <= MAX_DENSE:
        return _dense(gaps, weights, right, carried)
    return _conjugate_gradients(gaps, weights, right, carried)


def _dense(gaps: list[Gap], weights: list[FloatArray], right: FloatArray, carried: FloatArray) -> FloatArray:
    n_stages = right.shape[1]
    matrix = np.zeros((right.size, right.size))
    place = np.arange(right.size).reshape(right.shape)
    for (stages, across, _), weight in zip(gaps, weights, strict=True):
        at = place[:, list(stages)]
        if across:
            at, weight = at.reshape(1, -1), weight.reshape(1, -1)
        shared = (
            weight[:, :, None] * weight[:, None, :] / np.maximum(weight.sum(axis=1), 1e-300)[:, None, None]
        )
        if len(set(stages)) == len(stages):
            # Rows are different workers, so no cell is written twice.
            matrix[at[:, :, None], at[:, None, :]] -= shared
        else:
            np.subtract.at(matrix, (at[:, :, None], at[:, None, :]), shared)
    diagonal = np.arange(right.size)
    # The equations fix offsets only up to a constant. A tiny weight towards zero makes them solvable.
    matrix[diagonal, diagonal] += carried.ravel() + 1e-9 * max(float(carried.max()), 1.0)
    return np.asarray(np.linalg.solve(matrix, right.ravel()).reshape(-1, n_stages))


def _conjugate_gradients(
    gaps: list[Gap], weights: list[FloatArray], right: FloatArray, carried: FloatArray
) -> FloatArray:
    """Solution without a matrix, preconditioned by the total weight of each worker."""

    def normal(x: FloatArray) -> FloatArray:
        out = np.zeros_like(x)
        for (stages, across, _), weight in zip(gaps, weights, strict=True):
            _add(out, stages, weight * _centred(x[:, list(stages)], weight, across=across))
        return out

    scale = 1.0 / np.maximum(carried, 1e-300) * (carried > 0)
    x = np.zeros_like(right)
    rest = right
    ahead = scale * rest
    direction = ahead
    energy = float((rest * ahead).sum())
    enough = 1e-16 * energy
    for _ in range(min(2 * x.size, 400)):
        if energy <= enough:
            break
        pushed = normal(direction)
        curvature = float((direction * pushed).sum())
        if curvature <= 0:
            break
        step = energy / curvature
        x = x + step * direction
        rest = rest - step * pushed
        ahead = scale * rest
        before, energy = energy, float((rest * ahead).sum())
        direction = ahead + energy / before * direction
    return x


def _add(totals: npt.NDArray[Any], stages: Sequence[int], values: npt.NDArray[Any]) -> None:
    """Add the columns of a group to those of its stages; a stage may occur twice."""
    for column, stage in enumerate(stages):
        totals[:, stage] += values[:, column]


def _commonest(offsets: FloatArray) -> float:
    """The offset that most workers share, within `SLACK`. Ties go to the first worker."""
    flat = offsets.ravel()
    ordered = np.sort(flat)
    inside = np.searchsorted(ordered, flat + SLACK, "right") - np.searchsorted(ordered, flat - SLACK, "left")
    centre = flat[int(np.argmax(inside))]
    return float(np.median(flat[np.abs(flat - centre) <= SLACK]))


def _confirmed(gaps: list[Gap], offsets: FloatArray) -> BoolArray:
    """Whether enough kinds of groups confirm each offset.

    A group counts only if it also has workers with a clearly different offset.
    """
    counts = np.zeros(offsets.shape, np.int64)
    agreeing = np.zeros(offsets.shape, np.int64)
    near = np.maximum(AGREEMENT * np.abs(offsets), SLACK)
    for (stages, across, spread), residual in zip(gaps, _residuals(gaps, offsets), strict=True):
        held = list(stages)
        mine = np.where(np.isfinite(spread), offsets[:, held], np.nan)
        axis = None if across else 1
        low, high = (extreme.reduce(mine, axis=axis, keepdims=True) for extreme in (np.fmin, np.fmax))
        counted = np.isfinite(mine) & (np.maximum(high - mine, mine - low) > near[:, held])
        # In a group of two, the residual is split between both members.
        off = (
            2 * np.abs(residual)
            if residual.shape[1] * (residual.shape[0] if across else 1) == 2
            else np.abs(residual)
        )
        _add(counts, held, counted)
        _add(agreeing, held, counted & (off <= near[:, held]))
    confirmed: BoolArray = (counts >= 2) & (agreeing >= CONFIRMING_SHARE * counts)
    return confirmed
