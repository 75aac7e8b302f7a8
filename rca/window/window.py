"""The in-memory telemetry window: one job's tables over a span of time, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike

import pyarrow as pa

from rca.window.encodings import arrow, directory, json
from rca.window.encodings.document import Decoded
from rca.window.encodings.json_text import uncollected
from rca.window.job import Job
from rca.window.rows.conversion import TableLike, as_table
from rca.window.rows.validation import validated
from rca.window.schema import SPECS, Scope


@dataclass(frozen=True)
class Window:
    """One validated telemetry window (format 1).

    Tables are Arrow tables in the column order and types of the format. Floats use NaN, never null,
    for "not measured". Build one with `rca.read_window` or `Window.from_tables`, which validate.

    Attributes
    ----------
    steps : pyarrow.Table
        One row per rank and step: ``rank`` int32, ``step`` int64, ``start_time`` float64 (Unix seconds,
        rank's own clock), phase durations float64 (seconds), optional load columns.
    metrics : pyarrow.Table
        Long form: ``time`` float64, ``node``, ``device``, ``name`` dictionary<string>, ``rank`` int32
        (null = not a rank's), ``value`` float64. Empty if there were none.
    events, ops : pyarrow.Table
        As in the format; empty if there were none.
    collectives : pyarrow.Table
        One row per member of a communication group: ``rank`` int32, ``group`` dictionary<string>,
        ``state`` dictionary<string> (one of `rca.window.schema.MEMBER_STATES`),
        ``sequence`` int64 (number of the last collective that it enqueued; null without one),
        ``waiting_since`` float64 (Unix seconds; NaN = does not wait), ``operation`` dictionary<string>.
    notes : tuple of str
        What the reader tolerated (unknown columns that it dropped, ...), for the quality report.
    """

    job: Job
    steps: pa.Table
    metrics: pa.Table
    events: pa.Table
    ops: pa.Table
    collectives: pa.Table
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def from_tables(
        cls,
        job: Job | Mapping[str, object],
        steps: TableLike | None = None,
        metrics: TableLike | None = None,
        events: TableLike | None = None,
        ops: TableLike | None = None,
        collectives: TableLike | None = None,
        *,
        scope: Scope = "window",
    ) -> Window:
        """Validate tables against the format and build a window.

        Parameters
        ----------
        job : Job or mapping
            Metadata, as a model or as the decoded JSON object.
        steps, metrics, events, ops, collectives : pyarrow.Table, data frame or list of rows
            In any column order. Unknown columns are dropped and listed in `notes`. Steps, metrics or
            collectives have to be there. Times may be ISO 8601 or timestamps, durations ``*_ms``.
        scope : {"window", "fragment", "stored"}
            What the rows are; see `rca.window.schema.Scope`.

        Raises
        ------
        InvalidWindow
            It names the table, the column, the first bad rows and what was expected.
        """
        given = (steps, metrics, events, ops, collectives)
        remarks: list[str] = []
        converted: dict[str, pa.Table | None] = {}
        for spec, data in zip(SPECS.values(), given, strict=True):
            table, notes = (None, []) if data is None else as_table(spec, data)
            converted[spec.name] = table
            remarks += notes
        checked, tables, more = validated(job, **converted, scope=scope)
        return cls(job=checked, notes=(*remarks, *more), **tables)

    @classmethod
    def from_json(
        cls,
        body: bytes | bytearray | memoryview,
        *,
        max_bytes: int | None = None,
        scope: Scope = "window",
    ) -> Window:
        """Decode and validate the JSON encoding.

        Parameters
        ----------
        body : bytes-like
        max_bytes : int, optional
            Limit on the body. The memory to read it has a limit of ten times as much.
        scope : {"window", "fragment", "stored"}

        Raises
        ------
        InvalidWindow
            If the body is not JSON, repeats a key in an object, or the window breaks the format.
        TooLarge
            If a limit is exceeded.
        """
        with uncollected():
            return cls._validated(json.decode(body, max_bytes=max_bytes), scope)

    @classmethod
    def from_document(cls, document: object) -> Window:
        """Validate the JSON encoding after it was parsed.

        Raises
        ------
        InvalidWindow
            If the window breaks the format.
        """
        with uncollected():
            return cls._validated(json.decoded(document))

    @classmethod
    def from_arrow(
        cls,
        body: bytes | bytearray | memoryview,
        content_type: str | None = None,
        *,
        max_bytes: int | None = None,
        scope: Scope = "window",
    ) -> Window:
        """Decode and validate the multipart Arrow encoding.

        Parameters
        ----------
        body : bytes-like
        content_type : str, optional
            The request's header. Without it the body's first line gives the boundary.
        max_bytes : int, optional
            Limit on the decoded size of the job and all tables together, checked before anything is decoded.
        scope : {"window", "fragment", "stored"}

        Raises
        ------
        InvalidWindow
            If the body is not such a multipart body, a part is damaged, or the window breaks the format.
        TooLarge
            If they would exceed `max_bytes`.
        """
        return cls._validated(arrow.decode(body, content_type, max_bytes=max_bytes), scope)

    @classmethod
    def from_directory(cls, path: str | PathLike[str]) -> Window:
        """Read and validate a window's directory.

        Raises
        ------
        SourceError
            If the directory or its ``window.json`` is missing or cannot be read.
        InvalidWindow
            If a file is damaged, ``steps.parquet`` is missing, or the window breaks the format.
        """
        return cls._validated(directory.read(path))

    @classmethod
    def _validated(cls, decoded: Decoded, scope: Scope = "window") -> Window:
        window = cls.from_tables(decoded.job, **decoded.tables, scope=scope)
        return replace(window, notes=(*decoded.notes, *window.notes))

    @property
    def tables(self) -> dict[str, pa.Table]:
        """All tables by name, in the format's order."""
        return {name: getattr(self, name) for name in SPECS}

    def to_json(self) -> bytes:
        """The JSON encoding (UTF-8, ``null`` for NaN).

        Metric samples are grouped by series, in the order in which the series first appear. Samples keep
        their order within a series.
        """
        return json.encode(self.job, self.tables)

    def to_arrow(self) -> bytes:
        """The multipart Arrow encoding as one body; `arrow.CONTENT_TYPE` names its boundary."""
        return b"".join(arrow.pieces(self.job, self.tables.items()))

    def to_directory(self, path: str | PathLike[str]) -> None:
        """Write ``window.json`` and one Parquet file per non-empty table, atomically.

        Raises
        ------
        SourceError
            If the directory holds anything but an unlabelled window, or cannot be written.
        """
        directory.write(self.job, self.tables, path)
