"""Scores of hand-made answers against hand-made labels."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isnan
from pathlib import Path

import numpy as np
import pytest
from judged import slow_answer, slow_label

import rca
from rca.diagnosis import Diagnosis
from rca.lab.evaluation.answer import MethodAnswer, NamedCause
from rca.lab.evaluation.intervals import calibration_error
from rca.lab.evaluation.judged_rows import judged_row
from rca.lab.evaluation.scores import judge
from rca.lab.evaluation.summary import summarise
from rca.sources.labels import WindowLabel

HEALTHY = WindowLabel(failure_mode="healthy")
THROTTLED = WindowLabel.model_validate(
    {
        "failure_mode": "fail_slow",
        "straggler_type": "compute",
        "pattern": "transient",
        "causes": [
            {
                "cause": "gpu_throttling",
                "accepted": ["gpu_contention"],
                "ranks": [6],
                "seconds_per_step": 0.02,
            }
        ],
    }
)
BOTH = WindowLabel.model_validate(
    {
        "failure_mode": "fail_slow",
        "straggler_type": "communication",
        "pattern": "persistent",
        "causes": [
            {
                "cause": "nic_degradation",
                "ranks": [0, 1],
                "seconds_per_step": 0.03,
                "alone_seconds_per_step": 0.05,
            },
            {"cause": "runtime_gc", "ranks": [4], "seconds_per_step": 0.01},
        ],
    }
)
CRASHED = WindowLabel.model_validate(
    {"failure_mode": "fail_stop", "causes": [{"cause": "process_crash", "ranks": [4]}]}
)


def answer(
    mode: str,
    *causes: tuple[str, tuple[int, ...], float],
    named: tuple[int, ...] = (),
    straggler_type: str | None = "compute",
    pattern: str | None = "transient",
    confidence: float = 0.9,
    abstained: bool = False,
) -> Diagnosis:
    """A diagnosis with just what scores look at."""
    chances = dict.fromkeys(("healthy", "fail_slow", "fail_stop"), (1 - confidence) / 2) | {mode: confidence}
    straggler = {
        "ranks": list(named),
        "nodes": [],
        "scope": "rank",
        "straggler_type": straggler_type,
        "pattern": pattern,
        "probability": 0.9,
        "first_step": 0,
        "last_step": 9,
    }
    unread = {
        "interval": (0, 1),
        "share": 0.5,
        "probability": 0.9,
        "owner": "either",
        "nodes": [],
        "evidence": [],
    }
    counts = ("rows_used", "rows_unused", "steps_used", "warmup_steps")
    counts += ("metric_samples_used", "metric_samples_unused", "events_used", "events_unused")
    return Diagnosis.model_validate(
        {
            "diagnosis_id": "d",
            "window_id": None,
            "job_id": "j",
            "created_at": "2026-01-01T00:00:00Z",
            "model": {"name": "m", "version": "1", "sha256": "0"},
            "failure_mode": mode,
            "failure_mode_probability": chances,
            "slowdown": {
                "ratio": 1.2,
                "seconds_per_step": 0.02,
                "versus_own_past": None,
                "interval": (0, 1),
                "gpu_hours_lost": 0,
            },
            "stragglers": [straggler] if named else [],
            "causes": [
                unread | {"cause": name, "ranks": list(ranks), "seconds_per_step": seconds}
                for name, ranks, seconds in causes
            ],
            "unexplained_seconds_per_step": 0.0,
            "abstained": abstained,
            "next_check": "",
            "actions": [],
            "missing_signals": [],
            "quality": dict.fromkeys(counts, 0) | {"unknown_metrics": [], "notes": []},
        }
    )


def test_a_right_answer_scores_full_marks() -> None:
    judged = judge(answer("fail_slow", ("gpu_throttling", (6,), 0.02), named=(6,)), THROTTLED)
    assert (judged.mode_right, judged.rank_precision, judged.rank_recall, judged.ranks_exact) == (1, 1, 1, 1)
    assert (judged.type_right, judged.pattern_right, judged.rank_of_cause) == (1, 1, 1)
    assert judged.seconds_error == pytest.approx(0.0)
    assert isnan(judged.false_alarm)


def test_a_look_alike_that_the_label_accepts_is_right() -> None:
    judged = judge(answer("fail_slow", ("gpu_contention", (6,), 0.03), named=(6,)), THROTTLED)
    assert judged.rank_of_cause == 1
    assert judged.seconds_error == pytest.approx(0.5)


def test_the_right_cause_on_the_wrong_rank_is_no_hit() -> None:
    judged = judge(answer("fail_slow", ("gpu_throttling", (5,), 0.02), named=(5,)), THROTTLED)
    assert (judged.rank_precision, judged.rank_recall, judged.ranks_exact) == (0, 0, 0)
    assert (judged.rank_of_cause, judged.rank_of_cause_name) == (inf, 1)


def test_the_position_of_the_first_true_cause_counts() -> None:
    others = ("runtime_gc", (6,), 0.02), ("pcie_degradation", (6,), 0.01)
    given = answer("fail_slow", *others, ("gpu_throttling", (6,), 0.01), named=(6,))
    assert judge(given, THROTTLED).rank_of_cause == 3


def test_naming_too_many_ranks_costs_precision_and_too_few_recall() -> None:
    wide = judge(answer("fail_slow", named=(0, 1, 4, 7)), BOTH)
    narrow = judge(answer("fail_slow", named=(0,)), BOTH)
    assert (wide.rank_precision, wide.rank_recall, wide.ranks_exact) == (0.75, 1.0, 0.0)
    assert (narrow.rank_precision, narrow.rank_recall) == (1.0, pytest.approx(1 / 3))


def test_naming_nobody_has_no_precision_but_no_recall_either() -> None:
    judged = judge(answer("healthy"), THROTTLED)
    assert isnan(judged.rank_precision)
    assert (judged.rank_recall, judged.mode_right, judged.rank_of_cause) == (0, 0, inf)


def test_seconds_are_compared_with_the_mean_of_marginal_and_alone() -> None:
    """Of two causes that hide each other, Shapley's share lies half way between both costs."""
    judged = judge(answer("fail_slow", ("nic_degradation", (0, 1), 0.03), named=(0, 1)), BOTH)
    assert judged.seconds_error == pytest.approx(0.25)


