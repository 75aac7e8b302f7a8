"""What `collect.stop` records when training code has handled the error that ended it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rca import collect
from rca.collect.segments import read_segment


@pytest.fixture(autouse=True)
def _nothing_collects() -> Iterator[None]:
    yield
    collect.stop()


def exits(folder: Path) -> list[tuple[str, str]]:
    """Codes and messages of the exits in the only segment."""
    (file,) = folder.iterdir()
    events = read_segment(file.read_bytes()).events
    return [(each["code"], each["message"]) for each in events if each["kind"] == "process_exit"]


def test_a_loop_that_was_left_within_a_step_is_recorded(tmp_path: Path) -> None:
    collect.start(tmp_path, rank=0, world_size=1)
    try:
        for _ in collect.steps(range(9)):
            raise ConnectionResetError("reset by peer")
    except ConnectionResetError:
        pass
    collect.stop()
    assert exits(tmp_path) == [("0", "the training code stopped the collector, within a step")]


def test_a_loop_that_came_to_its_end_is_recorded_without_a_step(tmp_path: Path) -> None:
    collect.start(tmp_path, rank=0, world_size=1)
    for _ in collect.steps(range(3)):
        pass
    collect.stop()
    assert exits(tmp_path) == [("0", "the training code stopped the collector")]


def test_training_code_may_say_that_an_exception_ends_it_well(tmp_path: Path) -> None:
    collect.start(tmp_path, rank=0, world_size=1)
    try:
        raise ValueError("no better for 10 epochs")
    except ValueError:
        collect.stop(None)
    assert [code for code, _ in exits(tmp_path)] == ["0"]


def test_an_error_without_a_readable_text_is_recorded(tmp_path: Path) -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    collect.start(tmp_path, rank=0, world_size=1)
    try:
        raise Unreadable
    except Unreadable:
        collect.stop()
    assert exits(tmp_path) == [("1", "Unreadable: without a text")]


@pytest.mark.system
def test_a_stop_at_the_interpreters_end_records_the_error_that_ended_it(tmp_path: Path) -> None:
    code = f"""
import atexit
from rca import collect
collect.start({str(tmp_path)!r}, rank=0, world_size=1)
atexit.register(collect.stop)
raise ValueError("loss is NaN")
"""
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert exits(tmp_path) == [("1", "ValueError: loss is NaN")]
