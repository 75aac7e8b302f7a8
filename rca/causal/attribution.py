"""Counterfactual cost of every cause: remove its part of the excess, replay the job, take the difference.

The slowdown that is left without all causes is unexplained. Shapley shares over the coalitions of causes sum
up to the explained slowdown. Collectives are barriers, so every step has a cost of its own; intervals come
from resampled steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import factorial

import numpy as np

from rca.arrays import BoolArray, FloatArray

#: All coalitions are replayed, so the smallest of more causes than these stay unexplained.
MAX_CAUSES = 6
#: Replay work (coalitions x ranks x steps) that a diagnosis may spend.
MAX_CELLS = 2.5e7
BOOTSTRAP_ROUNDS = 400
#: Neighbouring steps are similar, so they are resampled in blocks of this length.
BLOCK_STEPS = 5
#: Rounds are drawn together up to this many blocks of steps, so that memory does not grow with the window.
MAX_DRAWN = 100_000
#: Two-sided level of the intervals.
COST_LEVEL = 0.95


@dataclass(frozen=True)
class JobWork:
    """The input of a replay, from which step times follow.

    Attributes
    ----------
    own : ndarray of shape (n_ranks, n_steps), seconds
    transfer : ndarray of shape (n_steps,), seconds
    serial : ndarray of shape (n_ranks, n_steps), seconds, optional
        Part of `own` that a pipeline runs once per step; None without a pipeline.
    """

    own: FloatArray
    transfer: FloatArray
    serial: FloatArray | None = None


Replay = Callable[[JobWork], FloatArray]


@dataclass(frozen=True)
class RemovedCause:
    """The time that the job saves if one cause is set to its reference.

    Attributes
    ----------
    own : ndarray of shape (len(ranks), n_steps), seconds
        Taken off the ranks' own work.
    transfer : ndarray of shape (n_steps,), seconds
        Taken off the collectives' transfer.
    serial : ndarray of shape (len(ranks), n_steps), seconds, optional
        The part of `own` that a pipeline runs once per step; absent means 0.
    """

    cause: str
    ranks: tuple[int, ...]
    own: FloatArray
    transfer: FloatArray
    serial: FloatArray | None = None


@dataclass(frozen=True)
class Attribution:
    """Seconds per step of every removal, of the unexplained rest, and of the whole slowdown.

    Attributes
    ----------
    seconds, alone : ndarray of shape (n_removals,), seconds per step
        Shapley share, and the saving if only this cause is removed.
    intervals : ndarray of shape (n_removals, 2), seconds per step
    slowdown, unexplained : float, seconds per step
        ``seconds.sum() + unexplained == slowdown``.
    """

    seconds: FloatArray
    alone: FloatArray
    intervals: FloatArray
    slowdown: float
    unexplained: float
    slowdown_interval: tuple[float, float]


def attribute(
    work: JobWork,
    ideal: FloatArray,
    removals: Sequence[RemovedCause],
    replay: Replay,
    *,
    counted: BoolArray | None = None,
    seed: int = 0,
) -> Attribution:
    """Cost of every removal in seconds per step.

    Parameters
    ----------
    work : JobWork
        As measured.
    ideal : ndarray of shape (n_steps,), seconds
        Step time of the job without stragglers.
    removals : sequence of RemovedCause
        At most `affordable(work.own.size)` of them.
    replay : callable
        Work -> step seconds, shape (n_steps,).
    counted : ndarray of shape (n_steps,), bool, optional
        The steps that count for all means; all steps if absent.
    seed : int
        Of the bootstrap over steps.
    """
    n_coalitions = 1 << len(removals)
    steps = np.stack([replay(_without(work, removals, index)) for index in range(n_coalitions)])
    lost = steps[0] - ideal
    used = np.isfinite(lost) & np.isfinite(steps).all(axis=0)
    if counted is not None:
        used &= counted
    saved = np.maximum(steps[0] - steps, 0.0)[:, used]
    # A removal saves at most the difference to the ideal job.
    saved = np.minimum(saved, np.maximum(lost[used], 0.0))
    lost = np.maximum(lost[used], 0.0)
    if lost.size == 0:
        nothing = np.zeros(len(removals))
        return Attribution(nothing, nothing, np.zeros((len(removals), 2)), 0.0, 0.0, (0.0, 0.0))
    shares = shapley(saved) if removals else np.zeros((0, lost.size))
    rounds = resampled_means(np.vstack([shares, lost]), seed)
    low, high = np.quantile(rounds, [(1 - COST_LEVEL) / 2, (1 + COST_LEVEL) / 2], axis=1)
    seconds, slowdown = shares.mean(axis=1), float(lost.mean())
    alone = np.array([saved[1 << index].mean() for index in range(len(removals))])
    return Attribution(
        seconds=seconds,
        alone=alone,
        intervals=np.column_stack([low[:-1], high[:-1]]),
        slowdown=slowdown,
        unexplained=slowdown - float(seconds.sum()),
        slowdown_interval=(float(low[-1]), float(high[-1])),
    )


def shapley(values: FloatArray) -> FloatArray:
    """Shapley value of each player.

    Parameters
    ----------
    values : ndarray of shape (2 ** n_players, ...)
        Value of every coalition; player ``i`` is in it if bit ``i`` of the index is set.

    Returns
    -------
    ndarray of shape (n_players, ...)
        The sum over players is ``values[-1] - values[0]``.
    """
    n_players = int(values.shape[0]).bit_length() - 1
    coalitions = np.arange(values.shape[0])
    sizes = np.array([int(index).bit_count() for index in coalitions])
    shares = np.zeros((n_players, *values.shape[1:]))
    for player in range(n_players):
        without = coalitions[(coalitions >> player) & 1 == 0]
        weights = np.array(
            [
                factorial(int(size)) * factorial(n_players - int(size) - 1) / factorial(n_players)
                for size in sizes[without]
            ]
        )
        marginal = values[without | (1 << player)] - values[without]
        shares[player] = np.tensordot(weights, marginal, axes=1)
    return shares


def affordable(cells: int) -> int:
    """How many causes fit into `MAX_CELLS` together, for arrays of `cells` rank-steps."""
    return int(np.clip(np.log2(max(MAX_CELLS / max(cells, 1), 2.0)), 1, MAX_CAUSES))


def _without(work: JobWork, removals: Sequence[RemovedCause], coalition: int) -> JobWork:
    """The work with the coalition's causes at their reference, everything else unchanged."""
    if coalition == 0:
        return work
    own, transfer = work.own.copy(), work.transfer.copy()
    serial = None if work.serial is None else work.serial.copy()
    for index, removal in enumerate(removals):
        if coalition >> index & 1:
            rows = list(removal.ranks)
            own[rows] -= removal.own
            transfer -= removal.transfer
            if serial is not None and removal.serial is not None:
                serial[rows] -= removal.serial
    serial = None if serial is None else np.maximum(serial, 0.0)
    return JobWork(np.maximum(own, 0.0), np.maximum(transfer, 0.0), serial)


def resampled_means(values: FloatArray, seed: int) -> FloatArray:
    """Means of block-bootstrap resamples of consecutive steps.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_steps)

    Returns
    -------
    ndarray of shape (n_rows, BOOTSTRAP_ROUNDS)
    """
    n = values.shape[1]
    block = min(BLOCK_STEPS, n)
    n_blocks = -(-n // block)
    starts = np.random.default_rng(seed).integers(0, n, (BOOTSTRAP_ROUNDS, n_blocks))
    cumulative = np.cumsum(np.concatenate([values, values[:, :block]], axis=1), axis=1)
    cumulative = np.concatenate([np.zeros((values.shape[0], 1)), cumulative], axis=1)
    together = max(MAX_DRAWN // n_blocks, 1)
    summed = np.empty((values.shape[0], BOOTSTRAP_ROUNDS))
    for first in range(0, BOOTSTRAP_ROUNDS, together):
        rounds = slice(first, first + together)
        summed[:, rounds] = (cumulative[:, starts[rounds] + block] - cumulative[:, starts[rounds]]).sum(
            axis=2
        )
    result: FloatArray = summed / (n_blocks * block)
    return result
