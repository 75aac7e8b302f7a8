"""Offsets of many clocks from groups of operations that really end together, as one robust problem.

An observed end is the worker's offset plus the group's level. The sum of absolute residuals is minimised
over all offsets and levels by reweighted least squares: like a median, it follows what most groups say, and
unlike corrections one worker at a time it sees clocks that several workers share.
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
"""Seconds by which a round must still move an offset."""
SMOOTHING = 1e-5
"""Seconds; residuals below it weigh alike."""
MOST_DENSE = 256
"""Workers up to which the equations are solved as a matrix."""
AGREEMENT = 0.25
"""A witness confirms an offset if it leaves less than this share of it."""
SLACK = 1e-3
"""Seconds that a witness may be off in any case."""
CONFIRMING_SHARE = 0.75
"""Share of the witnesses that must confirm: one collective may really end late on one worker."""


def joint_offsets(gaps: list[Gap], n_data: int, n_stages: int, smallest: float) -> FloatArray:
    """Offset of every worker that its groups agree on, against the largest set of workers that agree.

    Parameters
    ----------
    gaps : list of Gap
    n_data, n_stages : int
    smallest : float, seconds
        Where no group spreads further than this, nothing is solved: all offsets are 0.

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
    """Values less their group's weighted mean; groups are rows, or everything."""
    axis = None if across else 1
    total = weights.sum(axis=axis, keepdims=True)
    mean = (weights * values).sum(axis=axis, keepdims=True) / np.maximum(total, 1e-300)
    return np.asarray(values - mean)


def _residuals(gaps: list[Gap], offsets: FloatArray) -> list[FloatArray]:
    """What offsets and the best level (the median) leave of each end; NaN where there was none."""
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
    """Weighted solution. Levels are eliminated: a group only compares its members."""
    right = np.zeros(shape)
    carried = np.zeros(shape)
    for (stages, across, _), weight, residual in zip(gaps, weights, residuals, strict=True):
        pull = weight * _centred(np.nan_to_num(residual), weight, across=across)
        _add(right, stages, pull)
        _add(carried, stages, weight)
    if right.size <= MOST_DENSE:
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
            # Rows are different workers: no place is met twice.
            matrix[at[:, :, None], at[:, None, :]] -= shared
        else:
            np.subtract.at(matrix, (at[:, :, None], at[:, None, :]), shared)
    diagonal = np.arange(right.size)
    # All clocks may be shifted alike; a breath of weight on zero decides.
    matrix[diagonal, diagonal] += carried.ravel() + 1e-9 * max(float(carried.max()), 1.0)
    return np.asarray(np.linalg.solve(matrix, right.ravel()).reshape(-1, n_stages))


def _conjugate_gradients(
    gaps: list[Gap], weights: list[FloatArray], right: FloatArray, carried: FloatArray
) -> FloatArray:
    """Without the matrix, preconditioned by the weights each worker carries."""

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
    """Add the columns of a group to those of its stages, of which two may be the same."""
    for column, stage in enumerate(stages):
        totals[:, stage] += values[:, column]


def _commonest(offsets: FloatArray) -> float:
    """The offset most workers share, within `SLACK`; of equal sets, the one of the first worker."""
    flat = offsets.ravel()
    ordered = np.sort(flat)
    inside = np.searchsorted(ordered, flat + SLACK, "right") - np.searchsorted(ordered, flat - SLACK, "left")
    centre = flat[int(np.argmax(inside))]
    return float(np.median(flat[np.abs(flat - centre) <= SLACK]))


def _confirmed(gaps: list[Gap], offsets: FloatArray) -> BoolArray:
    """Whether enough kinds of groups that can tell say what was solved.

    A group can tell where it also holds workers with a clearly different offset.
    """
    witnesses = np.zeros(offsets.shape, np.int64)
    agreeing = np.zeros(offsets.shape, np.int64)
    near = np.maximum(AGREEMENT * np.abs(offsets), SLACK)
    for (stages, across, spread), residual in zip(gaps, _residuals(gaps, offsets), strict=True):
        held = list(stages)
        mine = np.where(np.isfinite(spread), offsets[:, held], np.nan)
        axis = None if across else 1
        low, high = (extreme.reduce(mine, axis=axis, keepdims=True) for extreme in (np.fmin, np.fmax))
        telling = np.isfinite(mine) & (np.maximum(high - mine, mine - low) > near[:, held])
        # Two members share their disagreement: each is the other's only witness.
        off = (
            2 * np.abs(residual)
            if residual.shape[1] * (residual.shape[0] if across else 1) == 2
            else np.abs(residual)
        )
        _add(witnesses, held, telling)
        _add(agreeing, held, telling & (off <= near[:, held]))
    confirmed: BoolArray = (witnesses >= 2) & (agreeing >= CONFIRMING_SHARE * witnesses)
    return confirmed
