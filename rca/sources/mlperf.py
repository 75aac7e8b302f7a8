"""MLPerf training logs: the step times that one rank reports, as an earlier window or against its own past.

References
----------
MLCommons, ``mlperf_logging.mllog``: lines ``:::MLLOG {json}``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.sources.logs.text_lines import lines_of
from rca.sources.source import Source
from rca.window.rows.clock_units import LATEST_SECOND
from rca.window.window import Window

#: A window holds the newest reports.
MAX_REPORTS = 2000
MARKS = re.compile(rb":::MLLOG \{")
_WANTED = re.compile(rb':::MLLOG \{.*"tracked_stats"')
_DOCUMENT = re.compile(r":::MLLOG (\{.*\})")


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the log of one job into a window of one rank.

    Parameters
    ----------
    job_id : str
        Of the window.

    Returns
    -------
    Window
        With ``steps`` of one rank, numbered in the order of the log, because logs count samples or steps.

    Raises
    ------
    InvalidInput
        If no line has a step time.
    """
    reports: list[tuple[float, float]] = []
    without = damaged = 0
    writer: int | None = None
    for path in paths:
        for line in lines_of(path, _WANTED):
            found = _DOCUMENT.search(line.text)
            try:
                document = orjson.loads(found[1]) if found else None
            except orjson.JSONDecodeError:
                document = None
            if not isinstance(document, dict):
                damaged += 1
            elif (report := _report(document)) is None:
                without += 1
            elif not reports or line.task == writer:
                writer = line.task
                reports.append(report)
    if not reports:
        names = ", ".join(path.name for path in paths[:3])
        raise InvalidInput(
            f"{names}: an MLPerf log, but none of its lines of tracked_stats has train_step_time "
            f"({without} without, {damaged} damaged)",
            hint="throughput alone shows no step; `rca.collect` times the steps of every rank",
        )
    times: FloatArray = np.array(sorted(set(reports))[-MAX_REPORTS:])
    start = times[:, 0] - times[:, 1]
    notes = [
        "an MLPerf log has one rank, which stands for the job: it shows no straggler",
        "a step time is the mean since the report before, and steps are numbered in the order of the log",
    ]
    if damaged:
        notes.append(f"{damaged} lines of tracked_stats are damaged")
    window = Window.from_tables(
        {
            "job_id": job_id,
            "world_size": 1,
            "start": float(start.min()),
            "end": float(max(times[-1, 0], start.min() + 1e-3)),
        },
        [
            {"rank": 0, "step": step, "start_time": float(begin), "step_seconds": float(seconds)}
            for step, (begin, seconds) in enumerate(zip(start, times[:, 1], strict=True), start=1)
        ],
    )
    return replace(window, notes=(*window.notes, *notes))


def _report(document: dict[str, Any]) -> tuple[float, float] | None:
    """Unix seconds at the end of a step, and its duration in seconds; None without them."""
    value = document.get("value")
    seconds = _positive(value.get("train_step_time"), 1.0) if isinstance(value, dict) else None
    time = _positive(document.get("time_ms"), 1e3)
    if document.get("key") != "tracked_stats" or seconds is None or time is None:
        return None
    return time, seconds


def _positive(value: object, unit: float) -> float | None:
    """A positive time or duration in seconds; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value / unit if 0 < value / unit < LATEST_SECOND else None


SOURCE = Source(
    name="mlperf",
    title="MLPerf training logs (`:::MLLOG` lines with `tracked_stats`)",
    tells="whether the job as a whole became slower; an earlier window of the same job",
    lacks="ranks, phases, hardware and cause",
    recognises=lambda *_: False,
    read=read,
    marks=MARKS,
)
