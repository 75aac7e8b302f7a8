"""The same window as if it had been taken at another time."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from rca.window.window import Window


def shifted(window: Window, seconds: float) -> Window:
    """Add seconds to every time of the window; negative seconds move it into the past."""
    bounds = {"start": window.job.start + seconds, "end": window.job.end + seconds}
    return replace(
        window,
        job=window.job.model_copy(update=bounds),
        steps=_shifted(window.steps, "start_time", seconds),
        metrics=_shifted(window.metrics, "time", seconds),
        events=_shifted(window.events, "time", seconds),
    )


def _shifted(table: pa.Table, column: str, seconds: float) -> pa.Table:
    place = table.column_names.index(column)
    return table.set_column(place, table.schema.field(place), pc.add(table.column(column), seconds))
