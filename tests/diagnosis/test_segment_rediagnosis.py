"""A fault that acts while the other rests is named, too; nobody asks where the rest is as quick as usual."""

from __future__ import annotations

import pytest
from faults_in_turns import AMONG, STARVED, THROTTLED, in_the_midst_of_noise, job, shown

import rca
from rca.diagnosis.merge_diagnoses import merge_diagnoses
from rca.diagnosis.result import AbstentionReason
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


def test_a_part_outside_a_harmless_slow_segment_raises_the_alarm(both, hidden) -> None:
    features, healthy, alone = hidden
    (part,) = slow_parts(features)
    sure = shown(alone, "fail_slow", 0.995)
    found = with_segment_diagnoses(healthy, both.window, Outline.of(features), 1.0, lambda _part: sure)
    assert found.diagnosis_id == healthy.diagnosis_id
    for what in ("failure_mode", "failure_mode_probability", "failure_mode_set"):
        assert getattr(found, what) == getattr(sure, what)
    assert (found.stragglers, found.next_check) == (sure.stragglers, sure.next_check)
    (cause,) = found.causes
    assert cause.seconds_per_step == pytest.approx(part.share * alone.causes[0].seconds_per_step)
    assert cause.interval == pytest.approx([part.share * end for end in alone.causes[0].interval])
    lost = found.slowdown.seconds_per_step
    assert lost == pytest.approx(part.share * alone.slowdown.seconds_per_step)
    assert found.slowdown.interval == pytest.approx([part.share * end for end in alone.slowdown.interval])
    assert found.slowdown.ratio == pytest.approx(1 / (1 - lost))
    assert found.slowdown.gpu_hours_lost == pytest.approx(lost * features.work.steps.size * 16 / 3600)
    assert found.slowdown.versus_own_past == alone.slowdown.versus_own_past
    assert cause.seconds_per_step + found.unexplained_seconds_per_step == pytest.approx(lost)
    (removal,), (wanted,) = found.recovery.removals, alone.recovery.removals
    assert (removal.cause, removal.ranks) == (wanted.cause, wanted.ranks)
    saved = wanted.seconds_per_step_saved
    assert removal.seconds_per_step_saved == pytest.approx(part.share * saved)
    assert removal.interval == pytest.approx([part.share * end for end in wanted.interval])


def test_no_more_is_lost_than_the_steps_took(both, hidden) -> None:
    features, healthy, alone = hidden
    lost, short = alone.slowdown.seconds_per_step, 0.1 * alone.slowdown.seconds_per_step
    found = with_segment_diagnoses(
        healthy, both.window, Outline.of(features), short, lambda _part: shown(alone, "fail_slow", 0.995)
    )
    assert found.slowdown.seconds_per_step == pytest.approx(0.95 * short)
    assert found.slowdown.ratio == pytest.approx(20)
    scale = 0.95 * short / lost
    assert found.causes[0].seconds_per_step == pytest.approx(scale * alone.causes[0].seconds_per_step)


def doubt(code: str) -> dict[str, object]:
    return {"abstained": True, "abstention_reason": AbstentionReason(code=code, sentence="Nobody knows.")}


@pytest.mark.parametrize("reason", ["cause_not_certain", "nobody_stands_out", "out_of_distribution"])
def test_a_part_that_doubts_more_than_causes_raises_no_alarm(both, hidden, reason: str) -> None:
    features, healthy, alone = hidden
    doubtful = shown(alone, "fail_slow", 0.995).model_copy(update=doubt(reason))
    found = with_segment_diagnoses(healthy, both.window, Outline.of(features), 1.0, lambda _part: doubtful)
    assert (found is healthy) is (reason == "out_of_distribution")
    if found is not healthy:
        assert found.abstention_reason == doubtful.abstention_reason


def test_a_part_that_is_not_sure_or_unfamiliar_raises_no_alarm(both, hidden) -> None:
    features, healthy, alone = hidden
    quality = alone.quality.model_copy(update={"out_of_distribution": True})
    unfamiliar = shown(alone, "fail_slow", 0.995).model_copy(update={"quality": quality})
    for part in (unfamiliar, shown(alone, "fail_slow", 0.985), shown(alone, "fail_stop", 0.0)):
        found = with_segment_diagnoses(
            healthy, both.window, Outline.of(features), 1.0, lambda _part, said=part: said
        )
        assert found is healthy


def test_a_healthy_verdict_that_abstains_is_not_overruled(both, hidden) -> None:
    """Other steps do not resolve how the job ended, or what a past event was."""
    features, healthy, alone = hidden
    sure = shown(alone, "fail_slow", 0.995)
    for code in ("fell_silent", "left_at_once", "single_event", "out_of_distribution"):
        doubtful = healthy.model_copy(update=doubt(code))
        assert (
            with_segment_diagnoses(doubtful, both.window, Outline.of(features), 1.0, lambda _part: sure)
            is doubtful
        )


def test_whether_it_is_slow_at_all_is_a_question_that_a_part_answers(both, hidden) -> None:
    features, healthy, alone = hidden
    undecided = healthy.model_copy(update=doubt("undecided_mode"))
    sure = shown(alone, "fail_slow", 0.995)
    found = with_segment_diagnoses(undecided, both.window, Outline.of(features), 1.0, lambda _part: sure)
    assert found.failure_mode == "fail_slow"
    assert not found.abstained


def test_a_healthy_job_without_a_slow_part_is_not_diagnosed_again(hidden) -> None:
    def ask(_part):
        raise AssertionError("wanted")

    _, healthy, _ = hidden
    window = simulate(in_the_midst_of_noise()).window
    assert with_segment_diagnoses(healthy, window, Outline.of(extract(window)), 1.0, ask) is healthy


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
