"""Parts of a job that are diagnosed on their own, and agree or disagree with the whole."""

from __future__ import annotations

import pytest
from faults_in_turns import STARVED, in_the_midst_of_noise, job, shown
from test_segment_rediagnosis import doubt

import rca
from rca.diagnosis.result import Slowdown
from rca.diagnosis.segment_rediagnosis import (
    Outline,
    Part,
    slow_parts,
    with_segment_diagnoses,
)
from rca.features import extract
from rca.lab.simulation import Fault, simulate

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
