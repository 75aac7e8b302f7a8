"""Subtests: all cases run, those that fail are named, and none finds what another has left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.for_each import for_each


class Noted:
    """In place of pytest's subtests."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.failed: list[str] = []

    @contextmanager
    def test(self, label: str) -> Iterator[None]:
        self.ran.append(label)
        try:
            yield
        except AssertionError:
            self.failed.append(label)


def test_every_case_of_a_product_runs_although_some_fail() -> None:
    @for_each("left", [1, 2])
    @for_each("right, name", [(1, "one"), (3, "three")], ids=["first", "second"])
    def differ(left: int, fixture: int, right: int, name: str) -> None:
        assert fixture == 7
        assert left != right, name

    noted = Noted()
    differ(subtests=noted, fixture=7)
    assert noted.ran == ["1 first", "1 second", "2 first", "2 second"]
    assert noted.failed == ["1 first"]


def test_a_case_finds_nothing_that_another_has_left(tmp_path: Path) -> None:
    @for_each("name", ["a", "b"])
    def leaves(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not list(tmp_path.iterdir())
        assert "RCA_LEFT" not in os.environ
        (tmp_path / "left").touch()
        monkeypatch.setenv("RCA_LEFT", name)

    noted = Noted()
    leaves(subtests=noted, tmp_path=tmp_path, monkeypatch=None)
    assert (noted.ran, noted.failed) == (["a", "b"], [])


def test_a_parameter_that_the_test_does_not_take_is_refused() -> None:
    with pytest.raises(AssertionError, match="does not take"):
        for_each("other", [1])(lambda name: None)
    with pytest.raises(AssertionError, match="no values"):
        for_each("name", [])
