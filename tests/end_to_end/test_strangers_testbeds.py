"""Real captures of strangers' harnesses: most that can be told is told, and nothing is learned from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from strangers import Answer, alarms, diagnosed, is_right

import rca
from rca.lab.testbed.pack import unpack
from rca.sources.labels import read_label

pytestmark = [pytest.mark.system, pytest.mark.smoke, pytest.mark.slow]

PACKED = Path(__file__).parents[2] / "data" / "testbed"
AnswersOf = Callable[[str], list[Answer]]


class Bounds(NamedTuple):
    """Healthy and faulty windows, how many may alarm, and shares of right answers that are exceeded.

    A share is today's less two standard deviations, or the older bound where that is tighter.
    """

    healthy: int
    faulty: int
    alarms: int
    right: float
    right_of_named: float
    right_mode: float


BOUNDS = {
    "second": Bounds(18, 69, 0, 0.78, 0.81, 0.94),
    "third": Bounds(33, 102, 0, 0.67, 0.76, 0.84),
    "fourth": Bounds(39, 99, 2, 0.69, 0.82, 0.91),
}
#: The second has the fewest windows: `pytest --long` judges them, too.
TESTBEDS = [pytest.param("second", marks=pytest.mark.long), "third", "fourth"]


@pytest.fixture(scope="module")
def answers_of(tmp_path_factory: pytest.TempPathFactory) -> AnswersOf:
    """Answers about every window of a testbed, by its name."""

    @cache
    def answers(testbed: str) -> list[Answer]:
        folder = tmp_path_factory.mktemp(testbed) / "captures"
        unpack(PACKED / testbed, folder)
        return diagnosed(folder, sorted(each.parent.name for each in folder.glob("*/window.json")))

    return answers


def test_links_throttled_in_all_steps_are_found_with_an_earlier_window(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The example of the README: all links of a real job, from before its window on."""
    folder = tmp_path_factory.mktemp("second") / "captures"
    unpack(PACKED / "second", folder)
    window, earlier = rca.read_window(folder / "fabric-3"), rca.read_window(folder / "healthy-eval-0")
    assert rca.diagnose(window).failure_mode == "healthy"
    answer = rca.diagnose(window, earlier=earlier)
    assert (answer.failure_mode, answer.abstained) == ("fail_slow", False)
    assert answer.causes[0].cause == "network_congestion"
    label = read_label(folder / "fabric-3").causes[0].model_extra or {}
    assert answer.causes[0].seconds_per_step == pytest.approx(label["seconds_per_step_while_on"], rel=0.05)


def one(answers: list[Answer], wanted: str) -> Answer:
    return next(each for each in answers if each.name == wanted)


@pytest.mark.parametrize("testbed", TESTBEDS)
def test_hardly_a_healthy_job_alarms(answers_of: AnswersOf, testbed: str) -> None:
    answers, bounds = answers_of(testbed), BOUNDS[testbed]
    assert sum(each.label.failure_mode == "healthy" for each in answers) == bounds.healthy
    wrong = alarms(answers)
    assert len(wrong) <= bounds.alarms, wrong


@pytest.mark.parametrize("testbed", TESTBEDS)
def test_the_first_cause_is_mostly_a_true_one_on_its_ranks(answers_of: AnswersOf, testbed: str) -> None:
    bounds = BOUNDS[testbed]
    faulty = [each for each in answers_of(testbed) if each.label.failure_mode != "healthy"]
    assert len(faulty) == bounds.faulty
    assert sum(map(is_right, faulty)) / len(faulty) > bounds.right
    answered = [each for each in faulty if each.found.causes and not each.found.abstained]
    named = [each for each in answered if not each.found.cause_is_unknown]
    assert sum(map(is_right, named)) / len(named) > bounds.right_of_named


@pytest.mark.parametrize("testbed", TESTBEDS)
def test_nearly_every_failure_mode_is_right(answers_of: AnswersOf, testbed: str) -> None:
    hits = [found.failure_mode == label.failure_mode for _, label, found in answers_of(testbed)]
    assert sum(hits) / len(hits) > BOUNDS[testbed].right_mode


def test_a_bad_port_is_named_next_to_a_straggler_of_other_steps(answers_of: AnswersOf) -> None:
    """Rank 0's device is slow in steps 14 to 45, rank 1's link in steps 29 to 61."""
    found = one(answers_of("fourth"), "w012").found
    assert {("gpu_throttling", 0), ("nic_degradation", 1)} <= {
        (each.cause, *each.ranks) for each in found.causes
    }


@pytest.mark.parametrize("name", ["vitring-026", "sftsmall-033", "vitring-001"])
def test_a_job_that_collects_garbage_everywhere_is_slow_for_one_rank(
    answers_of: AnswersOf, name: str
) -> None:
    _, label, found = one(answers_of("third"), name)
    assert [tuple(each.ranks) for each in found.stragglers] == [tuple(label.causes[0].ranks)]


def test_a_port_with_one_full_queue_is_healthy(answers_of: AnswersOf) -> None:
    assert one(answers_of("third"), "gptpipe-113").found.failure_mode == "healthy"


@pytest.mark.parametrize("name", ["w038", "w087", "w133"], ids=["asleep", "device stopped", "spinning"])
def test_a_rank_whose_process_works_on_hangs(answers_of: AnswersOf, name: str) -> None:
    _, label, found = one(answers_of("fourth"), name)
    (true,) = label.causes
    assert [tuple(each.ranks) for each in found.stragglers] == [tuple(true.ranks)]
    assert found.causes[0].cause == true.cause == "hang"


def test_ranks_that_wait_for_a_hanging_rank_are_not_named(answers_of: AnswersOf) -> None:
    """Rank 5 is the next stage of rank 1's pipeline."""
    _, label, found = one(answers_of("fourth"), "w055")
    assert [tuple(each.ranks) for each in found.stragglers] == [tuple(label.causes[0].ranks)]
