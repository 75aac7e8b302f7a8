"""The in-memory telemetry window: one job's tables over one stretch of time, already validated."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike

import pyarrow as pa

from rca.telemetry.job import Job

PHASES: tuple[str, ...] = (
    "data_loading_seconds",
    "host_to_device_seconds",
    "forward_seconds",
    "backward_seconds",
    "communication_wait_seconds",
    "communication_transfer_seconds",
    "communication_seconds",
    "optimizer_seconds",
    "checkpoint_seconds",
    "gc_seconds",
    "step_seconds",
)
LOAD_COLUMNS: tuple[str, ...] = ("samples", "tokens", "sum_squared_sequence_length")


@dataclass(frozen=True)
class Window:
    """One validated telemetry window (format 1).

    Tables are Arrow tables in the column order and types of the format; floats use NaN, never null,
    for "not measured". Build one with `rca.read_window` or `Window.from_tables`, which validate.

    Attributes
    ----------
    job : Job
    steps : pyarrow.Table
        One row per rank and step: ``rank`` int32, ``step`` int64, ``start_time`` float64 (Unix seconds,
        rank's own clock), phase durations float64 (seconds), optional load columns.
    metrics : pyarrow.Table
        Long form: ``time`` float64, ``node``, ``device``, ``name`` dictionary<string>, ``rank`` int32
        (null = not a rank's), ``value`` float64. Empty if there were none.
    events, ops : pyarrow.Table
        As in the format; empty if there were none.
    notes : tuple of str
        What the reader tolerated (aliases resolved, unknown columns kept out, ...), for the quality report.
    """

    job: Job
    steps: pa.Table
    metrics: pa.Table
    events: pa.Table
    ops: pa.Table
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def from_tables(
        cls,
        job: Job | dict[str, object],
        steps: pa.Table,
        metrics: pa.Table | None = None,
        events: pa.Table | None = None,
        ops: pa.Table | None = None,
    ) -> Window:
        """Validate tables against the format and build a window.

        Raises
        ------
        InvalidWindow
            Naming the table, column, first offending rows and what was expected.
        """
        from rca.telemetry.validation import validated_window

        return validated_window(job, steps, metrics, events, ops)

    def to_json(self) -> bytes:
        """The JSON encoding (UTF-8, ``null`` for NaN)."""
        from rca.telemetry.encodings.json import encode

        return encode(self)

    def to_arrow(self) -> bytes:
        """The multipart Arrow encoding as one body; `arrow.CONTENT_TYPE` names its boundary."""
        from rca.telemetry.encodings.arrow import encode

        return encode(self)

    def to_directory(self, path: str | PathLike[str]) -> None:
        """Write ``window.json`` and one Parquet file per non-empty table, atomically."""
        from rca.telemetry.encodings.directory import write

        write(self, path)
