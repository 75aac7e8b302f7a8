"""Jobs of somebody else's imagination: nothing was learned from them, and half of them were never looked at.

A bundle has to keep these bounds to be shipped; what the shipped one does is in docs/generalisation.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from strangers import Answer, alarms, asked, is_right

from rca.testbed.pack import unpack

PACKED = Path(__file__).parents[2] / "data" / "outsiders"


class Bounds(NamedTuple):
    """Healthy windows that can be told, how many may alarm, faults found, causes named, and right."""

    healthy: int
    alarms: int
    found: float = 0.85
    named: int = 60
    right: float = 0.8


#: The seventh is smaller, and many of its faults stall a few steps of all.
BOUNDS = {
    "fourth": Bounds(83, 0),
    # Three of them stand still as a hang does: rows end, nothing is sent, and devices stay busy.
    "fifth": Bounds(97, 0),
    "sixth": Bounds(100, 4, found=0.83),
    "seventh": Bounds(41, 1, found=0.75, named=35),
    "eighth": Bounds(71, 0, found=0.88, named=70),
    # Many of its faults take a twentieth of a step.
    "ninth": Bounds(35, 0, found=0.65, named=24),
    # Every tenth times nothing but steps, and many hide their decisive signal.
    "tenth": Bounds(33, 0, found=0.8, named=30),
    # Asked once, before anybody looked; every other window times its exchange where it waits for it.
    "eleventh": Bounds(41, 3, found=0.8, named=30, right=0.75),
    # Half of its faults take less than a ninth of a step, and several blame more ranks than are ever late.
    "twelfth": Bounds(54, 1, found=0.75, named=35, right=0.7),
}


@pytest.fixture(scope="module", params=BOUNDS)
def outsider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def answers(outsider: str, tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    """Of every window that can be told."""
    folder = tmp_path_factory.mktemp(outsider) / "windows"
    unpack(PACKED / outsider, folder)
    told = [
        entry["id"]
        for entry in json.loads((folder / "manifest.json").read_text())["windows"]
        if not entry.get("undecidable")
    ]
    return asked(folder, told)


def test_hardly_a_healthy_job_alarms(outsider: str, answers: list[Answer]) -> None:
    """Most alarm on purpose: heavier batches, evaluation, throttled fleets, busy neighbours."""
    assert sum(each.label.failure_mode == "healthy" for each in answers) == BOUNDS[outsider].healthy
    wrong = alarms(answers)
    assert len(wrong) <= BOUNDS[outsider].alarms, wrong


def test_faults_are_found_and_told_from_stops(outsider: str, answers: list[Answer]) -> None:
    faulty = [each for each in answers if each[1].failure_mode != "healthy"]
    right = sum(found.failure_mode == label.failure_mode for _, label, found in faulty)
    assert right / len(faulty) > BOUNDS[outsider].found


def test_most_verdicts_name_a_true_cause_on_its_ranks(outsider: str, answers: list[Answer]) -> None:
    named = [
        each
        for each in answers
        if each.found.causes and not each.found.abstained and each.label.failure_mode != "healthy"
    ]
    assert len(named) > BOUNDS[outsider].named
    assert sum(map(is_right, named)) / len(named) > BOUNDS[outsider].right
