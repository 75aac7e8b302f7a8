"""An answer stays short, however many names, ranks and suspects its window has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

import rca
from rca.diagnosis import answer_limits
from rca.diagnosis.answer_limits import MAX_TEXT_LENGTH, MIN_PLACES, within_limits
from rca.window import Window
from rca.window.catalogue import KNOWN
from tests.conftest import START, MakeWindow
from tests.for_each import for_each

MEGABYTE = 1_000_000
MANY = 30_000


def samples(names: list[str]) -> pa.Table:
    return pa.table(
        {
            "time": np.full(len(names), START + 1.0),
            "node": pa.nulls(len(names), pa.string()),
            "rank": pa.nulls(len(names), pa.int32()),
            "device": pa.nulls(len(names), pa.string()),
            "name": names,
            "value": np.ones(len(names)),
        }
    )


def with_columns(window: Window, names: list[str]) -> Window:
    """The window, read with these further columns in its steps."""
    table = window.steps
    for name in names:
        table = table.append_column(name, pa.nulls(table.num_rows, pa.float64()))
    return Window.from_tables(window.job, table)


def with_members(window: Window, names: list[str]) -> Window:
    """The window, read from JSON with an event that has these further members."""
    document = orjson.loads(window.to_json())
    document["events"] = [{"time": START + 1.0, "kind": "log"} | dict.fromkeys(names, 1)]
    return Window.from_json(orjson.dumps(document))


def with_nodes(window: Window, length: int) -> Window:
    ranks = tuple(
        place.model_copy(update={"node": f"{place.rank}".zfill(length)}) for place in window.job.ranks or ()
    )
    return replace(window, job=window.job.model_copy(update={"ranks": ranks}))


WINDOWS: dict[str, Callable[[MakeWindow], Window]] = {
    "unknown metrics": lambda make: make(metrics=samples([f"vendor_metric_{i}" for i in range(MANY)])),
    "long names of metrics": lambda make: make(metrics=samples(["x" * MEGABYTE, "y" * MEGABYTE])),
    "unknown columns": lambda make: with_columns(make(), [f"vendor_column_{i}" for i in range(900)]),
    "a long unknown column": lambda make: with_columns(make(), ["x" * MEGABYTE]),
    "unknown members": lambda make: with_members(make(), [f"vendor_member_{i}" for i in range(MANY)]),
    "long names of nodes": lambda make: with_nodes(make(8, late={3: 0.05}), MEGABYTE),
    "a long device and code": lambda make: with_members(make(late={3: 0.05}), ["x" * MEGABYTE]),
}


@for_each("name", WINDOWS)
def test_no_megabyte_of_names_comes_back(name: str, make_window: MakeWindow) -> None:
    window = WINDOWS[name](make_window)
    diagnosis = rca.diagnose(window)
    for text in (diagnosis.to_json(), diagnosis.to_markdown(), diagnosis.to_html()):
        assert len(text) < MEGABYTE / 5


def test_what_is_left_out_is_counted(make_window: MakeWindow) -> None:
    diagnosis = rca.diagnose(make_window(metrics=samples([f"vendor_{i:05d}" for i in range(MANY)])))
    shown = diagnosis.quality.unknown_metrics
    assert len(shown) == answer_limits.MAX_ENTRIES["quality.unknown_metrics"]
    assert diagnosis.left_out == {"quality.unknown_metrics": MANY - len(shown)}
    # People read how many there are in all.
    assert f"and {MANY - 12:,} more" in diagnosis.to_markdown()


def test_names_that_are_dropped_are_counted_in_their_note(make_window: MakeWindow) -> None:
    (note,) = with_columns(make_window(), [f"vendor_{i}" for i in range(40)]).notes
    assert note.startswith("steps: dropped unknown columns: vendor_0, vendor_1, ")
    assert note.endswith("vendor_19 and 20 more")


def test_an_answer_within_the_limits_stays_as_it_is(make_window: MakeWindow) -> None:
    known = samples([KNOWN[0].name, "one_unknown_metric"])
    diagnosis = rca.diagnose(make_window(late={3: 0.05}, metrics=known))
    assert diagnosis.causes
    assert within_limits(diagnosis) is diagnosis
    assert diagnosis.left_out == {}


@pytest.fixture
def everywhere(make_window: MakeWindow) -> rca.Diagnosis:
    """An answer that names 64 ranks on 32 nodes in each straggler and cause."""
    diagnosis = rca.diagnose(make_window(late={3: 0.05}))
    place: dict[str, Any] = {"ranks": list(range(64)), "nodes": [f"node-{i:02d}" for i in range(32)]}
    (straggler,), (cause, *_) = diagnosis.stragglers, diagnosis.causes
    return diagnosis.model_copy(
        update={
            "stragglers": [straggler.model_copy(update=place)] * 2,
            "causes": [cause.model_copy(update=place)],
        }
    )


def test_ranks_and_nodes_of_an_answer_share_one_limit(
    everywhere: rca.Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert within_limits(everywhere) is everywhere
    # Room for the ranks of the first straggler and for half of its nodes.
    monkeypatch.setattr(answer_limits, "PLACE_CHARACTERS", 54 * 3 + 10 * 2 + 16 * 10)
    found = within_limits(everywhere)
    first, second = found.stragglers
    assert (len(first.ranks), second.ranks) == (64, list(range(MIN_PLACES)))
    assert MIN_PLACES < len(first.nodes) < 32
    assert found.left_out == {
        "stragglers[0].nodes": 32 - len(first.nodes),
        "stragglers[1].ranks": 64 - MIN_PLACES,
        "stragglers[1].nodes": 32 - MIN_PLACES,
        "causes[0].ranks": 64 - MIN_PLACES,
        "causes[0].nodes": 32 - MIN_PLACES,
    }


@pytest.mark.parametrize("field", ["stragglers", "causes"])
def test_of_many_components_the_first_are_kept(
    everywhere: rca.Diagnosis, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.setitem(answer_limits.MAX_ENTRIES, field, 3)
    many = everywhere.model_copy(update={field: [getattr(everywhere, field)[0]] * 10})
    found = within_limits(many)
    assert (len(getattr(found, field)), found.left_out[field]) == (3, 7)


def test_limits_applied_twice_leave_out_no_more(
    everywhere: rca.Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_limits, "PLACE_CHARACTERS", 600)
    found = within_limits(everywhere)
    assert within_limits(found) == found


def test_all_ranks_of_the_largest_jobs_have_room(make_window: MakeWindow) -> None:
    """Ten thousand ranks as a straggler and five causes."""
    diagnosis = rca.diagnose(make_window(late={3: 0.05}))
    place = {"ranks": list(range(10_240)), "nodes": [f"node-{i:04d}" for i in range(1_280)]}
    job = [diagnosis.stragglers[0].model_copy(update=place | {"scope": "job"})]
    whole = diagnosis.model_copy(
        update={"stragglers": job, "causes": [diagnosis.causes[0].model_copy(update=place)] * 5}
    )
    assert within_limits(whole).left_out == {}


def test_texts_are_cut(everywhere: rca.Diagnosis) -> None:
    long = "x" * (MAX_TEXT_LENGTH + 1)
    found = within_limits(everywhere.model_copy(update={"next_check": long}))
    assert len(found.next_check) == MAX_TEXT_LENGTH
    assert found.next_check.endswith("…")
