"""Second pass over a long trace: put the rows of each block into the arrays of their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import BoolArray, IntArray, Seconds32
from rca.errors import InvalidTrace
from rca.whatif.graph.clock_correction import sampled_steps
from rca.whatif.long_trace.blocks import BlockedTrace, chosen_rows
from rca.whatif.long_trace.contents import TIMES, TraceContents
from rca.whatif.optypes import GC, N_TYPES
from rca.whatif.trace.reader import NoUsableRow, TracePart, numbers, trace_from_table
from rca.whatif.trace.step_shapes import StepShape, group_steps, kept_steps
from rca.whatif.trace.step_sizes import filled_enough, largest_number, pauses_note
from rca.whatif.trace.trace import OpTrace, TraceMeta


@dataclass(frozen=True)
class Layout:
    """Operations of one shape, and the steps that have this shape.

    Attributes
    ----------
    steps : ndarray of shape (n_steps,), int
    base : ndarray of shape (n_stages * N_TYPES,), int
        First operation of each stage and type.
    optype, stage, sequence : ndarray of shape (n_ops,), int
    chunks : ndarray of shape (3, n_ops), int
        Chunk within the stage, chunk within the model, and microbatch; -1 until a row is read.
    rare_pauses : bool
        Whether garbage collection is rare. Then a worker without such a row has no missing row.
    """

    steps: IntArray
    base: IntArray
    optype: IntArray
    stage: IntArray
    sequence: IntArray
    chunks: IntArray
    n_data: int
    rare_pauses: bool

    @property
    def n_ops(self) -> int:
        return int(self.optype.size)

    def places(self, trace: OpTrace, rows: BoolArray | slice, data_ranks: IntArray) -> IntArray:
        """Flat positions of rows in (n_ops, n_data); also records their chunks."""
        op = self.base[trace.stage[rows] * N_TYPES + trace.optype[rows]] + trace.sequence[rows]
        for held, values in zip(
            self.chunks, (trace.chunk, trace.global_chunk, trace.microbatch), strict=True
        ):
            held[op] = values[rows]
        data_rank = np.searchsorted(data_ranks, trace.data_ranks)[trace.data_rank[rows]]
        result: IntArray = op * self.n_data + data_rank
        return result

    def shape(self, steps: IntArray, start: Seconds32, duration: Seconds32) -> StepShape:
        """The operations at some steps, from times of shape (n_ops * n_data, n_steps)."""
        dense = [times.reshape(self.n_ops, self.n_data, -1) for times in (start, duration)]
        if self.rare_pauses:
            pauses = np.flatnonzero(self.optype == GC)
            dense[1][pauses] = np.nan_to_num(dense[1][pauses])
        return StepShape(steps, self.optype, self.stage, self.sequence, *self.chunks, *dense)


def layouts_of(found: TraceContents, notes: list[str]) -> list[Layout]:
    """Layouts of a trace, most steps first; adds notes on missing rows and dropped steps.

    Raises
    ------
    InvalidTrace
        If no step holds enough rows.
    """
    n_data, n_stages = found.ranks.shape
    notes += pauses_note(found.sizes, n_data * n_stages)
    layouts = []
    groups = group_steps(found.sizes.sizes)
    for size, members in filled_enough(found.sizes, found.steps, n_data, groups, notes):
        flat = size.ravel()
        cell = np.repeat(np.arange(flat.size), flat)
        base = np.cumsum(flat) - flat
        optype = cell % N_TYPES
        pauses = int((optype == GC).sum()) * n_data
        without = pauses - found.sizes.pauses[members]
        rare = pauses > 0 and float(without.mean()) > 0.5 * pauses
        holes = cell.size * n_data - found.sizes.rows[members] - (without if rare else 0)
        steps = found.steps[members]
        kept = kept_steps(steps, holes, cell.size * n_data, notes)
        if kept.any():
            chunks = np.full((3, cell.size), -1)
            sequence = np.arange(cell.size) - base[cell]
            layouts.append(Layout(steps[kept], base, optype, cell // N_TYPES, sequence, chunks, n_data, rare))
    if not layouts:
        raise InvalidTrace(
            "every step lacks more than half of its rows",
            hint=largest_number(found.sizes, found.steps, n_data),
        )
    return layouts


class ArrayBuilder:
    """Reads the blocks a second time, and puts their rows into arrays."""

    def __init__(
        self, file: BlockedTrace, meta: TraceMeta, found: TraceContents, layouts: list[Layout]
    ) -> None:
        self.file = file
        self.meta = meta
        self.found = found
        self.layouts = layouts
        self._places: dict[tuple[int, int], IntArray] = {}

    def keep(self, layouts: list[Layout]) -> None:
        """Restrict the next reads to these layouts."""
        self.layouts = layouts
        self._places.clear()

    def samples(self) -> list[StepShape]:
        """One shape per layout: the times of its sampled steps, and the numbers of all its steps."""
        chosen = [
            layout.steps[sampled_steps(layout.n_ops * layout.n_data, layout.steps.size)]
            for layout in self.layouts
        ]
        pieces: list[list[StepShape]] = [[] for _ in self.layouts]
        for index, piece in self.arranged(chosen):
            pieces[index].append(piece)
        samples = []
        for layout, held in zip(self.layouts, pieces, strict=True):
            steps = np.concatenate([piece.steps for piece in held])
            order = np.argsort(steps, kind="stable")
            start, duration = (
                np.concatenate([getattr(piece, name) for piece in held], axis=2)[:, :, order]
                for name in ("start", "duration")
            )
            samples.append(layout.shape(layout.steps, *map(np.ascontiguousarray, (start, duration))))
        return samples

    def arranged(self, wanted: list[IntArray]) -> Iterator[tuple[int, StepShape]]:
        """The wanted steps of every layout, block by block.

        Parameters
        ----------
        wanted : list of ndarray, int
            Step numbers per layout, ascending.

        Yields
        ------
        index : int
            Position of the layout.
        shape : StepShape
            Some of its steps.
        """
        steps = np.concatenate(wanted)
        layout = np.repeat(np.arange(len(wanted)), [part.size for part in wanted])
        order = np.argsort(steps)
        steps, layout = steps[order], layout[order]
        row_order_of = self.found.row_order[np.searchsorted(self.found.steps, steps)]
        plain: list[int] = []
        own: list[int] = []
        for position, block in enumerate(self.file.blocks):
            here = np.isin(steps, block.steps)
            if here.any():
                (plain if (row_order_of[here] >= 0).all() else own).append(position)
        for chosen, columns in ((plain, list(TIMES)), (own, self.file.columns)):
            for position, table, rows in self.file.tables(columns, chosen):
                here = np.isin(steps, self.file.blocks[position].steps)
                yield from self._block(position, table, rows, steps[here], layout[here], row_order_of[here])

    def _block(
        self,
        position: int,
        table: pa.Table,
        places: IntArray,
        steps: IntArray,
        layout: IntArray,
        row_order_of: IntArray,
    ) -> Iterator[tuple[int, StepShape]]:
        block = self.file.blocks[position]
        offsets = np.append(0, np.cumsum(block.sizes))
        in_file = np.argsort(block.steps, kind="stable")
        at = in_file[np.searchsorted(block.steps, steps, sorter=in_file)]
        times = (
            [numbers(table.column(name), null=np.nan) for name in TIMES] if (row_order_of >= 0).any() else []
        )
        trace = None
        if (row_order_of < 0).any():
            if self.file.contiguous:
                table, places = chosen_rows(table, places, offsets, np.sort(at[row_order_of < 0]))
            with suppress(NoUsableRow):
                trace = trace_from_table(table, self.meta, TracePart(places, self.found.facts.repaired))
        for index in np.unique(layout):
            mine = layout == index
            held = self.layouts[index]
            dense = [np.full((held.n_ops * held.n_data, int(mine.sum())), np.nan, np.float32) for _ in TIMES]
            if trace is not None:
                self._fill_own(held, trace, steps[mine & (row_order_of < 0)], steps[mine], dense)
            for column, k in enumerate(np.flatnonzero(mine)):
                if row_order_of[k] >= 0:
                    rows_ = slice(int(offsets[at[k]]), int(offsets[at[k] + 1]))
                    self._fill_plain(
                        int(index), int(row_order_of[k]), [time[rows_] for time in times], column, dense
                    )
            yield int(index), held.shape(steps[mine], *dense)

    def _fill_own(
        self, layout: Layout, trace: OpTrace, own: IntArray, steps: IntArray, dense: list[Seconds32]
    ) -> None:
        rows = np.isin(trace.step, own)
        place = layout.places(trace, rows, self.found.facts.rows.data_ranks)
        column = np.searchsorted(steps, trace.step[rows])
        for array, values in zip(dense, (trace.start, trace.duration), strict=True):
            array[place, column] = values[rows]

    def _fill_plain(
        self,
        index: int,
        row_order_of: int,
        times: list[npt.NDArray[np.floating]],
        column: int,
        dense: list[Seconds32],
    ) -> None:
        row_order = self.found.row_orders[row_order_of]
        if (index, row_order_of) not in self._places:
            self._places[index, row_order_of] = self.layouts[index].places(
                row_order.trace, slice(None), self.found.facts.rows.data_ranks
            )
        place = self._places[index, row_order_of]
        start, duration = times
        if row_order.rows.size < start.size:
            start, duration = start[row_order.rows], duration[row_order.rows]
        # One-dimensional indices are several times faster than pairs of indices.
        dense[0][:, column][place] = start - start.min()
        dense[1][:, column][place] = duration
