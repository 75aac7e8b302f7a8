"""A fault that acts while the other rests is named, too; nobody asks where the rest is as quick as usual."""

from __future__ import annotations

import pytest
import simulated_jobs

import rca
from rca.diagnosis.merge_diagnoses import merge_diagnoses
from rca.diagnosis.result import AbstentionReason, Slowdown
from rca.diagnosis.segment_rediagnosis import (
    Outline,
    Part,
    before_the_end,
    slow_parts,
    with_segment_diagnoses,
)
from rca.features import extract
from rca.lab.simulation import Fault, SimulationScenario, simulate

THROTTLED = Fault(cause="gpu_throttling", ranks=(3,), nodes=(0,), severity=0.8, first_step=8, last_step=34)
STARVED = Fault(cause="data_loader_stall", ranks=(12,), nodes=(1,), severity=0.9, first_step=48, last_step=95)


#: A quarter of the window's steps.
AMONG = {"share": 0.25, "measured": 1.0, "rank_steps": 1600.0}


def job(*faults: Fault) -> SimulationScenario:
    return simulated_jobs.job(*faults, seed=11, workload=simulated_jobs.WORKLOAD)


@pytest.fixture(scope="module")
def both():
    return simulate(job(THROTTLED, STARVED))


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


def in_the_midst_of_noise(*faults: Fault) -> SimulationScenario:
    """Node 0 hiccups for four steps, as it may: the slowest stretch of any job."""
    hiccup = Fault(
        cause="cpu_contention", ranks=tuple(range(8)), nodes=(0,), severity=1.0, strength=3.0,
        first_step=60, last_step=63,
    )  # fmt: skip
    return job(*faults, hiccup)


def shown(diagnosis: rca.Diagnosis, mode: str, belief: float) -> rca.Diagnosis:
    chances = {"healthy": 1.0 - belief, "fail_slow": belief, "fail_stop": 0.0}
    return diagnosis.model_copy(update={"failure_mode": mode, "failure_mode_probability": chances})


@pytest.fixture(scope="module")
def hidden(both):
    """A window whose rest is slow; a healthy verdict on it, and what a part of it says for certain."""
    alone = rca.diagnose(simulate(job(THROTTLED)).window)
    healthy = rca.diagnose(simulate(job()).window)
    assert healthy.failure_mode == "healthy"
    return extract(both.window), healthy, alone


def test_a_part_outside_a_harmless_slow_segment_raises_the_alarm(both, hidden) -> None:
    features, healthy, alone = hidden
    (part,) = slow_parts(features)
    sure = shown(alone, "fail_slow", 0.995)
    found = with_segment_diagnoses(healthy, both.window, Outline.of(features), 1.0, lambda _part: sure)
    assert found.diagnosis_id == healthy.diagnosis_id
    for what in ("failure_mode", "failure_mode_probability", "failure_mode_set", "failure_mode_evidence"):
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


ALL_ALONG = Fault(cause="gpu_throttling", ranks=(3,), nodes=(0,), severity=0.3)


@pytest.fixture(scope="module")
def amid():
    """A window whose steps on both sides of a harmless stretch are slow, and its sides."""
    window = simulate(in_the_midst_of_noise(ALL_ALONG)).window
    features = extract(window)
    before, after = slow_parts(features)
    assert before.end <= 60 < 64 <= after.first
    return window, features, before, after


def said(alone: rca.Diagnosis, part: Part, first: int, last: int, **change) -> rca.Diagnosis:
    """What a diagnosis says of a part, slow from its `first` to its `last` step."""
    (one,) = alone.stragglers
    steps = {"first_step": part.first + first, "last_step": part.end - 1 - last}
    update = {"stragglers": [one.model_copy(update=steps)], **change}
    return shown(alone, "fail_slow", 0.995).model_copy(update=update)


def halved(alone: rca.Diagnosis) -> Slowdown:
    return alone.slowdown.model_copy(update={"seconds_per_step": alone.slowdown.seconds_per_step / 2})


def asked_of(answers: dict[Part, rca.Diagnosis]):
    """A diagnosis that knows what to say of each part, by its number of steps' first."""

    def ask(window: rca.Window) -> rca.Diagnosis:
        begin = int(window.steps.column("step").to_numpy().min())
        return next(answer for part, answer in answers.items() if part.first == begin)

    return ask


