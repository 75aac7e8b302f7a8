"""Labels of windows, and folders of labelled windows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from telemetry_windows import window

from rca.errors import InvalidInput, SourceError
from rca.sources.labels import WindowLabel, read_collection, read_label, write_labelled
from tests.for_each import for_each

SLOW = WindowLabel(
    failure_mode="fail_slow",
    straggler_type="host",
    pattern="persistent",
    causes=({"cause": "cpu_contention", "ranks": [1], "nodes": ["b"], "first_step": 7, "severity": 0.5},),
    source="testbed",
)


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    write_labelled(window(), SLOW, tmp_path / "one")
    write_labelled(window(), WindowLabel(failure_mode="healthy"), tmp_path / "two")
    manifest(tmp_path, [{"id": "1", "path": "one", "causes": ["cpu_contention"]}, {"id": "2", "path": "two"}])
    return tmp_path


def manifest(folder: Path, windows: list[dict[str, Any]], **more: Any) -> None:
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "windows": windows, "seed": 5} | more))


def test_a_label_comes_back_as_written(tmp_path: Path) -> None:
    write_labelled(window(), SLOW, tmp_path / "w")
    assert read_label(tmp_path / "w") == SLOW
    assert read_label(tmp_path / "w" / "label.json").causes[0].ranks == (1,)


def test_producers_may_add_what_they_know() -> None:
    assert WindowLabel.model_validate(
        {"failure_mode": "healthy", "visible": True, "impact": None}
    ).model_dump()["visible"]


def test_a_labelled_window_is_replaced_with_its_label(tmp_path: Path) -> None:
    write_labelled(window(), SLOW, tmp_path / "w")
    write_labelled(window(), WindowLabel(failure_mode="healthy"), tmp_path / "w")
    assert read_label(tmp_path / "w").failure_mode == "healthy"


@for_each(
    ("content", "named"),
    [
        ('{"failure_mode": "slow"}', "failure_mode"),
        ('{"failure_mode": "healthy", "format": 2}', "format"),
        ('{"failure_mode": "fail_slow", "causes": [{"ranks": [1]}]}', "causes.0.cause"),
        ('{"failure_mode": "fail_slow", "causes": [{"cause": "hang", "severity": 7}]}', "causes.0.severity"),
        ("[]", "document"),
        ('{"failure_mode"', "is not JSON"),
    ],
)
def test_a_wrong_label_names_the_field(tmp_path: Path, content: str, named: str) -> None:
    (tmp_path / "label.json").write_text(content)
    with pytest.raises(InvalidInput, match=named):
        read_label(tmp_path)


def test_a_missing_label(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        read_label(tmp_path)


def test_a_collection_is_read_entry_by_entry(collection: Path) -> None:
    found = read_collection(collection)
    assert len(found) == 2
    assert [entry.id for entry in found] == ["1", "2"]
    assert found.properties == {"seed": 5}
    first = found.entries[0]
    assert first.summary == {"causes": ["cpu_contention"]}
    assert first.read_window().steps.num_rows == 4
    assert first.read_label() == SLOW


def test_windows_are_not_touched_before_they_are_asked_for(collection: Path) -> None:
    (collection / "two" / "steps.parquet").write_bytes(b"damaged")
    assert read_collection(collection).entries[0].read_window().steps.num_rows == 4


def test_a_folder_without_manifest_is_no_collection(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"manifest\.json: no such file"):
        read_collection(tmp_path)


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "one/../../elsewhere"])
def test_a_manifest_stays_inside_its_folder(collection: Path, path: str) -> None:
    manifest(collection, [{"id": "1", "path": path}])
    with pytest.raises(InvalidInput, match="outside the collection"):
        read_collection(collection)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_what_can_be_no_path_is_refused(collection: Path, path: str) -> None:
    manifest(collection, [{"id": "1", "path": path}])
    with pytest.raises(InvalidInput, match="cannot be a path"):
        read_collection(collection)


def test_ids_are_unique(collection: Path) -> None:
    manifest(collection, [{"id": "1", "path": "one"}, {"id": "1", "path": "two"}])
    with pytest.raises(InvalidInput, match="more than once"):
        read_collection(collection)


def test_a_window_may_name_an_earlier_one(collection: Path) -> None:
    entries = [{"id": "1", "path": "one", "earlier": "2"}, {"id": "2", "path": "two"}]
    manifest(collection, entries)
    one, two = read_collection(collection)
    assert two.read_earlier() is None
    assert one.earlier == two.path
    earlier = one.read_earlier()
    assert earlier is not None
    assert earlier.job == two.read_window().job
    for named in ("3", "1"):
        manifest(collection, [{"id": "1", "path": "one", "earlier": named}])
        with pytest.raises(InvalidInput, match=f"the earlier window of '1' is '{named}'"):
            read_collection(collection)


def test_a_manifest_of_another_format_is_refused(collection: Path) -> None:
    manifest(collection, [], format=2)
    with pytest.raises(InvalidInput, match="format"):
        read_collection(collection)
