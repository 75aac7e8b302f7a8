"""Real captures of a third harness, in which most that can be told is told; nothing is learned from them."""

from __future__ import annotations

from pathlib import Path

import pytest

import rca
from rca.diagnosis.result import Diagnosis
from rca.telemetry.labels import Label, accepted, read_label
from rca.testbed.pack import unpack

PACKED = Path(__file__).parents[2] / "data" / "testbed" / "third"
Answer = tuple[str, Label, Diagnosis]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    folder = tmp_path_factory.mktemp("third") / "captures"
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
    assert len(healthy) == 33
    assert len(alarms) <= 4, alarms


def test_the_first_cause_is_mostly_a_true_one_on_its_ranks(answers: list[Answer]) -> None:
    faulty = [each for each in answers if each[1].failure_mode != "healthy"]
    assert len(faulty) == 102
    assert sum(map(right, faulty)) / len(faulty) > 0.65
    named = [each for each in faulty if each[2].causes and not each[2].abstained]
    assert sum(map(right, named)) / len(named) > 0.75


@pytest.mark.parametrize("name", ["vitring-026", "sftsmall-033", "vitring-001"])
def test_a_job_that_collects_garbage_everywhere_is_slow_for_one_rank(answers, name: str) -> None:
    _, label, found = next(each for each in answers if each[0] == name)
    assert [tuple(each.ranks) for each in found.stragglers] == [tuple(label.causes[0].ranks)]


def test_a_port_whose_queue_was_full_once_is_sound(answers: list[Answer]) -> None:
    _, _, found = next(each for each in answers if each[0] == "gptpipe-113")
    assert found.failure_mode == "healthy"