@pytest.mark.parametrize(
    "known",
    [{"injected": [{"kind": "nic_loss"}]}, {"source": "simulation", "impact": {"ratio": 1.03}}],
)
def test_a_fault_that_nobody_felt_is_judged_apart(known: dict[str, object]) -> None:
    hidden = WindowLabel.model_validate(HEALTHY.model_dump() | known)
    judged = judge(answer("fail_slow"), hidden)
    assert judged.unfelt_alarm == 1
    assert all(isnan(value) for value in (judged.false_alarm, judged.mode_right, judged.confidence))
    assert judge(answer("healthy"), hidden).unfelt_alarm == 0
    assert isnan(judge(answer("healthy"), HEALTHY).unfelt_alarm)


def test_a_blamed_healthy_window_is_a_false_alarm_and_nothing_else() -> None:
    judged = judge(answer("fail_slow", ("gpu_throttling", (6,), 0.02), named=(6,)), HEALTHY)
    assert (judged.false_alarm, judged.mode_right) == (1, 0)
    assert all(isnan(value) for value in (judged.rank_recall, judged.rank_of_cause, judged.type_right))
    assert judge(answer("healthy"), HEALTHY).false_alarm == 0


def test_a_stop_has_neither_type_nor_pattern_nor_seconds() -> None:
    judged = judge(
        answer("fail_stop", ("process_crash", (4,), 0.0), named=(4,), straggler_type=None, pattern=None),
        CRASHED,
    )
    assert (judged.mode_right, judged.ranks_exact, judged.rank_of_cause) == (1, 1, 1)
    assert all(isnan(value) for value in (judged.type_right, judged.pattern_right, judged.seconds_error))


def test_the_summary_is_the_mean_over_the_windows_a_score_applies_to() -> None:
    right = answer("fail_slow", ("gpu_throttling", (6,), 0.02), named=(6,))
    third = answer(
        "fail_slow",
        ("runtime_gc", (6,), 0.02),
        ("hang", (6,), 0.0),
        ("gpu_throttling", (6,), 0.0),
        named=(6,),
    )
    judged = [
        judge(right, THROTTLED),
        judge(third, THROTTLED),
        judge(answer("healthy"), HEALTHY),
        judge(right, HEALTHY),
    ]
    summary = summarise(judged)
    assert summary["failure_mode_accuracy"]["value"] == 0.75
    assert summary["false_alarm_rate"] | {"low": 0, "high": 0} == {
        "value": 0.5,
        "low": 0,
        "high": 0,
        "n": 2.0,
    }
    assert (summary["cause_ac@1"]["value"], summary["cause_ac@3"]["value"]) == (0.5, 1.0)
    assert summary["cause_avg@5"]["value"] == pytest.approx((1.0 + 0.6) / 2)
    for row in summary.values():
        if "low" in row and row["n"]:
            assert row["low"] <= row["value"] <= row["high"]


