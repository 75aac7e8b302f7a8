"""Real captures of a fourth harness, in which most that can be told is told; nothing is learned from them."""

from __future__ import annotations

from pathlib import Path

import pytest

import rca
from rca.diagnosis.result import Diagnosis
from rca.telemetry.labels import Label, accepted, read_label
from rca.testbed.pack import unpack

PACKED = Path(__file__).parents[2] / "data" / "testbed" / "fourth"
Answer = tuple[str, Label, Diagnosis]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    folder = tmp_path_factory.mktemp("fourth") / "captures"
    unpack(PACKED, folder)
    return [
        (place.name, read_label(place), rca.diagnose(rca.read_window(place)))
        for place in sorted(each.parent for each in folder.glob("*/window.json"))
    ]


def right(answer: Answer) -> bool:
    _, label, found = answer
    return bool(found.causes) and any(
        found.causes[0].cause in accepted(cause) and set(found.causes[0].ranks) == set(cause.ranks)
        for cause in label.causes
    )


def test_hardly_a_healthy_job_alarms(answers: list[Answer]) -> None:
    healthy = [each for each in answers if each[1].failure_mode == "healthy"]
    alarms = [name for name, _, found in healthy if found.failure_mode != "healthy"]
    assert len(healthy) == 39
    assert len(alarms) <= 1, alarms


def test_nearly_every_failure_mode_is_right(answers: list[Answer]) -> None:
    hits = [found.failure_mode == label.failure_mode for _, label, found in answers]
    assert len(hits) == 138
    assert sum(hits) / len(hits) > 0.93


def test_the_first_cause_is_mostly_a_true_one_on_its_ranks(answers: list[Answer]) -> None:
    faulty = [each for each in answers if each[1].failure_mode != "healthy"]
    assert len(faulty) == 99
    assert sum(map(right, faulty)) / len(faulty) > 0.68
    named = [each for each in faulty if each[2].causes and not each[2].abstained]
    assert sum(map(right, named)) / len(named) > 0.75


@pytest.mark.parametrize("name", ["w038", "w087", "w133"], ids=["asleep", "device stopped", "spinning"])
def test_a_rank_whose_process_works_on_hangs(answers: list[Answer], name: str) -> None:
    _, label, found = next(each for each in answers if each[0] == name)
    (true,) = label.causes
    assert [tuple(each.ranks) for each in found.stragglers] == [tuple(true.ranks)]
    assert found.causes[0].cause == true.cause == "hang"


def test_who_waits_for_the_rank_that_hangs_is_not_named(answers: list[Answer]) -> None:
    """Rank 5 is the next stage of rank 1's pipeline."""
    _, label, found = next(each for each in answers if each[0] == "w055")
    assert [tuple(each.ranks) for each in found.stragglers] == [tuple(label.causes[0].ranks)]
