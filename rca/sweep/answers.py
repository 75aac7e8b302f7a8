"""Answers about the windows of an archive as a data set, partitioned by month.

Layout: ``month=2026-11/part-<digest>.parquet``. The month of a window that could not be diagnosed is
``unknown``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from rca.diagnosis.result import Cause, Diagnosis, Slowdown
from rca.sweep.archive import Found
from rca.sweep.data_set import REFUSED, TIME, DataSet, Row

#: A cause of the window, and its part of the loss.
_CAUSE = pa.struct(
    [
        ("cause", pa.string()),
        ("probability", pa.float64()),
        ("ranks", pa.list_(pa.int64())),
        ("nodes", pa.list_(pa.string())),
        ("seconds_per_step", pa.float64()),
        ("gpu_hours_lost", pa.float64()),
    ]
)
#: Columns of a row. Times are those of the window; costs are in seconds per step and in GPU-hours.
SCHEMA = pa.schema(
    [
        ("url", pa.string()),
        ("version", pa.string()),
        ("model_sha256", pa.string()),
        ("swept_at", TIME),
        ("job_id", pa.string()),
        ("window_id", pa.string()),
        ("window_start", TIME),
        ("window_end", TIME),
        ("verdict", pa.string()),
        ("failure_mode", pa.string()),
        ("failure_mode_probability", pa.float64()),
        ("abstention", pa.string()),
        ("cause", pa.string()),
        ("cause_probability", pa.float64()),
        ("owner", pa.string()),
        ("ranks", pa.list_(pa.int64())),
        ("nodes", pa.list_(pa.string())),
        ("since", TIME),
        ("seconds_per_step", pa.float64()),
        ("gpu_hours_lost", pa.float64()),
        ("causes", pa.list_(_CAUSE)),
        ("error", pa.string()),
        ("error_message", pa.string()),
        # The whole answer, as `rca diagnose --format json` prints it.
        ("document", pa.string()),
    ]
)
UNKNOWN_MONTH = "unknown"


class Answers(DataSet):
    """A data set of answers."""

    schema = SCHEMA
    maker = "model_sha256"
    holds = "answers"

    @staticmethod
    def folder_of(row: Row) -> str:
        """The month in which the window begins."""
        start: datetime | None = row["window_start"]
        return f"month={UNKNOWN_MONTH if start is None else format(start, '%Y-%m')}"

    @staticmethod
    def outcome_of(row: Row) -> str:
        """The verdict."""
        return str(row["verdict"] or REFUSED)


def row_of(found: Found, model_sha256: str, diagnosis: Diagnosis) -> Row:
    """The row of an answer."""
    first = next(iter(diagnosis.causes), None)
    place = first or next(iter(diagnosis.stragglers), None)
    return Answers.empty_row(found, model_sha256) | {
        "job_id": diagnosis.job_id,
        "window_id": diagnosis.window_id,
        "window_start": None if diagnosis.window is None else diagnosis.window.start,
        "window_end": None if diagnosis.window is None else diagnosis.window.end,
        "verdict": diagnosis.verdict,
        "failure_mode": diagnosis.failure_mode,
        "failure_mode_probability": diagnosis.failure_mode_probability[diagnosis.failure_mode],
        "abstention": None if diagnosis.abstention_reason is None else diagnosis.abstention_reason.code,
        "cause": None if first is None else first.cause,
        "cause_probability": None if first is None else first.probability,
        "owner": None if first is None else first.owner,
        "ranks": [] if place is None else place.ranks,
        "nodes": [] if place is None else place.nodes,
        "since": diagnosis.since,
        "seconds_per_step": diagnosis.slowdown.seconds_per_step,
        "gpu_hours_lost": diagnosis.slowdown.gpu_hours_lost,
        "causes": _causes(diagnosis.causes, diagnosis.slowdown),
        "document": diagnosis.to_json(),
    }


def _causes(causes: Sequence[Cause], slowdown: Slowdown) -> list[dict[str, Any]]:
    """Causes with their parts of the loss, whose sum is not above it. The first stop has all idle time."""
    idle = slowdown.gpu_hours_idle or 0.0
    priced = sum(each.seconds_per_step or 0.0 for each in causes)
    whole = max(priced, slowdown.seconds_per_step or 0.0)
    lost_per_second = ((slowdown.gpu_hours_lost or 0.0) - idle) / whole if whole else 0.0
    first_stop = next((each for each in causes if each.stops_the_job), None)
    found = []
    for each in causes:
        hours = idle if each is first_stop else None
        if each.seconds_per_step is not None:
            hours = each.seconds_per_step * lost_per_second
        found.append(
            {
                "cause": each.cause,
                "probability": each.probability,
                "ranks": each.ranks,
                "nodes": each.nodes,
                "seconds_per_step": each.seconds_per_step,
                "gpu_hours_lost": hours,
            }
        )
    return found
