"""What the other tables must get right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from telemetry_windows import START, UNUSABLE_NAMES, metrics, refusal, steps, window

from rca.window import names
from tests.for_each import for_each


def events(**changes: Any) -> pa.Table:
    return pa.table({"time": [START + 1], "rank": [1], "kind": ["xid"]} | changes)


def ops(**changes: Any) -> pa.Table:
    columns = {
        "rank": [0],
        "dp_rank": [0],
        "stage": [0],
        "step": [0],
        "optype": ["forward-compute"],
        "seq_id": [0],
        "mc": [0],
        "gmc": [0],
        "mb_id": [0],
        "start_ts": [0.0],
        "duration": [0.1],
    } | changes
    return pa.table({name: value for name, value in columns.items() if value is not None})


def test_absent_tables_are_empty_tables() -> None:
    bare = window()
    assert (bare.metrics.num_rows, bare.events.num_rows, bare.ops.num_rows) == (0, 0, 0)
    assert bare.metrics.column_names == ["time", "node", "rank", "device", "name", "value"]


def test_a_sample_may_lack_everything_but_time_and_name() -> None:
    table = window(metrics=metrics((1, "node_load1", None))).metrics
    assert np.isnan(table["value"][0].as_py())
    assert table["rank"].null_count == 1


@pytest.mark.parametrize("time", [None, float("nan"), float("inf")])
def test_a_sample_has_a_time(time: float | None) -> None:
    error = refusal(metrics=metrics((1, "node_load1", 1.0), (time, "node_load1", 2.0, "node-a")))
    assert (error.table, error.column, error.n_rows) == ("metrics", "time", 1)
    assert error.rows[0]["row"] == 1
    assert error.rows[0]["node"] == "node-a"


def test_a_sample_has_a_name() -> None:
    assert refusal(metrics=metrics((1, None, 1.0))).column == "name"


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_values_are_finite(value: float) -> None:
    error = refusal(metrics=metrics((1, "node_load1", value)))
    assert (error.column, error.message) == ("value", "is infinite")


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_samples_rank_exists(rank: int) -> None:
    error = refusal(metrics=metrics((1, "node_load1", 1.0), (1, "node_load1", 1.0, None, rank)))
    assert (error.table, error.column) == ("metrics", "rank")
    assert error.rows == [{"row": 1, "name": "node_load1", "node": None, "rank": rank, "device": None}]


def test_names_are_text() -> None:
    numbered = metrics((1, "node_load1", 1.0)).set_column(4, "name", pa.array([1]))
    assert refusal(metrics=numbered).expected == "text"


def test_text_may_come_in_any_encoding_arrow_has() -> None:
    plain = metrics((1, "a", 1.0), (1, "b", 1.0), (2, "a", 2.0))
    for held in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())):
        coded = plain.set_column(4, "name", plain["name"].cast(held))
        assert window(metrics=coded).metrics["name"].to_pylist() == ["a", "b", "a"]


def test_equal_texts_get_equal_codes() -> None:
    repeated = pa.DictionaryArray.from_arrays([0, 1, 2, None], ["a", "a", None])
    table = metrics(*[(1, "node_load1", 1.0)] * 4).set_column(1, "node", repeated)
    node = window(metrics=table).metrics["node"]
    assert node.to_pylist() == ["a", "a", None, None]
    assert node.chunk(0).dictionary.to_pylist() == ["a"]


def test_chunks_with_their_own_dictionaries_are_joined() -> None:
    one, two = metrics((1, "b", 1.0), (1, "a", 1.0)), metrics((1, "a", 1.0))
    coded = [t.set_column(4, "name", t["name"].dictionary_encode()) for t in (one, two)]
    assert window(metrics=pa.concat_tables(coded)).metrics["name"].to_pylist() == ["b", "a", "a"]


def test_events_may_be_older_than_the_window() -> None:
    assert window(events=events(time=[START - 40_000])).events.num_rows == 1


def test_events_in_milliseconds_are_recognised() -> None:
    error = refusal(events=events(time=[START * 1000]))
    assert (error.table, error.hint) == (
        "events",
        "the values look like milliseconds: convert them to seconds",
    )


@pytest.mark.parametrize(("column", "value"), [("rank", [5]), ("kind", [None]), ("time", [None])])
def test_events_are_checked(column: str, value: list[Any]) -> None:
    error = refusal(events=events(**{column: pa.array(value, events().schema.field(column).type)}))
    assert (error.table, error.column) == ("events", column)


@for_each(
    ("column", "value"),
    [("rank", [2]), ("duration", [-1.0]), ("duration", [None]), ("start_ts", [float("nan")]), ("mc", None)],
)
def test_ops_are_checked(column: str, value: list[Any] | None) -> None:
    error = refusal(
        ops=ops(**{column: value if value is None else pa.array(value, ops().schema.field(column).type)})
    )
    assert (error.table, error.column) == ("ops", column)


def test_ops_keep_their_own_clock() -> None:
    assert window(ops=ops(start_ts=[12.5])).ops["start_ts"].to_pylist() == [12.5]


def with_name(place: str, name: str) -> dict[str, pa.Table]:
    """A table in whose last row the name at `place` is `name`."""
    table, _, column = place.partition(".")
    if table == "metrics":
        fields = {"name": "node_load1", "node": "node-a", "device": "eth0"} | {column: name}
        good = (1, "node_load1", 1.0, "node-a", 0, "eth0")
        bad = (2, fields["name"], 1.0, fields["node"], 0, fields["device"])
        return {"metrics": metrics(good, bad)}
    if table == "events":
        return {"events": events(**{column: [name]})}
    return {"ops": ops(**{column: [name]})}


@for_each("bad", UNUSABLE_NAMES, ids=ascii)
@for_each(
    "place", ["metrics.name", "metrics.node", "metrics.device", "events.kind", "events.node", "ops.optype"]
)
def test_names_are_not_blank_nor_relative_and_all_of_them_is_seen(place: str, bad: str) -> None:
    if place == "metrics.device" and not bad.strip():
        assert window(**with_name(place, bad)).metrics["device"].to_pylist() == ["eth0", None]
        return
    error = refusal(**with_name(place, bad))
    assert f"{error.table}.{error.column}" == place
    assert error.message in (names.BLANK, names.RELATIVE, names.UNPRINTABLE, names.INVISIBLE)
    assert error.n_rows == 1


def test_a_message_is_free_text() -> None:
    table = events(message=["Traceback:\n\tline 1\x1b[0m"], code=[""])
    assert window(events=table).events["message"][0].as_py().startswith("Traceback:\n")


def test_a_name_that_no_row_has_does_not_matter() -> None:
    named = pa.DictionaryArray.from_arrays(pa.array([1]), pa.array(["", "xid"]))
    assert window(events=events(kind=named)).events["kind"].to_pylist() == ["xid"]


def test_column_names_have_no_control_characters() -> None:
    error = refusal(table=steps().append_column("idle\nseconds", pa.array([0.0] * 4)))
    assert error.table == "steps"
    assert "idle\\nseconds" in error.message


@pytest.mark.parametrize("codes", [[-9, None], [-9.0, float("nan")], ["-9", None]])
def test_an_exit_code_may_be_a_number(codes: list[object]) -> None:
    kinds = pa.array(["process_exit"] * 2)
    events = pa.table({"time": [START, START], "kind": kinds, "rank": [0, 1], "code": codes})
    assert window(events=events).events.column("code").to_pylist() == ["-9", None]


def test_an_exit_code_that_is_no_whole_number_is_refused() -> None:
    events = pa.table({"time": [START], "kind": ["process_exit"], "rank": [0], "code": [1.5]})
    assert refusal(events=events).column == "code"
