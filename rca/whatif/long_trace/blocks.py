"""Read a Parquet trace in blocks of whole steps, in any order of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from rca.arrays import IntArray
from rca.errors import InvalidTrace
from rca.whatif.trace.reader import numbers, open_trace
from rca.window.grouping import run_starts

Item = TypeVar("Item")

BLOCK_ROWS = 1_000_000
"""Rows. A block ends with the first step that reaches them; several blocks fit in memory."""

BATCH_ROWS = 1 << 18
"""Rows decoded at once."""


class BlockedTrace:
    """A Parquet trace that is read in blocks.

    If the rows of each step follow one another, the file is read once. If not, a block reads every row group
    that may have one of its steps, so row groups are read several times.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._file, self._columns = open_trace(self.path, pre_buffer=False)
        except (OSError, pa.ArrowException) as error:
            raise InvalidTrace(f"{self.path}: not a readable Parquet trace: {error}") from error
        self.n_rows = int(self._file.metadata.num_rows)
        if not self.n_rows:
            raise InvalidTrace("operation trace has no rows")
        #: Smallest and largest step of each row group.
        self._bounds: list[tuple[int, int]] = []
        self._steps, self._counts = self._runs()

    def blocks(self) -> Iterator[tuple[pa.Table, IntArray]]:
        """Rows of each block, and their row numbers. The next block is read in the background."""
        in_order = np.unique(self._steps).size == self._steps.size
        return _ahead(self._in_order() if in_order else self._scattered())

    def _runs(self) -> tuple[IntArray, IntArray]:
        """Step and number of rows of each run of equal steps in the file."""
        steps, counts = [], []
        for group in range(self._file.num_row_groups):
            here = [_step_numbers(batch) for batch in self._batches(["step"], [group])]
            held = np.concatenate([*here, np.empty(0, np.int64)])
            starts = run_starts(held) if held.size else np.empty(0, np.int64)
            steps.append(held[starts])
            counts.append(np.diff(np.append(starts, held.size)))
            self._bounds.append((int(held.min()), int(held.max())) if held.size else (0, -1))
        every = np.concatenate(steps)
        starts = run_starts(every)
        return every[starts], np.add.reduceat(np.concatenate(counts), starts)

    def _batches(self, columns: list[str], groups: Sequence[int]) -> Iterator[pa.Table]:
        try:
            for batch in self._file.iter_batches(BATCH_ROWS, row_groups=list(groups), columns=columns):
                yield pa.Table.from_batches([batch])
        except (OSError, pa.ArrowException) as error:
            raise InvalidTrace(f"{self.path}: not a readable Parquet trace: {error}") from error

    def _in_order(self) -> Iterator[tuple[pa.Table, IntArray]]:
        ends = np.cumsum(self._counts)
        held: list[pa.Table] = []
        first = n_held = 0
        for batch in self._batches(self._columns, range(self._file.num_row_groups)):
            held.append(batch)
            n_held += batch.num_rows
            whole = int(ends[np.searchsorted(ends, first + n_held, side="right") - 1]) - first
            if (n_held >= BLOCK_ROWS and whole > 0) or first + n_held == self.n_rows:
                table = pa.concat_tables(held)
                yield table.slice(0, whole), np.arange(first, first + whole)
                held, first, n_held = [table.slice(whole)], first + whole, n_held - whole

    def _scattered(self) -> Iterator[tuple[pa.Table, IntArray]]:
        steps, place = np.unique(self._steps, return_inverse=True)
        block = np.cumsum(np.bincount(place, self._counts)) // BLOCK_ROWS
        for mine in (steps[block == number] for number in np.unique(block)):
            pieces, rows, first = [], [], 0
            for group, (low, high) in enumerate(self._bounds):
                if ((mine >= low) & (mine <= high)).any():
                    at = first
                    for batch in self._batches(self._columns, [group]):
                        chosen = np.flatnonzero(np.isin(_step_numbers(batch), mine))
                        pieces.append(batch.take(pa.array(chosen)))
                        rows.append(at + chosen)
                        at += batch.num_rows
                first += self._file.metadata.row_group(group).num_rows
            yield pa.concat_tables(pieces), np.concatenate(rows)


def _step_numbers(table: pa.Table) -> IntArray:
    column = table.column("step")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InvalidTrace(f"column step holds no whole numbers ({column.type})")
    values = numbers(column, null=-1)
    if values.dtype.kind == "f":
        values = np.nan_to_num(values, nan=-1, posinf=-1, neginf=-1)
    return np.asarray(values, dtype=np.int64)


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Fetch the next item in another thread while the current item is used."""
    end = object()
    with ThreadPoolExecutor(1) as reader:
        waiting = reader.submit(next, items, end)
        while (item := waiting.result()) is not end:
            waiting = reader.submit(next, items, end)
            yield item  # type: ignore[misc]
