"""An operation trace in memory: one row per operation, columns as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import BoolArray, IntArray, Seconds32
from rca.whatif.meta import TraceMeta


@dataclass(frozen=True)
class OpTrace:
    """Rows of known operation types, already checked.

    Attributes
    ----------
    data_rank, stage, rank, step, optype, sequence, chunk, global_chunk, microbatch : ndarray of (n_ops,), int
        `optype` is a code of `rca.whatif.optypes`; `data_rank` counts 0 .. D-1 (see `data_ranks`).
    start, duration : ndarray of shape (n_ops,), float32, seconds
        `start` counts from the first start of the row's step. Single precision on purpose: the public
        format stores it, and the published results derive from it.
    data_ranks : ndarray of shape (D,), int
        The producer's numbers of the data ranks.
    meta : TraceMeta
    notes : tuple of str
        What was repaired, dropped or assumed, with counts.
    """

    data_rank: IntArray
    stage: IntArray
    rank: IntArray
    step: IntArray
    optype: IntArray
    sequence: IntArray
    chunk: IntArray
    global_chunk: IntArray
    microbatch: IntArray
    start: Seconds32
    duration: Seconds32
    data_ranks: IntArray
    meta: TraceMeta
    notes: tuple[str, ...] = ()

    @property
    def n_ops(self) -> int:
        return int(self.start.size)

    @property
    def n_data(self) -> int:
        return int(self.data_ranks.size)

    @property
    def n_stages(self) -> int:
        return int(self.stage.max()) + 1

    def rows(self, chosen: BoolArray | IntArray, *notes: str) -> OpTrace:
        """Keep the chosen rows, with notes added."""
        columns = {name: getattr(self, name)[chosen] for name in ROW_COLUMNS}
        return replace(self, **columns, notes=self.notes + notes)

    def noted(self, *notes: str) -> OpTrace:
        """Add notes."""
        return replace(self, notes=self.notes + notes)


def distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct values, ascending, and where each value stands among them.

    As `numpy.unique` has them, but without sorting rows where the values are dense, as step numbers are.
    """
    if not values.size or int(values.max()) - int(values.min()) >= values.size:
        found, index = np.unique(values, return_inverse=True)
        return found, index.astype(np.int64, copy=False)
    low = values.min()
    offset = values - low
    present = np.bincount(offset) > 0
    return np.flatnonzero(present) + low, (np.cumsum(present) - 1)[offset]


ROW_COLUMNS: tuple[str, ...] = (
    "data_rank",
    "stage",
    "rank",
    "step",
    "optype",
    "sequence",
    "chunk",
    "global_chunk",
    "microbatch",
    "start",
    "duration",
)
