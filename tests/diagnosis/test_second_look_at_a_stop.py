"""A stopped job is looked at again without its end."""

from __future__ import annotations

import pytest
from faults_in_turns import job

import rca
from rca.diagnosis.result import AbstentionReason
from rca.diagnosis.segment_rediagnosis import (
    Outline,
    before_the_end,
    with_segment_diagnoses,
)
from rca.features import extract
from rca.lab.simulation import Fault, simulate

HUNG = Fault(cause="hang", ranks=(7,), nodes=(0,), first_step=80)
HOT = Fault(cause="gpu_throttling", ranks=(12,), nodes=(1,), severity=0.8, first_step=20, last_step=99)


@pytest.fixture(scope="module")
def stopped():
    return simulate(job(HUNG, HOT))


def test_a_cause_of_slowness_is_added_to_the_cause_of_a_stop(stopped) -> None:
    diagnosis = rca.diagnose(stopped.window)
    assert diagnosis.failure_mode == "fail_stop"
    certain = [(each.cause, each.ranks) for each in diagnosis.causes if each.probability > 0.5]
    assert certain == [("hang", [7]), ("gpu_throttling", [12])]
    assert [(each.ranks, each.straggler_type) for each in diagnosis.stragglers] == [
        ([7], None),
        ([12], "compute"),
    ]
    slow = diagnosis.causes[1]
    (true,) = (each for each in stopped.label["causes"] if each["cause"] == "gpu_throttling")
    assert slow.seconds_per_step == pytest.approx(true["seconds_per_step"], rel=0.2)
    explained = sum(each.seconds_per_step or 0.0 for each in diagnosis.causes)
    total = explained + diagnosis.unexplained_seconds_per_step
    assert total == pytest.approx(diagnosis.slowdown.seconds_per_step)
    assert not diagnosis.abstained


def test_a_job_that_was_quick_until_it_stopped_gets_no_second_look() -> None:
    assert before_the_end(extract(simulate(job(HUNG)).window)) == []


def test_the_last_steps_belong_to_the_end(stopped) -> None:
    features = extract(stopped.window)
    (part,) = before_the_end(features)
    assert part.first == features.work.steps[0]
    assert part.end <= features.work.steps[-2]


def test_a_doubtful_stop_gets_no_second_look(stopped) -> None:
    """Why it was slow would be read as the answer to why it stopped."""

    def ask(_part):
        raise AssertionError("wanted")

    certain = rca.diagnose(stopped.window)
    doubt = AbstentionReason(code="cause_not_certain", sentence="Nobody knows.")
    features = extract(stopped.window)
    for change in ({"abstained": True, "abstention_reason": doubt}, {"causes": []}):
        doubtful = certain.model_copy(update=change)
        assert with_segment_diagnoses(doubtful, stopped.window, Outline.of(features), 1.0, ask) is doubtful
