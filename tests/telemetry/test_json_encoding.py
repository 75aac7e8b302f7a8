"""JSON windows: strict about types, exact about what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from telemetry_windows import START, job, metrics, window

from rca.errors import InvalidWindow
from rca.window.window import Window
from tests.for_each import for_each


def document(**changes: Any) -> dict[str, Any]:
    """Two ranks and two series; a change to None removes the member."""
    members = {
        "job": job(),
        "steps": {
            "rank": [0, 1],
            "step": [7, 7],
            "start_time": [START, START],
            "forward_seconds": [0.4, None],
            "step_seconds": [1, 0.9],
        },
        "metrics": [
            {"name": "node_load1", "times": [START, START + 1], "values": [2, None]},
            {
                "name": "DCGM_FI_DEV_SM_CLOCK",
                "node": "a",
                "rank": 1,
                "device": "0",
                "times": [],
                "values": [],
            },
        ],
        "events": [{"time": START, "kind": "xid", "code": "79"}],
    } | changes
    return {name: value for name, value in members.items() if value is not None}


def with_steps(**changes: Any) -> dict[str, Any]:
    return document(steps=document()["steps"] | changes)


def refused(members: Any) -> InvalidWindow:
    with pytest.raises(InvalidWindow) as caught:
        Window.from_json(orjson.dumps(members))
    return caught.value


def test_a_document_becomes_a_window() -> None:
    decoded = Window.from_json(memoryview(orjson.dumps(document())))
    assert decoded.steps["step_seconds"].to_pylist() == [1.0, 0.9]
    assert np.isnan(decoded.steps["forward_seconds"][1].as_py())
    assert decoded.metrics["name"].to_pylist() == ["node_load1", "node_load1"]
    assert decoded.events["code"].to_pylist() == ["79"]


def test_nan_is_written_as_null() -> None:
    written = orjson.loads(window(metrics=metrics((1, "node_load1", None))).to_json())
    assert written["steps"]["forward_seconds"] == [0.4, 0.4, 0.5, None]
    assert written["metrics"] == [{"name": "node_load1", "times": [START + 1], "values": [None]}]


def test_interleaved_samples_are_written_as_series() -> None:
    interleaved = metrics((1, "b", 1.0), (1, "a", 2.0, "n"), (2, "b", 3.0), (2, "a", 4.0, "n"))
    written = orjson.loads(window(metrics=interleaved).to_json())["metrics"]
    assert [one["name"] for one in written] == ["b", "a"]
    assert written[1] == {"name": "a", "node": "n", "times": [START + 1, START + 2], "values": [2.0, 4.0]}


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_truncated_json_says_where(cut: int) -> None:
    body = orjson.dumps(document())[:cut]
    with pytest.raises(InvalidWindow, match=r"is not JSON: .* \(byte \d+ of \d+\)") as caught:
        Window.from_json(body)
    assert caught.value.table == "window"


def test_nan_literals_are_not_json() -> None:
    with pytest.raises(InvalidWindow) as caught:
        Window.from_json(b'{"job": NaN}')
    assert "write null" in str(caught.value.hint)


@pytest.mark.parametrize("body", [b'{"job": Infinity}', b'{"a": [1, -Infinity]}', b'{"a": -inf}'])
def test_infinities_are_not_json_either(body: bytes) -> None:
    with pytest.raises(InvalidWindow) as caught:
        Window.from_json(body)
    assert "write null" in str(caught.value.hint)


@pytest.mark.parametrize("body", [b"{", b'{"job": \xff}', b"[[[[[", b'{"name": 1,}'])
def test_other_errors_of_syntax_do_not_talk_of_nan(body: bytes) -> None:
    with pytest.raises(InvalidWindow) as caught:
        Window.from_json(body)
    assert caught.value.hint is None


def test_deep_nesting_is_refused_not_recursed_into() -> None:
    with pytest.raises(InvalidWindow, match="is not JSON"):
        Window.from_json(b"[" * 100_000)


@pytest.mark.parametrize(("body", "kind"), [(b"[]", "array"), (b"1", "number"), (b"null", "null")])
def test_a_window_is_an_object(body: bytes, kind: str) -> None:
    with pytest.raises(InvalidWindow, match=f"is a JSON {kind}"):
        Window.from_json(body)


def test_a_misspelt_table_is_not_overlooked() -> None:
    error = refused(document(metric=[]))
    assert (error.table, error.column) == ("window", "metric")


@pytest.mark.parametrize("absent", [("job",), ("steps", "metrics", "events")])
def test_the_job_and_a_table_are_required(absent: tuple[str, ...]) -> None:
    assert refused(document(**dict.fromkeys(absent))).table == absent[0]


@for_each(
    ("value", "kind"),
    [("0.4", "str"), (True, "bool"), (False, "bool"), ([0.4], "list"), ({"s": 0.4}, "dict")],
)
def test_a_number_spelled_otherwise_is_shown(value: Any, kind: str) -> None:
    error = refused(with_steps(forward_seconds=[0.4, value]))
    assert (error.table, error.column, error.n_rows) == ("steps", "forward_seconds", 1)
    assert (error.rows[0]["row"], error.rows[0]["type"]) == (1, kind)


@for_each("value", [True, False, "1", 1.5, None])
def test_ranks_are_integers(value: Any) -> None:
    error = refused(with_steps(rank=[0, value]))
    assert (error.table, error.column) == ("steps", "rank")
    assert error.rows[0]["row"] == 1


def test_integers_beyond_64_bits_are_refused() -> None:
    error = refused(with_steps(step=[7, 2**63]))
    assert error.rows == [{"row": 1, "step": 2**63}]


def test_a_short_column_is_named() -> None:
    error = refused(with_steps(step_seconds=[1.0]))
    assert (error.column, error.message) == ("step_seconds", "has 1 values where other columns have 2")


@pytest.mark.parametrize("steps", [[], 1, {"rank": 0}])
def test_steps_are_columns(steps: Any) -> None:
    assert refused(document(steps=steps)).table == "steps"


def test_unknown_columns_and_members_are_noted() -> None:
    noted = Window.from_json(
        orjson.dumps(
            document(
                steps=document()["steps"] | {"loss": [[1], {}]},
                metrics=[{"name": "a", "times": [], "values": [], "labels": {}}],
                events=[{"time": START, "kind": "log", "pod": "x"}],
            )
        )
    )
    assert noted.notes == (
        "metrics: dropped unknown members: labels",
        "events: dropped unknown members: pod",
        "steps: dropped unknown columns: loss",
    )


@pytest.mark.parametrize(
    "series",
    [
        {"name": "a", "times": [START], "values": []},
        {"name": "a", "times": [START]},
        {"name": "a", "values": [1.0]},
        {"name": "a", "times": START, "values": 1.0},
    ],
)
def test_a_series_with_unequal_lists_is_named(series: dict[str, Any]) -> None:
    error = refused(document(metrics=[*document()["metrics"], series]))
    assert (error.table, error.column) == ("metrics", "times")
    assert error.rows[0]["series"] == 2
    assert error.rows[0]["name"] == "a"


@for_each("label", [{"name": 5}, {"node": 5}, {"rank": "1"}, {"device": True}, {"rank": True}])
def test_labels_of_a_series_have_their_types(label: dict[str, Any]) -> None:
    series = {"name": "a", "times": [START], "values": [1.0]} | label
    error = refused(document(metrics=[series]))
    assert (error.table, error.column) == ("metrics", next(iter(label)))
    assert error.rows[0]["series"] == 0


@pytest.mark.parametrize("value", ["1", False, [1]])
def test_values_of_a_series_are_numbers(value: Any) -> None:
    error = refused(document(metrics=[{"name": "a", "times": [START], "values": [value]}]))
    assert (error.table, error.column) == ("metrics", "value")


@for_each("held", [{}, "x", [1], [None], [[]]])
def test_metrics_and_events_are_lists_of_objects(held: Any) -> None:
    assert refused(document(metrics=held)).table == "metrics"
    assert refused(document(events=held)).table == "events"


def test_codes_of_events_may_be_numbers_in_some_rows() -> None:
    rows = [
        {"time": START, "kind": "process_exit", "rank": rank, "code": code}
        for rank, code in enumerate(("1", -9))
    ]
    read = Window.from_json(orjson.dumps(document(events=rows)))
    assert read.events["code"].to_pylist() == ["1", "-9"]
    assert refused(document(events=[rows[0] | {"code": True}])).column == "code"
