"""A window as one JSON document: columns of numbers, metrics by series, ``null`` for NaN."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from rca.errors import InvalidWindow, TooLarge
from rca.window.encodings.document import Decoded, job_fields, json_kind
from rca.window.encodings.json_tables import table_from_columns, table_from_rows, table_from_series
from rca.window.encodings.json_text import MEMORY_PER_BYTE, Text, parsed_json
from rca.window.grouping import codes_of, contiguous_order, ranks_of, run_starts, series_numbers
from rca.window.job import Job
from rca.window.schema import COLLECTIVES, EVENTS, METRICS, OPS, STEPS, SUFFICIENT

Reader = Callable[[Any], tuple[pa.Table, list[str]]]
_READERS: Mapping[str, Reader] = {
    "steps": lambda value: table_from_columns(STEPS, value),
    "metrics": lambda value: table_from_series(METRICS, value),
    "events": lambda value: table_from_rows(EVENTS, value),
    "ops": lambda value: table_from_columns(OPS, value),
    "collectives": lambda value: table_from_columns(COLLECTIVES, value),
}


def decode(body: Text, *, max_bytes: int | None = None) -> Decoded:
    """Parse a JSON window; nothing but its JSON types is checked.

    Raises
    ------
    InvalidWindow
        With the byte position if the body is not JSON (``table`` is ``window``). Otherwise with the
        table, column and rows that have a wrong type.
    TooLarge
        If the body has more than `max_bytes`, or would take `MEMORY_PER_BYTE` times as much when it is read.
    """
    if max_bytes is None:
        return decoded(parsed_json(body, "window"))
    if len(body) > max_bytes:
        raise TooLarge(f"the JSON has {len(body):,} bytes; the limit is {max_bytes:,}")
    return decoded(parsed_json(body, "window", max_memory=MEMORY_PER_BYTE * max_bytes))


def decoded(document: Any) -> Decoded:
    """The tables of a parsed document.

    Raises
    ------
    InvalidWindow
        With the table, column and rows that have a wrong type.
    """
    if not isinstance(document, dict):
        raise InvalidWindow(f"is a JSON {json_kind(document)}", table="window", expected="an object")
    unknown = sorted(set(document) - {"job", *_READERS})
    if unknown:
        raise InvalidWindow(
            f"has an unknown member {unknown[0]!r}",
            table="window",
            column=unknown[0],
            expected="job, steps and any of metrics, events, ops, collectives",
        )
    if document.get("job") is None:
        raise InvalidWindow("is missing from the document", table="job", expected="the member job")
    if all(document.get(name) is None for name in SUFFICIENT):
        raise InvalidWindow(
            "is missing from the document", table="steps", expected=f"a member of {', '.join(SUFFICIENT)}"
        )
    tables: dict[str, pa.Table] = {}
    notes: list[str] = []
    for name, reader in _READERS.items():
        if document.get(name) is not None:
            tables[name], remarks = reader(document[name])
            notes += remarks
    return Decoded(document["job"], tables, tuple(notes))


def encode(job: Job, tables: Mapping[str, pa.Table]) -> bytes:
    """The window as UTF-8 JSON.

    Metric samples are grouped by series, in the order in which the series first appear. Samples keep their
    order within a series.
    """
    document: dict[str, Any] = {"job": job_fields(job)}
    if tables["steps"].num_rows:
        document["steps"] = _columns(tables["steps"])
    if tables["metrics"].num_rows:
        document["metrics"] = _series(tables["metrics"])
    if tables["events"].num_rows:
        document["events"] = [
            {key: value for key, value in row.items() if value is not None}
            for row in tables["events"].to_pylist()
        ]
    if tables["ops"].num_rows:
        document["ops"] = _columns(tables["ops"])
    if tables["collectives"].num_rows:
        document["collectives"] = _columns(tables["collectives"])
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _columns(table: pa.Table) -> dict[str, Any]:
    held: dict[str, Any] = {}
    for name in table.column_names:
        column = table.column(name)
        texts = pa.types.is_dictionary(column.type)
        held[name] = column.to_pylist() if texts else np.ascontiguousarray(column.to_numpy())
    return held


def _series(metrics: pa.Table) -> list[dict[str, Any]]:
    labels = {field: codes_of(metrics.column(field)) for field in ("name", "node", "device")}
    rank = ranks_of(metrics.column("rank"))
    number, n_series = series_numbers([*(codes for codes, _ in labels.values()), rank])
    time = metrics.column("time").to_numpy()
    value = metrics.column("value").to_numpy()
    order = contiguous_order(number, n_series)
    if order is not None:
        number, time, value = number[order], time[order], value[order]
    starts = run_starts(number)
    ends = np.append(starts[1:], number.size)
    held = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        row = start if order is None else int(order[start])
        series: dict[str, Any] = {
            field: texts[codes[row]] for field, (codes, texts) in labels.items() if codes[row] >= 0
        }
        if rank[row] >= 0:
            series["rank"] = int(rank[row])
        series["times"] = np.ascontiguousarray(time[start:end])
        series["values"] = np.ascontiguousarray(value[start:end])
        held.append(series)
    return held