def test_parts_that_agree_throughout_count_for_the_whole_window(amid, hidden) -> None:
    window, features, before, after = amid
    _, healthy, alone = hidden
    answers = {before: said(alone, before, 0, 0), after: said(alone, after, 0, 0, slowdown=halved(alone))}
    found = with_segment_diagnoses(healthy, window, Outline.of(features), 1.0, asked_of(answers))
    mean = (before.share + after.share / 2) / (before.share + after.share)
    assert found.causes[0].seconds_per_step == pytest.approx(mean * alone.causes[0].seconds_per_step)
    (one,) = found.stragglers
    assert (one.first_step, one.last_step) == (features.work.steps[0], features.work.steps[-1])
    assert found.slowdown.versus_own_past is None


@pytest.mark.parametrize(("late", "early"), [(20, 0), (0, 9)], ids=["beginning", "end"])
def test_parts_that_agree_but_for_an_end_cost_what_each_of_them_lost(
    amid, hidden, late: int, early: int
) -> None:
    window, features, before, after = amid
    _, healthy, alone = hidden
    answers = {
        before: said(alone, before, late, 0, slowdown=halved(alone)),
        after: said(alone, after, 0, early),
    }
    found = with_segment_diagnoses(healthy, window, Outline.of(features), 1.0, asked_of(answers))
    lost = alone.slowdown.seconds_per_step * (before.share / 2 + after.share)
    assert found.slowdown.seconds_per_step == pytest.approx(lost)
    (one,) = found.stragglers
    assert (one.first_step, one.last_step) == (before.first + late, after.end - 1 - early)


def test_a_part_that_agrees_without_being_sure_adds_its_steps_and_not_its_pattern(amid, hidden) -> None:
    window, features, before, after = amid
    _, healthy, alone = hidden
    sure, likely = said(alone, after, 0, 3), said(alone, before, 20, 0)
    patterns = {id(sure): "persistent", id(likely): "transient"}
    sure, likely = (
        each.model_copy(
            update={"stragglers": [each.stragglers[0].model_copy(update={"pattern": patterns[id(each)]})]}
        )
        for each in (sure, likely)
    )
    answers = {before: shown(likely, "fail_slow", 0.95), after: sure}
    found = with_segment_diagnoses(healthy, window, Outline.of(features), 1.0, asked_of(answers))
    (one,) = found.stragglers
    assert (one.first_step, one.pattern) == (before.first + 20, "persistent")
    assert found.failure_mode_probability == sure.failure_mode_probability


def test_parts_without_causes_agree_on_who_is_slow_and_how(amid, hidden) -> None:
    window, features, before, after = amid
    _, healthy, alone = hidden
    nameless = {"causes": [], "actions": [], **doubt("cause_not_certain")}
    for kind, first in ((None, before.first), ("io", after.first)):
        answers = {part: said(alone, part, 1, 0, **nameless) for part in (before, after)}
        likely = shown(answers[before], "fail_slow", 0.95)
        (one,) = likely.stragglers
        other = one if kind is None else one.model_copy(update={"straggler_type": kind})
        answers[before] = likely.model_copy(update={"stragglers": [other]})
        found = with_segment_diagnoses(healthy, window, Outline.of(features), 1.0, asked_of(answers))
        assert found.stragglers[0].first_step == first + 1


@pytest.mark.parametrize("stopped", [False, True], ids=["healthy", "stopped"])
def test_a_part_that_knows_nothing_of_it_keeps_a_fault_to_the_other(amid, hidden, stopped: bool) -> None:
    window, features, before, after = amid
    _, healthy, alone = hidden
    end = shown(said(alone, before, 0, 0), "fail_stop", 0.0)
    answers = {before: end if stopped else healthy, after: said(alone, after, 0, 0)}
    found = with_segment_diagnoses(healthy, window, Outline.of(features), 1.0, asked_of(answers))
    assert found.causes[0].seconds_per_step == pytest.approx(after.share * alone.causes[0].seconds_per_step)
    (one,) = found.stragglers
    assert (one.first_step, one.last_step) == (after.first, after.end - 1)


def test_parts_with_different_faults_add_both(amid, hidden, both) -> None:
    window, features, before, after = amid
    _, healthy, alone = hidden
    other = rca.diagnose(simulate(job(STARVED)).window)
    answers = {before: said(alone, before, 0, 0), after: shown(said(other, after, 0, 0), "fail_slow", 0.999)}
    found = with_segment_diagnoses(healthy, window, Outline.of(features), 1.0, asked_of(answers))
    assert found.failure_mode_probability == answers[before].failure_mode_probability
    assert {each.cause: each.seconds_per_step for each in found.causes} == {
        "gpu_throttling": pytest.approx(before.share * alone.causes[0].seconds_per_step),
        "data_loader_stall": pytest.approx(after.share * other.causes[0].seconds_per_step),
    }
    assert {(*each.ranks, each.first_step) for each in found.stragglers} == {
        (3, before.first),
        (12, after.first),
    }


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
