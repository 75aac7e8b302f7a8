"""A fault that acts while the other rests is named, too; nobody asks where the rest is as quick as usual."""

from __future__ import annotations

import pytest
from faults_in_turns import AMONG, STARVED, THROTTLED, job

import rca
from rca.diagnosis.merge_diagnoses import merge_diagnoses
from rca.diagnosis.segment_rediagnosis import (
    Outline,
    slow_parts,
    with_segment_diagnoses,
)
from rca.features import extract
from rca.lab.simulation import Fault, simulate


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


@pytest.mark.parametrize("faults", [(STARVED,), ()], ids=["late", "none"])
def test_where_the_rest_is_quick_nobody_asks_about_it(faults) -> None:
    assert slow_parts(extract(simulate(job(*faults)).window)) == []


def test_a_slow_part_is_diagnosed_on_its_own(both) -> None:
    features = extract(both.window)
    segment, steps = features.comparison.segment, features.work.steps
    (part,) = slow_parts(features)
    outside = (steps < part.first) | (steps >= part.end)
    assert outside[segment.first : segment.last + 1].all()
    assert part.share == pytest.approx((part.end - part.first) / steps.size)


def test_a_healthy_job_is_not_diagnosed_again(both, diagnosis: rca.Diagnosis) -> None:
    """Latenesses raise its alarm, whatever the steps in which they are."""

    def unexpected(_part: rca.Window) -> rca.Diagnosis:
        raise AssertionError

    features = extract(both.window)
    healthy = diagnosis.model_copy(update={"failure_mode": "healthy"})
    found = with_segment_diagnoses(healthy, both.window, Outline.of(features), 1.0, unexpected)
    assert found is healthy


@pytest.mark.parametrize(
    "change",
    [
        {"failure_mode": "healthy"},
        {"abstained": True},
        {"failure_mode_probability": {"healthy": 0.05, "fail_slow": 0.95, "fail_stop": 0.0}},
    ],
    ids=["healthy", "abstains", "not sure"],
)
def test_only_what_a_part_says_for_certain_is_added(both, diagnosis: rca.Diagnosis, change) -> None:
    alone = rca.diagnose(simulate(job(THROTTLED)).window)
    features = extract(both.window)
    assert slow_parts(features)
    certain = with_segment_diagnoses(alone, both.window, Outline.of(features), 1.0, lambda _part: diagnosis)
    assert len(certain.causes) == 2
    doubtful = diagnosis.model_copy(update=change)
    assert (
        with_segment_diagnoses(alone, both.window, Outline.of(features), 1.0, lambda _part: doubtful) is alone
    )


def test_the_same_cause_on_ranks_that_overlap_gives_way(diagnosis: rca.Diagnosis) -> None:
    sure = diagnosis.causes[0]
    ranks = [*sure.ranks, 14]
    vague = sure.model_copy(update={"ranks": ranks, "probability": 0.5})
    blamed = next(each for each in diagnosis.stragglers if each.ranks == sure.ranks)
    whole = diagnosis.model_copy(
        update={
            "causes": [vague, *diagnosis.causes[1:]],
            "stragglers": [
                each if each is not blamed else blamed.model_copy(update={"ranks": ranks})
                for each in diagnosis.stragglers
            ],
        }
    )
    found = merge_diagnoses(whole, diagnosis, [sure], **AMONG)
    assert [(each.cause, each.ranks) for each in found.causes] == [
        (each.cause, each.ranks) for each in diagnosis.causes
    ]
    assert sorted(each.ranks for each in found.stragglers) == sorted(
        each.ranks for each in diagnosis.stragglers
    )
    # The part is short: what the vaguer answer cost over all steps stands.
    assert found.causes[0].seconds_per_step == vague.seconds_per_step


def test_a_certain_cause_ends_doubt_about_causes_and_no_other(diagnosis: rca.Diagnosis) -> None:
    part = diagnosis.model_copy(update={"next_check": "look here"})
    for code, abstains in (("nobody_stands_out", False), ("too_short", True)):
        doubt = {"abstained": True, "abstention_reason": {"code": code, "sentence": "because"}}
        empty = rca.Diagnosis.model_validate(
            diagnosis.to_dict() | doubt | {"causes": [], "stragglers": [], "actions": []}
        )
        found = merge_diagnoses(empty, part, part.causes[:1], **AMONG)
        assert found.abstained is abstains
        assert (found.next_check == "look here") is not abstains


def test_what_was_taken_for_the_usual_pace_makes_the_job_slower(diagnosis: rca.Diagnosis) -> None:
    explained = sum(each.seconds_per_step or 0.0 for each in diagnosis.causes)
    slowdown = diagnosis.slowdown.model_copy(update={"seconds_per_step": explained, "ratio": 1.1})
    whole = diagnosis.model_copy(
        update={"slowdown": slowdown, "causes": [], "unexplained_seconds_per_step": 0.0}
    )
    costly = diagnosis.causes[0].model_copy(update={"seconds_per_step": 4 * explained})
    found = merge_diagnoses(whole, diagnosis, [costly], share=0.5, measured=10.0, rank_steps=3600.0)
    assert found.slowdown.seconds_per_step == pytest.approx(2 * explained)
    assert found.slowdown.ratio == pytest.approx(10.0 / (10.0 - 2 * explained))
    assert found.slowdown.gpu_hours_lost == pytest.approx(slowdown.gpu_hours_lost + explained)
    assert found.unexplained_seconds_per_step == pytest.approx(0.0)


def test_parts_are_cut_as_their_steps_say(both) -> None:
    features = extract(both.window)
    wanted: list[tuple[int, int]] = []

    def ask(part: rca.Window) -> rca.Diagnosis:
        steps = part.steps.column("step").to_numpy()
        wanted.append((int(steps.min()), int(steps.max()) + 1))
        return rca.diagnose(part)

    with_segment_diagnoses(rca.diagnose(both.window), both.window, Outline.of(features), 1.0, ask)
    assert wanted == [(first, end) for first, end, _ in slow_parts(features)]