def test_a_summary_of_nothing_that_applies_is_nan_not_zero() -> None:
    summary = summarise([judge(answer("healthy"), HEALTHY)])
    assert isnan(summary["cause_ac@1"]["value"])
    assert summary["cause_ac@1"]["n"] == 0


def test_abstaining_is_scored_apart() -> None:
    judged = [judge(answer("fail_slow", abstained=True), HEALTHY), judge(answer("healthy"), HEALTHY)]
    summary = summarise(judged)
    assert summary["abstention_rate"]["value"] == 0.5
    assert summary["failure_mode_accuracy"]["value"] == 0.5
    assert summary["failure_mode_accuracy_when_not_abstaining"]["value"] == 1.0


def test_the_summary_is_reproducible() -> None:
    judged = [judge(answer("healthy"), HEALTHY), judge(answer("fail_slow", named=(1,)), HEALTHY)] * 5
    assert str(summarise(judged)) == str(summarise(judged))


@pytest.mark.parametrize(
    ("confidence", "right", "error"),
    [
        ([0.8] * 10, [1] * 8 + [0] * 2, 0.0),
        ([1.0] * 4, [1, 1, 0, 0], 0.5),
        ([0.95, 0.55], [1, 1], (0.05 + 0.45) / 2),
        ([0.0, 1.0], [0, 1], 0.0),
    ],
)
def test_calibration_error_is_the_gap_between_confidence_and_accuracy(confidence, right, error) -> None:
    assert calibration_error(np.array(confidence), np.array(right, dtype=float)) == pytest.approx(error)


def with_sets(mode_set: list[str], *cause_sets: tuple[tuple[int, ...], list[str]]) -> Diagnosis:
    """A fail-slow diagnosis whose stragglers have these plausible causes."""
    found = answer("fail_slow", named=(6,))
    groups = [
        found.stragglers[0].model_copy(update={"ranks": list(ranks), "plausible_causes": causes})
        for ranks, causes in cause_sets
    ]
    return found.model_copy(update={"failure_mode_set": mode_set, "stragglers": groups})


def test_a_set_covers_what_is_in_it() -> None:
    judged = judge(
        with_sets(["fail_slow", "healthy"], ((6,), ["cpu_contention", "gpu_throttling"])), THROTTLED
    )
    assert (judged.mode_covered, judged.mode_set_size) == (1.0, 2.0)
    assert (judged.cause_covered, judged.cause_set_size) == (1.0, 2.0)


def test_a_set_without_the_truth_does_not_cover() -> None:
    judged = judge(with_sets(["healthy"], ((6,), ["runtime_gc"])), THROTTLED)
    assert (judged.mode_covered, judged.cause_covered) == (0.0, 0.0)


def test_a_look_alike_that_the_label_accepts_is_covered() -> None:
    assert judge(with_sets(["fail_slow"], ((6,), ["gpu_contention"])), THROTTLED).cause_covered == 1.0


def test_causes_are_only_asked_of_stragglers_that_are_some() -> None:
    """Of a rank on which nothing was done no set can hold the true cause."""
    judged = judge(with_sets(["fail_slow"], ((2,), ["runtime_gc"])), THROTTLED)
    assert isnan(judged.cause_covered)
    both = judge(with_sets(["fail_slow"], ((2,), ["runtime_gc"]), ((6,), ["gpu_throttling"])), THROTTLED)
    assert (both.cause_covered, both.cause_set_size) == (1.0, 1.0)


def test_an_answer_without_sets_has_no_coverage() -> None:
    judged = judge(answer("fail_slow", named=(6,)), THROTTLED)
    assert all(
        isnan(value)
        for value in (judged.mode_covered, judged.mode_set_size, judged.cause_covered, judged.unfamiliar)
    )
    table = summarise([judged])
    assert table["mode_set_coverage"]["n"] == 0
    covered = summarise([judge(with_sets(["fail_slow"]), THROTTLED)] * 3)
    assert (covered["mode_set_coverage"]["value"], covered["mode_set_size"]["value"]) == (1.0, 1.0)


