"""Better is claimed only where the paired interval, and enough windows, say so."""

from __future__ import annotations

import pytest
from judged import HEALTHY, SILENT, slow_answer, slow_label

from rca.lab.evaluation.answer import MethodAnswer
from rca.lab.evaluation.scores import Judged, judge
from rca.lab.evaluation.summary import MIN_DIFFERING, Difference, differences

RIGHT, WRONG = judge(slow_answer(), slow_label()), judge(SILENT, slow_label())
QUIET, ALARM = judge(SILENT, HEALTHY), judge(slow_answer(), HEALTHY)


def by_score(one: list[Judged], other: list[Judged]) -> dict[str, Difference]:
    return {found.score: found for found in differences(one, other)}


def test_a_method_that_is_right_where_the_other_is_wrong_is_better() -> None:
    found = by_score([RIGHT] * 20, [RIGHT] * 8 + [WRONG] * 12)
    accuracy = found["failure_mode_accuracy"]
    assert accuracy.estimate.value == pytest.approx(0.6)
    assert (accuracy.verdict, accuracy.differing) == ("better", 12)
    assert found["cause_ac@1"].verdict == "better"
    mirrored = by_score([RIGHT] * 8 + [WRONG] * 12, [RIGHT] * 20)
    assert mirrored["failure_mode_accuracy"].verdict == "worse"


def test_fewer_false_alarms_are_better() -> None:
    found = by_score([QUIET] * 20, [QUIET] * 10 + [ALARM] * 10)["false_alarm_rate"]
    assert found.estimate.value == -0.5
    assert found.verdict == "better"


def test_a_handful_of_windows_decides_nothing_although_their_interval_is_a_point() -> None:
    few = MIN_DIFFERING - 1
    found = by_score([RIGHT] * few, [WRONG] * few)["failure_mode_accuracy"]
    assert (found.estimate.low, found.estimate.high) == (1.0, 1.0)
    assert found.verdict == "undecided"


def test_wins_and_losses_that_balance_decide_nothing() -> None:
    one, other = [RIGHT, WRONG] * 10, [WRONG, RIGHT] * 10
    assert by_score(one, other)["failure_mode_accuracy"].verdict == "undecided"


def test_only_what_both_methods_answer_is_compared() -> None:
    ranks_only = MethodAnswer("fail_slow", frozenset({6}), aspects=frozenset({"ranks"}))
    found = by_score([RIGHT] * 10, [judge(ranks_only, slow_label())] * 10)
    assert "ranks_exact" in found
    assert not {"cause_ac@1", "type_accuracy", "pattern_accuracy", "abstention_rate"} & set(found)


def test_what_a_method_never_answers_is_not_scored_as_wrong() -> None:
    judged = judge(MethodAnswer("fail_slow", frozenset({6}), aspects=frozenset({"ranks"})), slow_label())
    assert judged.ranks_exact == 1
    unanswered = (judged.type_right, judged.pattern_right, judged.rank_of_cause, judged.confidence)
    assert all(value != value for value in unanswered)
