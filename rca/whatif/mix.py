"""Batches of scenarios that take each operation's time either from the trace or from the ideal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rca.arrays import BoolArray, FloatArray

Work = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Mix:
    """Times and masks of a batch, in the layout the replay runs on: columns of lanes.

    A lane is one step of one data rank. Lanes of different columns meet where a program synchronises the
    data ranks; with ``fold`` > 1 a column holds that many data ranks one after the other, which meet too.

    Attributes
    ----------
    work : ndarray of shape (n_ops, n_rows, n_lanes), seconds
    ideal : ndarray of shape (n_ops,), seconds
    keep : ndarray of shape (n_scenarios, n_ops, n_columns), bool
        Where the trace's time is kept; elsewhere the ideal stands.
    row : ndarray of shape (n_scenarios, n_columns), int32
        The row of `work` each column reads.
    fold : int
    """

    work: Work
    ideal: FloatArray
    keep: BoolArray
    row: npt.NDArray[np.int32]
    fold: int = 1

    @property
    def n_scenarios(self) -> int:
        return int(self.row.shape[0])

    @property
    def n_steps(self) -> int:
        return int(self.work.shape[2]) // self.fold

    @property
    def evaluations(self) -> float:
        """Operations to evaluate, for deciding how."""
        return float(self.work.shape[0] * self.work.shape[2] * self.row.size)


LONGEST_FOLD = 4096
"""Lanes to fold into one column at a time; beyond, the ends alive would leave the second-level cache."""


def step_blocks(n_data: int, n_steps: int) -> list[slice]:
    """Slices of the steps, each short enough to fold all data ranks into one column."""
    size = max(1, LONGEST_FOLD // n_data)
    return [slice(first, min(first + size, n_steps)) for first in range(0, n_steps, size)]


def whole_job(work: Work, ideal: FloatArray, keep: Sequence[BoolArray]) -> Mix:
    """One scenario per mask of shape (n_ops,), the same for all data ranks.

    Parameters
    ----------
    work : ndarray of shape (n_ops, n_data, n_steps), seconds
        One of `step_blocks`, for long traces.
    """
    n_ops, n_data, n_steps = work.shape
    folded = work.reshape(n_ops, 1, n_data * n_steps)
    return Mix(folded, ideal, np.stack(keep)[:, :, None], np.zeros((len(keep), 1), np.int32), n_data)


def each_data_rank(work: Work, ideal: FloatArray, keep: Sequence[BoolArray]) -> Mix:
    """For every mask, the scenarios in which one data rank keeps those operations and the rest is ideal.

    All other data ranks are then alike, so two columns, the odd rank and one companion, stand for any
    number of them; and the scenarios of all data ranks are lanes of one.

    Parameters
    ----------
    work : ndarray of shape (n_ops, n_data, n_steps), seconds
    keep : sequence of ndarray of shape (n_ops,), bool

    Returns
    -------
    Mix
        Its result has shape (n_masks, n_data * n_steps): see `by_data_rank`.
    """
    n_ops, n_data, n_steps = work.shape
    masks = np.zeros((len(keep), n_ops, 1 if n_data == 1 else 2), dtype=bool)
    masks[:, :, 0] = np.stack(keep)
    lanes = work.reshape(n_ops, 1, n_data * n_steps)
    return Mix(lanes, ideal, masks, np.zeros((len(keep), masks.shape[2]), np.int32))


def by_data_rank(seconds: FloatArray, n_data: int) -> FloatArray:
    """Shape the result of an `each_data_rank` batch as (n_masks, n_data, n_steps)."""
    return seconds.reshape(seconds.shape[0], n_data, -1)