def test_the_truth_unknown_is_met_by_the_right_ranks_and_no_catalogue_cause() -> None:
    label = slow_label("unknown", seconds_per_step=0.2)
    open_answer = slow_answer("unknown", abstained=True)
    priced = replace(open_answer, causes=(replace(open_answer.causes[0], seconds_per_step=0.3),))
    said = judge(priced, label)
    assert (said.rank_of_cause, said.kind) == (1.0, "right")
    assert said.seconds_error == pytest.approx(0.5)
    silent = judge(replace(slow_answer(abstained=True), causes=()), label)
    assert (silent.rank_of_cause, silent.kind) == (1.0, "right")
    elsewhere = judge(slow_answer("unknown", ranks=(2,), abstained=True), label)
    assert (elsewhere.rank_of_cause, elsewhere.kind) == (np.inf, "only other ranks")


@pytest.mark.parametrize("abstained", [True, False])
def test_a_catalogue_cause_is_no_answer_to_unknown_however_doubtful(abstained: bool) -> None:
    blamed = judge(slow_answer(abstained=abstained), slow_label("unknown"))
    assert (blamed.rank_of_cause, blamed.kind) == (np.inf, "other cause")


WINDOWS = Path(__file__).resolve().parents[2] / "data" / "windows"
COSTLY = slow_label(first_step=40, seconds_per_step=0.02)


def priced(
    low: float, high: float, ranks: tuple[int, ...] = (6,), cause: str = "gpu_throttling"
) -> MethodAnswer:
    held = frozenset(ranks)
    named = (
        NamedCause("nic_degradation", frozenset({1}), 0.1, (0.0, 1.0)),
        NamedCause(cause, held, 0.02, (low, high)),
    )
    return MethodAnswer("fail_slow", held, named, onset=43)


@pytest.mark.parametrize(("low", "high", "covered"), [(0.015, 0.03, 1), (0.021, 0.03, 0), (0.0, 0.019, 0)])
def test_an_interval_is_judged_by_the_true_cost_and_by_its_width(
    low: float, high: float, covered: int
) -> None:
    judged = judge(priced(low, high), COSTLY)
    assert judged.cost_covered == covered
    assert judged.cost_width == pytest.approx((high - low) / 0.02)


def test_intervals_of_others_are_not_judged() -> None:
    for said in (priced(0.0, 1.0, ranks=(5,)), priced(0.0, 1.0, cause="runtime_gc")):
        assert isnan(judge(said, COSTLY).cost_covered)
        assert isnan(judge(said, COSTLY).cost_width)
    assert isnan(judge(priced(0.0, 1.0), slow_label()).cost_covered)


def test_an_onset_is_judged_where_it_lies_within_the_window() -> None:
    said = priced(0.0, 1.0)
    assert judge(said, COSTLY, first_step=10).onset_error == 3
    assert isnan(judge(said, COSTLY, first_step=40).onset_error)
    assert isnan(judge(said, COSTLY).onset_error)
    assert isnan(judge(replace(said, mode="healthy"), COSTLY, first_step=10).onset_error)
    assert isnan(judge(said, slow_label(), first_step=10).onset_error)


def test_onset_and_interval_of_a_diagnosis_are_judged() -> None:
    window = rca.read_window(WINDOWS / "cpu-contention-node")
    said = rca.diagnose(window)
    first = said.causes[0]
    label = slow_label(first.cause, tuple(first.ranks), first_step=21, seconds_per_step=first.interval[0])
    told = judged_row("w", window, label, signals="all", method="x", answer=MethodAnswer.from_diagnosis(said))
    low, high = first.interval
    assert told.judged.cost_covered == 1
    assert told.judged.cost_width == pytest.approx((high - low) / low)
    assert told.judged.onset_error == 0


def test_the_onset_is_that_of_the_straggler_that_came_first() -> None:
    said = rca.diagnose(rca.read_window(WINDOWS / "cpu-contention-node"))
    (one,) = said.stragglers
    later = one.model_copy(update={"ranks": [6], "first_step": 35})
    both = said.model_copy(update={"stragglers": [later, one]})
    assert MethodAnswer.from_diagnosis(both).onset == one.first_step == 21
