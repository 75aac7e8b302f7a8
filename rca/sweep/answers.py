"""Answers about the windows of an archive as a Parquet data set, partitioned by month.

Layout: ``month=2026-11/part-<digest>.parquet``. A part is written whole or not at all, and its name follows
from its windows, so a repeated sweep replaces it. A window that could not be diagnosed has a row, too, with
an ``error``; its month is ``unknown``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rca.diagnosis.result import Cause, Diagnosis, Slowdown
from rca.errors import RcaError, SourceError
from rca.sweep.archive import Found, file_system, using
from rca.telemetry.files import replace_file

_TIME = pa.timestamp("us", tz="UTC")
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
        ("swept_at", _TIME),
        ("job_id", pa.string()),
        ("window_id", pa.string()),
        ("window_start", _TIME),
        ("window_end", _TIME),
        ("verdict", pa.string()),
        ("failure_mode", pa.string()),
        ("failure_mode_probability", pa.float64()),
        ("abstention", pa.string()),
        ("cause", pa.string()),
        ("cause_probability", pa.float64()),
        ("owner", pa.string()),
        ("ranks", pa.list_(pa.int64())),
        ("nodes", pa.list_(pa.string())),
        ("since", _TIME),
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
Row = dict[str, Any]


def row_of(found: Found, model_sha256: str, diagnosis: Diagnosis) -> Row:
    """The row of an answer."""
    first = next(iter(diagnosis.causes), None)
    place = first or next(iter(diagnosis.stragglers), None)
    return _row(found, model_sha256) | {
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
        "causes": [_cause(each, diagnosis.slowdown) for each in diagnosis.causes],
        "document": diagnosis.to_json(),
    }


def _cause(cause: Cause, slowdown: Slowdown) -> dict[str, Any]:
    idle = slowdown.gpu_hours_idle or 0.0
    hours = idle if cause.stops_the_job else None
    if (
        cause.seconds_per_step is not None
        and slowdown.seconds_per_step
        and slowdown.gpu_hours_lost is not None
    ):
        hours = (slowdown.gpu_hours_lost - idle) * min(
            1.0, cause.seconds_per_step / slowdown.seconds_per_step
        )
    return {
        "cause": cause.cause,
        "probability": cause.probability,
        "ranks": cause.ranks,
        "nodes": cause.nodes,
        "seconds_per_step": cause.seconds_per_step,
        "gpu_hours_lost": hours,
    }


def row_of_error(found: Found, model_sha256: str, error: RcaError) -> Row:
    """The row of a window that could not be diagnosed."""
    return _row(found, model_sha256) | {
        "error": error.code,
        "error_message": str(error).removeprefix(f"{found.url}: "),
    }


def _row(found: Found, model_sha256: str) -> Row:
    empty: Row = dict.fromkeys(SCHEMA.names)
    return empty | {
        "url": found.url,
        "version": found.version,
        "model_sha256": model_sha256,
        "swept_at": datetime.now(UTC),
        "ranks": [],
        "nodes": [],
        "causes": [],
    }


class Answers:
    """A data set of answers in a folder, or under a URL that fsspec reaches.

    Parameters
    ----------
    url : str
        Made with the first row.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._files, self._root = file_system(url)

    def write(self, rows: Sequence[Row]) -> None:
        """Keep rows, one part per month.

        Raises
        ------
        SourceError
            If the folder or bucket cannot be written.
        """
        months: dict[str, list[Row]] = {}
        for row in rows:
            start: datetime | None = row["window_start"]
            months.setdefault(UNKNOWN_MONTH if start is None else f"{start:%Y-%m}", []).append(row)
        for month, held in months.items():
            sink = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_pylist(held, SCHEMA), sink, compression="zstd")
            names = [f"{row['url']}\0{row['version']}\0{row['model_sha256']}" for row in held]
            digest = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:24]
            self._put(f"{self._root}/month={month}", f"part-{digest}.parquet", sink.getvalue().to_pybytes())

    def _put(self, folder: str, name: str, content: bytes) -> None:
        with using(self.url, "written"):
            self._files.makedirs(folder, exist_ok=True)
            if "://" in self.url:
                # Buckets show an object once it is whole.
                self._files.pipe_file(f"{folder}/{name}", content)
            else:
                replace_file(Path(folder, name), content)

    def known(self) -> set[tuple[str, str, str]]:
        """URL, version and model of every window that has an answer, or an error that will come again."""
        held = self.read(("url", "version", "model_sha256", "error")).to_pylist()
        return {
            (row["url"], row["version"], row["model_sha256"])
            for row in held
            if row["error"] != SourceError.code
        }

    def read(self, columns: Iterable[str] = SCHEMA.names) -> pa.Table:
        """All rows; of several about one URL only the newest.

        Parameters
        ----------
        columns : iterable of str

        Raises
        ------
        SourceError
            If the data set cannot be read, or one of its files is no part of it.
        """
        wanted = list(columns)
        with using(self.url):
            paths = sorted(path for path in self._files.find(self._root) if path.endswith(".parquet"))
            parts = [self._part(path, [*wanted, "swept_at", "url"]) for path in paths]
        if not parts:
            return SCHEMA.empty_table().select(wanted)
        table = pa.concat_tables(parts).sort_by("swept_at")
        newest = {url: place for place, url in enumerate(table.column("url").to_pylist())}
        return table.take(sorted(newest.values())).select(wanted)

    def _part(self, path: str, columns: Sequence[str]) -> pa.Table:
        content = pa.BufferReader(self._files.cat_file(path))
        return pq.read_table(content, columns=list(dict.fromkeys(columns)))
