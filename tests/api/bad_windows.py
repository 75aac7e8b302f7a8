"""Windows as callers get them wrong, each a small change to a right one.

Shared by the tests of the service and of the command line: both must refuse the same things.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

Document = dict[str, Any]
START = 1_700_000_000.0


def window_document(n_ranks: int = 4, n_steps: int = 6) -> Document:
    """Build a small, healthy, valid window."""
    rows = [(rank, step) for step in range(n_steps) for rank in range(n_ranks)]
    return {
        "job": {
            "format": 1,
            "window_id": "w-1",
            "job_id": "job-1",
            "world_size": n_ranks,
            "ranks": [{"rank": rank, "node": f"node-{rank // 2}"} for rank in range(n_ranks)],
            "start": START,
            "end": START + 0.2 * n_steps,
        },
        "steps": {
            "rank": [rank for rank, _ in rows],
            "step": [step for _, step in rows],
            "start_time": [START + 0.2 * step for _, step in rows],
            "forward_seconds": [0.06 + 0.0001 * rank for rank, _ in rows],
            "backward_seconds": [0.1] * len(rows),
            "communication_wait_seconds": [0.001] * len(rows),
            "step_seconds": [0.2] * len(rows),
        },
        "metrics": [
            {
                "name": "DCGM_FI_DEV_SM_CLOCK",
                "node": f"node-{rank // 2}",
                "rank": rank,
                "times": [START + 0.2 * step for step in range(n_steps)],
                "values": [1755.0] * n_steps,
            }
            for rank in range(n_ranks)
        ],
    }


class Refused(NamedTuple):
    """A body and the place its refusal must name."""

    body: bytes
    table: str
    column: str | None


def changed(change: Callable[[Document], Any]) -> bytes:
    document = window_document()
    change(document)
    return orjson.dumps(document)


def column(name: str, row: int, value: object) -> bytes:
    """Encode the window with one value of one steps column replaced."""

    def change(document: Document) -> None:
        document["steps"][name][row] = value

    return changed(change)


def scaled(table: str, names: tuple[str, ...], factor: float) -> bytes:
    def change(document: Document) -> None:
        for name in names:
            if table == "job":
                document["job"][name] *= factor
            elif table == "steps":
                document["steps"][name] = [value * factor for value in document["steps"][name]]
            else:
                for series in document["metrics"]:
                    series[name] = [value * factor for value in series[name]]

    return changed(change)


def raw(text: str, by: str) -> bytes:
    """Replace text in the encoded window: for what a JSON encoder refuses to write."""
    encoded = orjson.dumps(window_document()).decode()
    assert text in encoded
    return encoded.replace(text, by, 1).encode()


def column_text(value: str) -> bytes:
    """Encode the window with the first rank replaced by a JSON text."""
    return raw('"rank":[0,', f'"rank":[{value},')


def nested(levels: int, kind: str = "list") -> bytes:
    """Encode the window with a hint of so many levels; a JSON encoder refuses to write it."""
    left, right = ("[" * levels, "]" * levels) if kind == "list" else ('{"a":' * levels, "}" * levels)
    return raw('"world_size"', f'"hints":{{"a":{left}0{right}}},"world_size"')


PHASES = ("forward_seconds", "backward_seconds", "communication_wait_seconds", "step_seconds")
WHOLE = orjson.dumps(window_document())
REFUSED = {
    "truncated json": Refused(WHOLE[:-40], "window", None),
    "not json": Refused(b"rank,step\n0,1\n", "window", None),
    "an array": Refused(b"[1, 2]", "window", None),
    "not utf-8": Refused(b'{"job": "\xff\xfe"}', "window", None),
    "deep nesting": Refused(b'{"job":' + b"[" * 100_000, "window", None),
    "no steps and no metrics": Refused(changed(lambda d: (d.pop("steps"), d.pop("metrics"))), "steps", None),
    "steps as rows": Refused(changed(lambda d: d.update(steps=[{"rank": 0}])), "steps", None),
    "rank as text": Refused(column("rank", 0, "zero"), "steps", "rank"),
    "rank as fraction": Refused(column("rank", 0, 0.5), "steps", "rank"),
    "world size as text": Refused(changed(lambda d: d["job"].update(world_size="4")), "job", "world_size"),
    "columns of unequal length": Refused(changed(lambda d: d["steps"]["rank"].pop()), "steps", None),
    "NaN literal": Refused(raw('"forward_seconds":[0.06', '"forward_seconds":[NaN'), "window", None),
    "infinite duration": Refused(raw('"forward_seconds":[0.06', '"forward_seconds":[1e999'), "window", None),
    "negative duration": Refused(column("forward_seconds", 3, -0.01), "steps", "forward_seconds"),
    "duplicate row": Refused(column("rank", 1, 0), "steps", "step"),
    "rank beyond the world size": Refused(column("rank", 0, 4), "steps", "rank"),
    "negative rank": Refused(column("rank", 0, -1), "steps", "rank"),
    "unknown format": Refused(changed(lambda d: d["job"].update(format=2)), "job", "format"),
    "metric of an unknown rank": Refused(
        changed(lambda d: d["metrics"][0].update(rank=9)), "metrics", "rank"
    ),
    "clock in milliseconds": Refused(scaled("steps", ("start_time",), 1e3), "steps", "start_time"),
    "durations in milliseconds": Refused(scaled("steps", PHASES, 1e3), "steps", None),
    "metric clock in milliseconds": Refused(scaled("metrics", ("times",), 1e3), "metrics", "time"),
    "bounds in milliseconds": Refused(scaled("job", ("start", "end"), 1e3), "job", "start"),
    "world size against parallelism": Refused(
        changed(lambda d: d["job"].update(parallelism={"data": 3})), "job", "world_size"
    ),
    "a million ranks": Refused(changed(lambda d: d["job"].update(world_size=10**6)), "job", "world_size"),
    "ranks that do not report": Refused(
        changed(lambda d: d["job"].update(world_size=200_000)), "job", "world_size"
    ),
    "no rows": Refused(
        changed(lambda d: d.update(steps={name: [] for name in d["steps"]}, metrics=[])), "steps", None
    ),
    "world size of a billion": Refused(
        changed(lambda d: d["job"].update(world_size=10**9)), "job", "world_size"
    ),
    "hint of 100 levels": Refused(nested(100), "job", "hints"),
    "hint of 253 levels": Refused(nested(253), "job", "hints"),
    "hint of 900 levels": Refused(nested(900, "object"), "job", "hints"),
    "hint of 1,100 levels": Refused(nested(1100), "window", None),
    "value of 900 levels": Refused(column_text("[" * 900 + "]" * 900), "steps", "rank"),
    "job with a repeated key": Refused(raw('"job_id"', '"job_id":"x","job_id"'), "window", None),
    "repeated column": Refused(raw('"rank":[0,', '"rank":[],"rank":[0,'), "window", None),
    "repeated table": Refused(raw('"steps":', '"steps":{},"steps":'), "window", None),
    "name of a megabyte": Refused(raw('"steps":', f'"{"x" * 1_000_000}":0,"steps":'), "window", None),
    "number of 100 digits": Refused(column_text("9" * 100), "steps", "rank"),
    "number of 5,000 digits": Refused(column_text("9" * 5000), "window", None),
    "lone surrogate in a name": Refused(raw('"job_id":"job-1"', '"job_id":"\\ud800"'), "window", None),
}
