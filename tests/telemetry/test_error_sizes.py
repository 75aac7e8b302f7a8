"""Errors quote what was sent, but never a megabyte of it."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pyarrow as pa
import pytest
from telemetry_windows import job, metrics, steps

from rca.errors import InvalidInput, RcaError
from rca.whatif.scenario import Scenario
from rca.window import Window
from rca.window.encodings import arrow
from tests.for_each import for_each

LONG = "x" * 1_000_000
MOST = 20_000


def document(**members: object) -> bytes:
    columns = {name: steps().column(name).to_pylist() for name in steps().column_names}
    return orjson.dumps({"job": job(), "steps": columns} | members)


def part(name: str) -> bytes:
    pieces = arrow.pieces(Window.from_tables(job(), steps()).job, [("steps", steps())])
    return b"".join(pieces).replace(b'name="steps"', f'name="{name}"'.encode())


CASES: dict[str, Callable[[], object]] = {
    "unknown member": lambda: Window.from_json(document(**{LONG: 1})),
    "unknown size": lambda: Window.from_json(document(job=job(parallelism={LONG: 1}))),
    "many unknown sizes": lambda: Window.from_json(
        document(job=job(parallelism={f"{LONG[:100]}{i}": 1 for i in range(5_000)}))
    ),
    "job id of a wrong type": lambda: Window.from_json(document(job=job(job_id=[LONG]))),
    "column of a wrong type": lambda: Window.from_json(document(steps={LONG: 1})),
    "ragged column": lambda: Window.from_json(document(steps={"rank": [0], LONG: [1, 2]})),
    "text where a number is due": lambda: Window.from_json(
        document(steps={"rank": [LONG], "step": [1], "start_time": [1.0], "step_seconds": [1.0]})
    ),
    "metric without values": lambda: Window.from_json(document(metrics=[{"name": LONG, "times": [1.0]}])),
    "samples of another time": lambda: Window.from_tables(job(), steps(), metrics((9e9, LONG, 1.0))),
    "event without a time": lambda: Window.from_json(document(events=[{"kind": LONG}])),
    "repeated column": lambda: Window.from_tables(
        job(), pa.Table.from_arrays([pa.array([1]), pa.array([1])], names=[LONG, LONG])
    ),
    "nested column": lambda: Window.from_tables(
        job(), steps().append_column("samples", pa.array([{LONG: 1}] * 4))
    ),
    "unknown part": lambda: Window.from_arrow(part(LONG[:10_000])),
    "scenario": lambda: Scenario.of({"name": LONG, "changes": [{"to": LONG}]}),
}


@for_each("name", CASES)
def test_no_megabyte_comes_back_in_an_error(name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        CASES[name]()
    error = refused.value
    assert len(str(error)) < MOST
    assert len(orjson.dumps({"detail": error.message} | error.details())) < MOST
    # Errors of a process travel to the service.
    assert len(orjson.dumps(error.args)) < MOST


def test_short_messages_are_not_cut() -> None:
    error = RcaError("the window is odd", hint="send another one")
    assert (error.message, error.hint, error.args) == (
        "the window is odd",
        "send another one",
        ("the window is odd",),
    )
