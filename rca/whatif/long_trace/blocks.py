"""Read a Parquet trace in blocks of whole steps, in any order of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import IntArray
from rca.errors import InvalidTrace
from rca.whatif.trace.reader import numbers, open_trace
from rca.window.grouping import run_starts

Item = TypeVar("Item")

BLOCK_ROWS = 2_000_000
"""Rows. A block ends when the next step would exceed them; several blocks fit in memory."""

BATCH_ROWS = 1 << 22
"""Rows decoded at once. They exceed a block, so that most columns of a block need no copy."""


@dataclass(frozen=True)
class Block:
    """Steps that are read together.

    Attributes
    ----------
    steps : ndarray of shape (n_steps,), int
        In the order of the file.
    sizes : ndarray of shape (n_steps,), int
        Rows of each step.
    first : int
        Row of the file at which the block begins, if the rows of each step follow one another.
    """

    steps: IntArray
    sizes: IntArray
    first: int

    @property
    def n_rows(self) -> int:
        return int(self.sizes.sum())


class BlockedTrace:
    """A Parquet trace cut into blocks.

    Attributes
    ----------
    columns : list of str
        Trace columns the file has.
    contiguous : bool
        Whether the rows of each step follow one another. If not, a block reads every row group that may
        have one of its steps, so row groups are read several times.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._file, self.columns = open_trace(self.path, pre_buffer=False)
        except (OSError, pa.ArrowException) as error:
            raise InvalidTrace(f"{self.path}: not a readable Parquet trace: {error}") from error
        self.n_rows = int(self._file.metadata.num_rows)
        if not self.n_rows:
            raise InvalidTrace("operation trace has no rows")
        sizes = [self._file.metadata.row_group(g).num_rows for g in range(self._file.num_row_groups)]
        self._starts = np.append(0, np.cumsum(sizes))
        steps, counts = self._runs()
        order, inverse = np.unique(steps, return_inverse=True)
        self.contiguous = order.size == steps.size
        self.blocks = _cut(steps, counts) if self.contiguous else _cut(order, np.bincount(inverse, counts))

    def tables(
        self, columns: Sequence[str], chosen: Iterable[int] | None = None
    ) -> Iterator[tuple[int, pa.Table, IntArray]]:
        """Rows of each block, in the order of the file. The next block is read in the background.

        Parameters
        ----------
        chosen : iterable of int, optional
            Positions of blocks, ascending; all by default.

        Yields
        ------
        position : int
        table : pyarrow.Table
        rows : ndarray of shape (n_rows,), int
            Row numbers in the file.
        """
        wanted = range(len(self.blocks)) if chosen is None else sorted(chosen)
        held = list(columns)
        read = self._in_order(held, wanted) if self.contiguous else self._scattered(held, wanted)
        return _ahead(read)

    def _runs(self) -> tuple[IntArray, IntArray]:
        """Steps and row counts of each run of equal steps; from the statistics of the file if possible."""
        index = self._file.schema_arrow.names.index("step")
        runs: list[tuple[int, int]] = []
        self._bounds: list[tuple[int, int]] = []
        for group in range(self._file.num_row_groups):
            described = self._file.metadata.row_group(group)
            if not described.num_rows:
                self._bounds.append((0, -1))
                continue
            known = described.column(index).statistics
            if _one_value(known):
                here = [(int(known.min), described.num_rows)]
            else:
                here = [run for batch in self._batches(["step"], [group]) for run in _runs_of(batch)]
            self._bounds.append((min(run[0] for run in here), max(run[0] for run in here)))
            for step, count in here:
                if runs and runs[-1][0] == step:
                    count += runs.pop()[1]
                runs.append((step, count))
        steps, counts = zip(*runs, strict=True)
        return np.array(steps, np.int64), np.array(counts, np.int64)

    def _batches(self, columns: list[str], groups: Sequence[int]) -> Iterator[pa.Table]:
        try:
            for batch in self._file.iter_batches(BATCH_ROWS, row_groups=list(groups), columns=columns):
                yield pa.Table.from_batches([batch])
        except (OSError, pa.ArrowException) as error:
            raise InvalidTrace(f"{self.path}: not a readable Parquet trace: {error}") from error

    def _in_order(
        self, columns: list[str], wanted: Iterable[int]
    ) -> Iterator[tuple[int, pa.Table, IntArray]]:
        """Read the file once, without the row groups that have no wanted block."""
        batches: Iterator[pa.Table] = iter(())
        rest, at = None, -1
        for position in wanted:
            block = self.blocks[position]
            last = block.first + block.n_rows
            group = int(np.searchsorted(self._starts, block.first, side="right")) - 1
            if at < 0 or self._starts[group] > at:
                batches = self._batches(columns, range(group, self._file.num_row_groups))
                rest, at = None, int(self._starts[group])
            pieces = []
            while at < last or rest is not None:
                if rest is None:
                    rest = next(batches)
                    at += rest.num_rows
                begin = at - rest.num_rows
                if at > block.first:
                    skipped = max(block.first - begin, 0)
                    pieces.append(rest.slice(skipped, min(last, at) - begin - skipped))
                if at > last:
                    break
                rest = None
            yield position, pa.concat_tables(pieces), np.arange(block.first, last)

    def _scattered(
        self, columns: list[str], wanted: Iterable[int]
    ) -> Iterator[tuple[int, pa.Table, IntArray]]:
        """For each block, the matching rows of every row group that may have some."""
        read = columns if "step" in columns else [*columns, "step"]
        for position in wanted:
            steps = self.blocks[position].steps
            pieces, rows = [], []
            for group, (low, high) in enumerate(self._bounds):
                if not ((steps >= low) & (steps <= high)).any():
                    continue
                first = int(self._starts[group])
                for batch in self._batches(read, [group]):
                    mine = np.flatnonzero(np.isin(_step_numbers(batch), steps))
                    if mine.size:
                        pieces.append(batch.take(pa.array(mine)).select(columns))
                        rows.append(first + mine)
                    first += batch.num_rows
            yield position, pa.concat_tables(pieces), np.concatenate(rows)


