"""Training says at once what it does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rca.lab.training import examples
from rca.workers import Workers


def test_the_amount_of_work_is_reported_before_the_first_window(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[tuple[str, int, int]] = []

    def simulated(n_windows: int, seed: int, **_: object) -> Iterator[object]:
        assert reported == [("simulating and extracting features", 0, 400)]
        yield from ()

    monkeypatch.setattr(examples, "simulated_examples", simulated)
    examples.gathered(
        400, 1, [], workers=Workers(1), cache=None, progress=lambda *given: reported.append(given)
    )
    assert reported
