"""Batches of scenarios that take each operation's time either from the trace or from the ideal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rca.whatif.program import Program

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
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
        return float(self.work.shape[0]) * self.work.shape[2] * self.row.size


LONGEST_FOLD = 4096
"""Lanes up to which whole jobs are folded into one column; beyond, their ends would leave the cache."""


def whole_job(work: Work, ideal: FloatArray, keep: Sequence[BoolArray]) -> Mix:
    """One scenario per mask of shape (n_ops,) or (n_ops, n_data), over all data ranks.

    Parameters
    ----------
    work : ndarray of shape (n_ops, n_data, n_steps), seconds
    """
    n_ops, n_data, n_steps = work.shape
    n_scenarios = len(keep)
    if all(mask.ndim == 1 for mask in keep) and n_data * n_steps <= LONGEST_FOLD:
        masks = np.stack(keep)[:, :, None]
        folded = work.reshape(n_ops, 1, n_data * n_steps)
        return Mix(folded, ideal, masks, np.zeros((n_scenarios, 1), np.int32), n_data)
    columns = [mask[:, None] if mask.ndim == 1 else mask for mask in keep]
    masks = np.stack([np.broadcast_to(mask, (n_ops, n_data)) for mask in columns])
    row = np.broadcast_to(np.arange(n_data, dtype=np.int32), (n_scenarios, n_data))
    return Mix(work, ideal, masks, np.ascontiguousarray(row))


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
    """Result of an `each_data_rank` batch as (n_masks, n_data, n_steps)."""
    return seconds.reshape(seconds.shape[0], n_data, -1)


def one_by_one(program: Program, mix: Mix) -> list[Mix]:
    """The batch as single scenarios, for tests and for callers short of memory."""
    if mix.work.shape[0] != program.n_ops:
        raise ValueError("program and work differ in operations")
    return [
        Mix(mix.work, mix.ideal, mix.keep[k : k + 1], mix.row[k : k + 1], mix.fold)
        for k in range(mix.n_scenarios)
    ]
