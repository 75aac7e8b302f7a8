"""Logs retold from public threads: who stopped first, and who is a victim.

`python tests/telemetry/retold_logs.py open held late shared` prints the score of each set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from logs_of_jobs import answer_of
from retold_logs import cases, verdict

from tests.for_each import for_each


@for_each("case", cases("shared"), [each["name"] for each in cases("shared")])
def test_the_first_failure_is_named_and_victims_are_not(tmp_path: Path, case: dict[str, Any]) -> None:
    result, answer = verdict(case, tmp_path)
    assert result == "right"
    assert answer is not None
    assert not answer.abstained
    assert (answer.slowdown.gpu_hours_lost or 0.0) < 10.0


SETS = ("open", "held", "late", "last", "unseen", "harvest", "sealed", "healthy", "review", "usual")
ALL = [case for half in SETS for case in cases(half)]


@for_each("case", ALL, [each["name"] for each in ALL])
def test_a_retold_log_is_answered_right(tmp_path: Path, case: dict[str, Any]) -> None:
    assert verdict(case, tmp_path)[0] == ("right" if case.get("certain", True) else "undecided")


def test_the_slowest_rank_of_megatrons_straggler_reports_is_a_suspect(tmp_path: Path) -> None:
    lines = []
    for minute in range(20):
        at = f"[2025-05-01 10:{minute:02}:00]"
        lines.append(
            f" {at} iteration {minute:8d}/ 100 | elapsed time per iteration (ms): 4900.0 | lm loss: 2.5 |"
        )
        lines.append(f"{at} | MnRtt/Rnk: 3453.08ms/1 | MxRtt/Rnk: 4861.20ms/3 | MnEtpt/Rnk: 98.2TF/3")
    answer = answer_of(tmp_path, "\n".join(lines))
    assert (answer.failure_mode, [each.ranks for each in answer.stragglers]) == ("fail_slow", [[3]])
    even = answer_of(tmp_path / "even", "\n".join(lines).replace("4861.20ms", "3461.20ms"))
    assert even.stragglers == []
