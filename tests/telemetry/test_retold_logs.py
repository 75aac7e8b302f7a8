"""Logs retold from public threads: who stopped first, told from the victims.

`python tests/telemetry/retold_logs.py open held shared` prints the score of each half.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from retold_logs import cases, verdict

from tests.for_each import for_each


@for_each("case", cases("shared"), [each["name"] for each in cases("shared")])
def test_the_first_failure_is_named_and_victims_are_not(tmp_path: Path, case: dict[str, Any]) -> None:
    result, answer = verdict(case, tmp_path)
    assert result == "right"
    assert answer is not None
    assert not answer.abstained
    assert (answer.slowdown.gpu_hours_lost or 0.0) < 10.0


@for_each("case", cases("open"), [each["name"] for each in cases("open")])
def test_a_retold_log_is_answered_right(tmp_path: Path, case: dict[str, Any]) -> None:
    assert verdict(case, tmp_path)[0] == "right"


@pytest.mark.parametrize("half", ["open", "held"])
def test_no_retold_log_is_refused_or_answered_wrongly_with_certainty(tmp_path: Path, half: str) -> None:
    for number, case in enumerate(cases(half)):
        folder = tmp_path / str(number)
        folder.mkdir()
        result, answer = verdict(case, folder)
        assert result != "refused", case["name"]
        assert result != "wrong" or answer is None or answer.abstained, case["name"]