def _step_numbers(table: pa.Table) -> IntArray:
    column = table.column("step")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InvalidTrace(f"column step holds no whole numbers ({column.type})")
    values = numbers(column, null=-1)
    if values.dtype.kind == "f":
        values = np.nan_to_num(values, nan=-1, posinf=-1, neginf=-1)
    return np.asarray(values, dtype=np.int64)


def _one_value(known: Any) -> bool:
    """Whether the statistics of a row group show that all its values are one whole number."""
    if known is None or not known.has_min_max or known.null_count:
        return False
    return isinstance(known.min, int) and known.min == known.max and -(1 << 63) <= known.min < 1 << 63


def _runs_of(table: pa.Table) -> Iterator[tuple[int, int]]:
    step = _step_numbers(table)
    starts = run_starts(step)
    lengths = np.diff(np.append(starts, step.size))
    yield from zip(step[starts].tolist(), lengths.tolist(), strict=True)


def _cut(steps: IntArray, counts: npt.NDArray[Any]) -> list[Block]:
    counts = counts.astype(np.int64)
    ends = np.cumsum(counts)
    blocks = []
    first = 0
    while first < steps.size:
        begin = int(ends[first] - counts[first])
        last = max(first + 1, int(np.searchsorted(ends, begin + BLOCK_ROWS, side="right")))
        blocks.append(Block(steps[first:last], counts[first:last], begin))
        first = last
    return blocks


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Fetch the next item in another thread while the current item is used."""
    end = object()
    with ThreadPoolExecutor(1) as reader:
        waiting = reader.submit(next, items, end)
        while (item := waiting.result()) is not end:
            waiting = reader.submit(next, items, end)
            yield item  # type: ignore[misc]


def chosen_rows(
    table: pa.Table, places: IntArray, offsets: IntArray, steps: IntArray
) -> tuple[pa.Table, IntArray]:
    """Rows of some steps of a block, by position, and their row numbers in the file."""
    if steps.size == offsets.size - 1:
        return table, places
    pieces = [(int(offsets[k]), int(offsets[k + 1])) for k in steps]
    chosen = pa.concat_tables([table.slice(first, last - first) for first, last in pieces])
    return chosen, np.concatenate([places[first:last] for first, last in pieces])
