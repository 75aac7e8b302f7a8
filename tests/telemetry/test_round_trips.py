"""Every encoding gives back the window it was given."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from telemetry_windows import rows_of, series_of, windows

from rca.sources.read import read_window
from rca.window import Window

thorough = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def assert_same(found: Window, window: Window) -> None:
    assert found.job == window.job
    assert found.notes == ()
    for name in ("steps", "events", "ops"):
        table, expected = getattr(found, name), getattr(window, name)
        assert table.schema == expected.schema
        assert rows_of(table) == rows_of(expected)
    assert found.metrics.schema == window.metrics.schema
    assert series_of(found.metrics) == series_of(window.metrics)


@pytest.mark.system
@thorough
@given(windows())
def test_json_keeps_everything_but_the_interleaving_of_series(window: Window) -> None:
    assert_same(read_window(window.to_json()), window)


@pytest.mark.system
@thorough
@given(windows())
def test_arrow_keeps_everything(window: Window) -> None:
    found = read_window(window.to_arrow())
    assert_same(found, window)
    assert rows_of(found.metrics) == rows_of(window.metrics)


@pytest.mark.system
@thorough
@given(windows())
def test_a_directory_keeps_everything(window: Window) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "window"
        window.to_directory(path)
        found = read_window(path)
    assert_same(found, window)
    assert rows_of(found.metrics) == rows_of(window.metrics)


@pytest.mark.system
@thorough
@given(windows())
def test_encodings_follow_one_another(window: Window) -> None:
    assert_same(read_window(read_window(read_window(window.to_json()).to_arrow()).to_json()), window)
