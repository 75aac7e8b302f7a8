"""The promotion gate: what lets a challenger through, and what no gain elsewhere can pay for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rca.lab.evaluation.answer import MethodAnswer, NamedCause
from rca.lab.evaluation.scores import Judged, judge
from rca.lab.training.promotion_gate import GateCheck, Latency, Pair, Verdict, decide
from rca.sources.labels import WindowLabel

HEALTHY = WindowLabel(failure_mode="healthy")
SLOW = WindowLabel.model_validate(
    {
        "failure_mode": "fail_slow",
        "straggler_type": "compute",
        "pattern": "transient",
        "causes": [{"cause": "gpu_throttling", "ranks": [6]}],
    }
)


def answered(slow: bool, confidence: float = 0.98) -> MethodAnswer:
    if not slow:
        return MethodAnswer("healthy", confidence=confidence)
    ranks = frozenset({6})
    causes = (NamedCause("gpu_throttling", ranks),)
    return MethodAnswer("fail_slow", ranks, causes, straggler_type="compute", confidence=confidence)


RIGHT, MISSED = judge(answered(True), SLOW), judge(answered(False), SLOW)
QUIET, ALARM = judge(answered(False), HEALTHY), judge(answered(True), HEALTHY)


def windows(n_slow: int, n_missed: int = 0, n_healthy: int = 0, n_alarms: int = 0) -> list[Judged]:
    slow = [MISSED] * n_missed + [RIGHT] * (n_slow - n_missed)
    return slow + [ALARM] * n_alarms + [QUIET] * (n_healthy - n_alarms)


def compare(champion: list[Judged], challenger: list[Judged], source: str = "simulated") -> Verdict:
    return decide({source: Pair(champion, challenger)}, None)


def check(verdict: Verdict, name: str, source: str = "simulated") -> GateCheck:
    return next(each for each in verdict.checks if (each.source, each.name) == (source, name))


def test_the_same_answers_are_as_good_and_pass() -> None:
    verdict = compare(windows(300, 30, 200, 2), windows(300, 30, 200, 2))
    assert (verdict.outcome, verdict.passed) == ("as good", True)
    assert verdict.reasons == ("no check shows a difference",)
    assert {each.difference.value for each in verdict.checks} == {0.0}


def test_fewer_misses_are_better_and_the_reverse_is_worse() -> None:
    worse, better = windows(300, 60, 200), windows(300, 20, 200)
    assert compare(worse, better).outcome == "better"
    assert any("cause_ac@1" in reason for reason in compare(worse, better).reasons)
    assert not compare(better, worse).passed


def test_a_gain_on_one_source_does_not_pay_for_a_loss_on_another() -> None:
    sources = {
        "simulated": Pair(windows(300, 60), windows(300, 0)),
        "our-incidents": Pair(windows(40, 0), windows(40, 12)),
    }
    verdict = decide(sources, None)
    assert check(verdict, "ranks_exact").finding == "better"
    assert not verdict.passed
    assert all(reason.startswith("our-incidents: ") for reason in verdict.reasons)


@pytest.mark.parametrize(("lost", "passed"), [(0, True), (2, True), (3, False)])
def test_a_handful_of_windows_proves_nothing_but_may_not_be_lost(lost: int, passed: bool) -> None:
    """Three of ten differ: too few for a sign test, and more than the allowed loss."""
    verdict = compare(windows(10, 0), windows(10, lost))
    assert verdict.passed is passed


def test_one_more_false_alarm_among_ten_is_one_too_many_and_among_a_thousand_it_is_not() -> None:
    few = compare(windows(10, 0, 10, 0), windows(10, 0, 10, 1))
    assert check(few, "false_alarm_rate").finding == "worse"
    many = compare(windows(300, 0, 1000, 4), windows(300, 0, 1000, 5))
    assert many.passed


def test_more_hits_do_not_pay_for_more_false_alarms() -> None:
    verdict = compare(windows(300, 60, 300, 1), windows(300, 0, 300, 9))
    assert check(verdict, "ranks_exact").finding == "better"
    assert check(verdict, "false_alarm_rate").finding == "worse"
    assert not verdict.passed


def test_overconfidence_is_refused_where_an_interval_shows_it() -> None:
    honest = [judge(answered(True, 0.7), SLOW)] * 280 + [judge(answered(False, 0.7), SLOW)] * 120
    boastful = [judge(answered(True, 0.99), SLOW)] * 280 + [judge(answered(False, 0.99), SLOW)] * 120
    verdict = compare(honest, boastful)
    found = check(verdict, "expected_calibration_error")
    assert found.difference.value == pytest.approx(0.29)
    assert [each.name for each in verdict.checks if each.finding == "worse"] == ["expected_calibration_error"]
    assert not verdict.passed
    assert compare(boastful, honest).passed


def test_three_windows_are_no_evidence_about_calibration() -> None:
    one = [judge(answered(True, 0.8), SLOW)] * 2 + [judge(answered(False, 0.8), SLOW)]
    other = [judge(answered(True, 0.9), SLOW)] * 2 + [judge(answered(False, 0.9), SLOW)]
    assert check(compare(one, other), "expected_calibration_error").finding == "as good"


@pytest.mark.parametrize(("ratio", "passed"), [(0.8, True), (1.05, True), (1.3, False)])
def test_a_slower_diagnosis_is_refused_beyond_a_tenth(ratio: float, passed: bool) -> None:
    rng = np.random.default_rng(0)
    champion = rng.uniform(0.005, 0.02, 40)
    latency = Latency(champion, champion * ratio * rng.uniform(0.97, 1.03, 40))
    verdict = decide({"simulated": Pair(windows(50), windows(50))}, latency)
    assert verdict.passed is passed
    assert check(verdict, "latency", "all").difference.value == pytest.approx(ratio, rel=0.05)


def test_an_objection_stands_whatever_the_figures_say() -> None:
    verdict = decide({"simulated": Pair(windows(300, 60), windows(300))}, None, ["not the same windows"])
    assert not verdict.passed
    assert verdict.reasons[0] == "not the same windows"


def test_a_verdict_is_plain_data_and_the_same_every_time() -> None:
    pair = Pair(windows(100, 12, 60, 1), windows(100, 9, 60, 1))
    documents = [json.dumps(decide({"simulated": pair}, None).to_document()) for _ in range(2)]
    assert documents[0] == documents[1]
    assert json.loads(documents[0])["passed"] is True
