"""Batches of scenarios that take each operation's time either from the trace or from the ideal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Mix:
    """Which times keep their trace values, scenario by scenario.

    Scenarios are evaluated on C columns that stand for data ranks. Where only one data rank differs from
    the ideal, all others are alike, and two columns, the odd one and one companion, stand for any number.

    Attributes
    ----------
    keep : ndarray of shape (n_classes, n_ops, C), bool
        Scenarios of one class keep the same operations.
    scenario_class : ndarray of shape (n_scenarios,), int32
    column : ndarray of shape (n_scenarios, C), int32
        The data rank whose trace values each column holds.
    """

    keep: BoolArray
    scenario_class: npt.NDArray[np.int32]
    column: npt.NDArray[np.int32]

    @property
    def n_scenarios(self) -> int:
        return int(self.scenario_class.size)


def whole_job(keep: Sequence[BoolArray], n_data: int) -> Mix:
    """One scenario per mask of shape (n_ops,) or (n_ops, n_data), over all data ranks."""
    masks = [mask[:, None] if mask.ndim == 1 else mask for mask in keep]
    stacked = np.stack([np.broadcast_to(mask, (mask.shape[0], n_data)) for mask in masks])
    columns = np.broadcast_to(np.arange(n_data, dtype=np.int32), (len(masks), n_data))
    return Mix(stacked, np.arange(len(masks), dtype=np.int32), np.ascontiguousarray(columns))


def one_data_rank(
    keep: BoolArray, scenario_class: npt.NDArray[np.int32], data_rank: npt.NDArray[np.int32], n_data: int
) -> Mix:
    """Scenarios in which one data rank keeps operations and all the others are ideal.

    Parameters
    ----------
    keep : ndarray of shape (n_classes, n_ops), bool
        What the odd data rank keeps.
    scenario_class, data_rank : ndarray of shape (n_scenarios,), int32
    n_data : int
        Data ranks of the job; with one there is no companion.
    """
    n_columns = 1 if n_data == 1 else 2
    masks = np.zeros((*keep.shape, n_columns), dtype=bool)
    masks[:, :, 0] = keep
    column = np.repeat(data_rank[:, None], n_columns, axis=1).astype(np.int32)
    return Mix(masks, scenario_class.astype(np.int32), column)
