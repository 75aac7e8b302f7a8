"""Jobs of somebody else's imagination: nothing was learned from them, and half of them were never looked at.

A bundle has to keep these bounds to be shipped; what the shipped one does is in docs/generalisation.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rca
from rca.diagnosis.result import Diagnosis
from rca.telemetry.labels import Label, accepted, read_label
from rca.testbed.pack import unpack

PACKED = Path(__file__).parents[2] / "data" / "outsiders"
#: Healthy windows of each that can be told, and how many may alarm at most: jobs that end without a word look
#: like jobs that were killed.
HEALTHY = {"fourth": (83, 2), "fifth": (97, 9), "sixth": (100, 9)}


@pytest.fixture(scope="module", params=HEALTHY)
def outsider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def answers(outsider: str, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Label, Diagnosis]]:
    """Of every window that can be told: its id, the truth, and the answer."""
    folder = tmp_path_factory.mktemp(outsider) / "windows"
    unpack(PACKED / outsider, folder)
    told = [
        entry["id"]
        for entry in json.loads((folder / "manifest.json").read_text())["windows"]
        if not entry.get("undecidable")
    ]
    return [(each, read_label(folder / each), rca.diagnose(rca.read_window(folder / each))) for each in told]


def test_hardly_a_healthy_job_alarms(outsider: str, answers: list[tuple[str, Label, Diagnosis]]) -> None:
    """Most alarm on purpose: heavier batches, evaluation, throttled fleets, busy neighbours."""
    healthy = [each for each in answers if each[1].failure_mode == "healthy"]
    alarms = [name for name, _, found in healthy if found.failure_mode != "healthy"]
    asked, allowed = HEALTHY[outsider]
    assert len(healthy) == asked
    assert len(alarms) <= allowed, alarms


def test_faults_are_found_and_told_from_stops(answers: list[tuple[str, Label, Diagnosis]]) -> None:
    faulty = [each for each in answers if each[1].failure_mode != "healthy"]
    right = sum(found.failure_mode == label.failure_mode for _, label, found in faulty)
    assert right / len(faulty) > 0.85


def test_most_verdicts_name_a_true_cause_on_its_ranks(answers: list[tuple[str, Label, Diagnosis]]) -> None:
    named = [
        (label, found)
        for _, label, found in answers
        if found.causes and not found.abstained and label.failure_mode != "healthy"
    ]
    true = sum(
        any(
            found.causes[0].cause in accepted(cause) and set(found.causes[0].ranks) == set(cause.ranks)
            for cause in label.causes
        )
        for label, found in named
    )
    assert len(named) > 60
    assert true / len(named) > 0.8
