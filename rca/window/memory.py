"""Memory that a diagnosis or a replay of a window takes, estimated from counts before any array is made.

Arrays of ranks x steps are dense, and every rank has a row of features. So few rows may need much memory if
the job is large or the steps are far apart. The coefficients are upper bounds of what was measured; see
``python -m benchmarks memory``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rca.errors import TooLarge
from rca.window.catalogue import resolve
from rca.window.grouping import ranks_of, run_starts, series_numbers
from rca.window.schema import LOAD_COLUMNS, PHASES
from rca.window.times.phases import distinct_steps
from rca.window.window import Window

Work = Literal["diagnosis", "replay"]

#: Default limit of the library, bytes. The service has a setting.
MAX_MEMORY_BYTES = 4 * 1024**3
#: Every window: buffers of the allocator; of a replay the numbers that are resampled together.
FIXED_BYTES: dict[Work, int] = {"diagnosis": 16 << 20, "replay": 32 << 20}
#: A window is held once, and a part of it while it is stored or filtered.
TABLE_COPIES = 1.05
#: Per rank: features, probabilities and places; of a replay the worker in the answer.
RANK_BYTES: dict[Work, int] = {"diagnosis": 8_000, "replay": 2_400}
#: Per rank and channel: means over bins, and scores.
CHANNEL_BYTES = 32
#: The same two where no step was timed: only exporters and records of collectives are compared.
UNTIMED_RANK_BYTES, UNTIMED_CHANNEL_BYTES = 1_500, 160
#: Per rank and step, and for each phase or load column of it.
CELL_BYTES: dict[Work, int] = {"diagnosis": 200, "replay": 190}
COLUMN_BYTES: dict[Work, int] = {"diagnosis": 26, "replay": 17}
#: Per step: series of the whole job; of a replay the numbers of the step in the answer.
STEP_BYTES: dict[Work, int] = {"diagnosis": 500, "replay": 3_000}
#: Per metric sample in the order of its series; in any other order, or if some are unknown or missing.
SAMPLE_BYTES, SCATTERED_SAMPLE_BYTES = 40, 105
#: Per sample of the longest series: a series is averaged as a whole.
MAX_BYTES = 100
#: Per series, distinct text, listed rank and event.
SERIES_BYTES, TEXT_BYTES, PLACE_BYTES, EVENT_BYTES = 290, 250, 1_000, 600

HINT = (
    "send fewer ranks, steps or metrics at once; the limit is max_memory_bytes in Python and "
    "RCA_MAX_WINDOW_MEMORY_BYTES in the service"
)


@dataclass(frozen=True)
class WindowCounts:
    """What decides the memory that work on a window takes.

    Attributes
    ----------
    ranks, steps : int
        World size, and distinct steps.
    columns : int
        Phase and load columns.
    channels : int
        Channels that the metrics may feed.
    samples, series, longest : int
        Metric samples, series, and samples of the longest series.
    in_order : bool
        Whether the samples of each series follow one another, all known.
    texts, places, events : int
        Distinct texts of all tables, listed ranks, and events.
    table_bytes : int
        Bytes of all tables.
    """

    ranks: int
    steps: int
    columns: int
    channels: int
    samples: int
    series: int
    longest: int
    in_order: bool
    texts: int
    places: int
    events: int
    table_bytes: int

    @property
    def cells(self) -> int:
        """Ranks times steps."""
        return self.ranks * self.steps

    @classmethod
    def of(cls, window: Window) -> WindowCounts:
        """Count a validated window."""
        metrics = window.metrics
        labels = [_codes(metrics.column(name)) for name in ("name", "node", "device")]
        number, n_series = series_numbers([*labels, ranks_of(metrics.column("rank"))])
        found = [resolve(name) for name in pc.unique(metrics.column("name")).to_pylist()]
        signals = {signal for signal in found if signal is not None}
        in_order = None not in found and run_starts(number).size == n_series
        return cls(
            ranks=window.job.world_size,
            steps=distinct_steps(window.steps["step"].to_numpy())[0].size if window.steps.num_rows else 0,
            columns=sum(name in PHASES or name in LOAD_COLUMNS for name in window.steps.column_names),
            channels=sum(len(signal.all_channels()) for signal in signals),
            samples=metrics.num_rows,
            series=n_series,
            longest=int(np.bincount(number).max()) if number.size else 0,
            in_order=in_order and not pc.any(pc.is_nan(metrics.column("value"))).as_py(),
            texts=sum(_n_texts(column) for table in window.tables.values() for column in table.columns),
            places=len(window.job.ranks or ()),
            events=window.events.num_rows,
            table_bytes=sum(table.nbytes for table in window.tables.values()),
        )

    def memory(self, work: Work = "diagnosis") -> int:
        """Bytes that the work takes with the window itself, at most."""
        sample = SAMPLE_BYTES if self.in_order else SCATTERED_SAMPLE_BYTES
        of_ranks = (RANK_BYTES[work] if self.steps else UNTIMED_RANK_BYTES) * self.ranks
        channel = CHANNEL_BYTES if self.steps else UNTIMED_CHANNEL_BYTES
        cell = CELL_BYTES[work] + COLUMN_BYTES[work] * self.columns
        of_cells = cell * self.cells + STEP_BYTES[work] * self.steps
        of_metrics = (
            sample * self.samples
            + MAX_BYTES * self.longest
            + SERIES_BYTES * self.series
            + channel * self.channels * self.ranks
        )
        of_texts = TEXT_BYTES * self.texts + PLACE_BYTES * self.places + EVENT_BYTES * self.events
        arrays = of_ranks + of_cells + (of_metrics if work == "diagnosis" else 0) + of_texts
        return FIXED_BYTES[work] + int(TABLE_COPIES * self.table_bytes) + arrays

    def after(self, earlier: WindowCounts) -> WindowCounts:
        """Counts of the window after the last steps of an earlier one."""
        return WindowCounts(
            ranks=self.ranks,
            steps=self.steps + min(earlier.steps, max(self.steps, 20)),
            columns=self.columns,
            channels=self.channels,
            samples=self.samples + earlier.samples,
            series=self.series + earlier.series,
            longest=self.longest + earlier.longest,
            in_order=False,
            texts=self.texts + earlier.texts,
            places=self.places + earlier.places,
            events=self.events + earlier.events,
            table_bytes=2 * (self.table_bytes + earlier.table_bytes),
        )

    def __str__(self) -> str:
        """The counts that usually matter."""
        return f"{self.ranks:,} ranks, {self.steps:,} steps, {self.samples:,} samples, {self.events:,} events"


def refuse_large(
    window: Window,
    limit: int | None,
    work: Work = "diagnosis",
    *,
    earlier: Window | None = None,
) -> None:
    """Refuse a window that needs more memory than `limit` bytes; None for no limit.

    Parameters
    ----------
    limit : int or None, bytes
    work : {"diagnosis", "replay"}
    earlier : Window, optional
        A window that is diagnosed together with it.

    Raises
    ------
    TooLarge
    """
    if limit is None:
        return
    counts = WindowCounts.of(window)
    if earlier is not None:
        counts = counts.after(WindowCounts.of(earlier))
    refuse_beyond(limit, counts.memory(work), str(counts))


def refuse_beyond(limit: int, needed: int, what: str) -> None:
    """Refuse what needs more than `limit` bytes.

    Raises
    ------
    TooLarge
    """
    if needed > limit:
        raise TooLarge(
            f"{what} need about {_mebibytes(needed)} of memory; the limit is {_mebibytes(limit)}",
            hint=HINT,
        )


def _mebibytes(size: int) -> str:
    return f"{-(-size // 2**20):,} MiB"


def _codes(column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """Dictionary codes of a text column, -1 for null."""
    if column.num_chunks == 0:
        return np.empty(0, dtype=np.int32)
    array = column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    indices = array.indices
    codes: npt.NDArray[np.int32] = (indices.fill_null(-1) if indices.null_count else indices).to_numpy()
    return codes


def _n_texts(column: pa.ChunkedArray) -> int:
    """Dictionary entries of a text column; 0 for numbers."""
    if not pa.types.is_dictionary(column.type):
        return 0
    return sum(len(chunk.dictionary) for chunk in column.chunks)
