"""Answers of format 1 are read: unknown costs become null, and the verdict follows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

import rca
from rca.diagnosis.result import Diagnosis
from tests.for_each import for_each

#: An answer as version 1 of the format wrote it; only what differs by window is in `changed`.
STORED: dict[str, Any] = {
    "format": 1,
    "diagnosis_id": "d-1",
    "window_id": None,
    "job_id": "llama-7b",
    "created_at": "2026-03-01T03:00:00Z",
    "model": {"name": "baseline", "version": "0.1.0", "sha256": "ab" * 32},
    "failure_mode": "fail_slow",
    "failure_mode_probability": {"healthy": 0.1, "fail_slow": 0.9, "fail_stop": 0.0},
    "slowdown": {
        "ratio": 1.28,
        "seconds_per_step": 0.032,
        "versus_own_past": None,
        "interval": [0.02, 0.04],
        "gpu_hours_lost": 0.5,
    },
    "stragglers": [
        {
            "ranks": [6],
            "nodes": ["node-3"],
            "scope": "rank",
            "straggler_type": "compute",
            "pattern": "persistent",
            "probability": 0.9,
            "first_step": 3,
            "last_step": 9,
        }
    ],
    "causes": [
        {
            "cause": "gpu_throttling",
            "ranks": [6],
            "nodes": ["node-3"],
            "probability": 0.9,
            "seconds_per_step": 0.032,
            "interval": [0.02, 0.04],
            "share": 1.0,
            "owner": "infrastructure",
            "evidence": [],
        }
    ],
    "unexplained_seconds_per_step": 0.0,
    "abstained": False,
    "next_check": "",
    "actions": [],
    "missing_signals": [],
    "quality": {
        "rows_used": 10,
        "rows_unused": 0,
        "steps_used": 10,
        "warmup_steps": 0,
        "metric_samples_used": 0,
        "metric_samples_unused": 0,
        "events_used": 0,
        "events_unused": 0,
        "unknown_metrics": [],
        "notes": [],
    },
}
NO_PRICE = {
    "signal": "seconds_per_step",
    "value": None,
    "reference": None,
    "unit": "s",
    "note": "unknown",
    "direction": "for",
}


def read(**changed: Any) -> Diagnosis:
    return Diagnosis.model_validate_json(json.dumps(STORED | changed))


def cause(**changed: Any) -> dict[str, Any]:
    return {**STORED["causes"][0], **changed}


def test_known_costs_stay_and_the_verdict_is_the_mode() -> None:
    found = read()
    assert (found.format, found.verdict, found.slowdown.seconds_per_step) == (2, "fail_slow", 0.032)
    assert (found.causes[0].seconds_per_step, found.causes[0].share) == (0.032, 1.0)
    assert (found.since, found.window, found.stragglers[0].places) == (None, None, [])


def test_an_abstention_is_undecided() -> None:
    assert read(abstained=True).verdict == "undecided"


def test_a_cause_without_a_price_has_no_cost_and_so_has_the_slowdown() -> None:
    found = read(causes=[cause(seconds_per_step=0.0, interval=[0.0, 0.0], share=0.0, evidence=[NO_PRICE])])
    (unpriced,) = found.causes
    assert (unpriced.seconds_per_step, unpriced.interval, unpriced.share) == (None, None, None)
    assert unpriced.without_price
    assert (found.slowdown.ratio, found.unexplained_seconds_per_step) == (None, None)
    assert "cost unknown" in found.to_markdown().splitlines()[0]


def test_one_priced_cause_keeps_the_slowdown() -> None:
    unpriced = cause(cause="gpu_contention", seconds_per_step=0.0, evidence=[NO_PRICE])
    found = read(causes=[cause(), unpriced])
    assert [each.seconds_per_step for each in found.causes] == [0.032, None]
    assert found.slowdown.seconds_per_step == 0.032


def test_a_cause_of_a_stop_has_no_cost_per_step() -> None:
    found = read(failure_mode="fail_stop", causes=[cause(cause="hang", seconds_per_step=0.0)])
    assert found.causes[0].seconds_per_step is None
    assert not found.causes[0].without_price


def test_untimed_steps_have_no_cost() -> None:
    untimed = STORED["quality"] | {"steps_used": 0}
    none = {"ratio": 1.0, "seconds_per_step": 0.0, "versus_own_past": None, "interval": [0, 0]}
    found = read(quality=untimed, slowdown=none | {"gpu_hours_lost": 0.0}, causes=[])
    assert found.slowdown.seconds_per_step is None


def test_an_undecided_job_wide_slowdown_does_not_cost_nothing() -> None:
    slower = STORED["slowdown"] | {"ratio": 1.0, "seconds_per_step": 0.0, "versus_own_past": 1.5}
    found = read(abstained=True, failure_mode="healthy", slowdown=slower, causes=[], stragglers=[])
    assert found.slowdown.seconds_per_step is None
    assert "steps 1.50x as long as before, cost unknown" in found.to_markdown().splitlines()[0]


def test_what_was_lifted_is_read_again_as_it_is() -> None:
    found = read(abstained=True)
    assert Diagnosis.model_validate_json(found.to_json()) == found


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(ValidationError, match="format"):
        read(format=3)


@for_each(
    "changed",
    [
        {"causes": None},
        {"causes": ["x"]},
        {"causes": [{"cause": "hang"}, {"cause": "gpu_throttling"}]},
        {"causes": [cause(evidence=None)]},
        {"slowdown": None},
        {"slowdown": {"versus_own_past": "x"}},
        {"quality": []},
    ],
)
def test_a_part_of_a_wrong_type_is_a_validation_error(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="missing or has a wrong type"):
        read(**changed)


def test_a_stored_answer_of_format_1_can_be_planned_for() -> None:
    assert rca.plan(read()).seconds_per_step_lost == 0.032
