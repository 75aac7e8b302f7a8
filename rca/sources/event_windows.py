"""Windows that hold events of schedulers, and how they are joined with the window of other files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rca.errors import InvalidInput, SourceError, TooLarge
from rca.files import read_file
from rca.sources.logs.failure_tables import ONE_STOP
from rca.sources.logs.log_events import LogEvents
from rca.window.schema import COLLECTIVES, METRICS, OPS, STEPS
from rca.window.window import Window

#: Bytes of a file that is read whole.
MAX_BYTES = 64 << 20


def small_text(path: Path) -> str:
    """The whole text of a small file; errors as of `small_content`."""
    return small_content(path).decode("utf-8-sig", "replace")


def small_content(path: Path) -> bytes:
    """The whole content of a small file.

    Raises
    ------
    SourceError, TooLarge, InvalidInput
        If it cannot be read, is larger than `MAX_BYTES`, or is empty.
    """
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise TooLarge(f"{path.name} has {size:,} bytes; the limit is {MAX_BYTES:,} bytes")
        content = read_file(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not content.strip():
        raise InvalidInput(f"{path.name} is empty")
    return content


def window_of_events(events: LogEvents, job_id: str, otherwise: float, notes: Sequence[str]) -> Window:
    """A window of events without ranks.

    Parameters
    ----------
    otherwise : float, Unix seconds
        The time of events without one.
    """
    table = events.table(1, otherwise)
    times = table.column("time").to_pylist()
    end = max(times)
    window = Window.from_tables(
        {
            "job_id": job_id,
            "world_size": 1,
            "start": min(min(times), end - 1.0),
            "end": end,
        },
        STEPS.empty(),
        METRICS.empty(),
        table,
        OPS.empty(),
        COLLECTIVES.empty(),
    )
    return replace(window, notes=(*window.notes, *notes))


def with_events(window: Window, added: Window, names: str) -> Window:
    """A window with the events of another one of its job.

    They may be of another time than the window: then they are left out, with a note.

    Parameters
    ----------
    names : str
        Of the files of `added`, for the note.
    """
    begin, end = window.job.start - ONE_STOP, window.job.end + ONE_STOP
    if added.job.end < begin or added.job.start > end:
        note = f"{names}: events of another time than the window are left out"
        return replace(window, notes=(*window.notes, note))
    rows = [
        {**row, "rank": row["rank"] if (row["rank"] or 0) < window.job.world_size else None}
        for row in (*window.events.to_pylist(), *added.events.to_pylist())
    ]
    job = window.job
    if not window.steps.num_rows:
        job = job.model_copy(update={"start": min(job.start, added.job.start)})
    both = Window.from_tables(
        job, window.steps, window.metrics, sorted(rows, key=lambda row: row["time"]), window.ops,
        window.collectives,
    )  # fmt: skip
    return replace(both, notes=(*window.notes, f"events of {names} are added: {added.events.num_rows}"))
