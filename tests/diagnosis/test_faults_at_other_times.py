"""Faults at different times of one window, and a fault before the job stopped, are all named."""

from __future__ import annotations

import pytest
from faults_in_turns import STARVED, THROTTLED, job

import rca
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


def test_a_job_that_was_quick_until_it_stopped_has_only_the_cause_of_the_stop() -> None:
    assert [
        each.cause for each in rca.diagnose(simulate(job(HUNG)).window).causes if each.probability > 0.5
    ] == ["hang"]


@pytest.fixture(scope="module")
def diagnosis(both) -> rca.Diagnosis:
    return rca.diagnose(both.window)


def test_of_two_faults_in_turns_both_are_named(diagnosis: rca.Diagnosis) -> None:
    assert {(each.cause, *each.ranks) for each in diagnosis.causes if each.probability > 0.5} == {
        ("gpu_throttling", 3),
        ("data_loader_stall", 12),
    }
    steps = {tuple(each.ranks): (each.first_step, each.last_step) for each in diagnosis.stragglers}
    assert steps.keys() == {(3,), (12,)}
    assert steps[3,][1] < steps[12,][0]


def test_each_costs_what_it_cost_over_all_steps(both, diagnosis: rca.Diagnosis) -> None:
    true = {each["cause"]: each["seconds_per_step"] for each in both.label["causes"]}
    shown = {each.cause: each.seconds_per_step for each in diagnosis.causes}
    assert shown == {cause: pytest.approx(seconds, rel=0.15) for cause, seconds in true.items()}
    assert sum(true.values()) == pytest.approx(diagnosis.slowdown.seconds_per_step, rel=0.15)


def test_seconds_and_shares_add_up(diagnosis: rca.Diagnosis) -> None:
    total = diagnosis.slowdown.seconds_per_step
    explained = sum(each.seconds_per_step or 0.0 for each in diagnosis.causes)
    assert explained + diagnosis.unexplained_seconds_per_step == pytest.approx(total)
    assert [each.share for each in diagnosis.causes] == [
        pytest.approx(each.seconds_per_step / total) for each in diagnosis.causes
    ]
    assert {name for each in diagnosis.actions for name in each.causes} == {
        each.cause for each in diagnosis.causes
    }


@pytest.mark.parametrize("fault", [THROTTLED, STARVED], ids=["early", "late"])
def test_one_fault_is_named_once(fault: Fault) -> None:
    diagnosis = rca.diagnose(simulate(job(fault)).window)
    assert [each.ranks for each in diagnosis.stragglers] == [list(fault.ranks)]
    assert diagnosis.causes[0].cause == fault.cause
