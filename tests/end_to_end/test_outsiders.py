"""Jobs that were made up without knowledge of the product: nothing was learned from them.

The collection is a seeded sample of nine sets, from the halves that were scored only.
A bundle must keep these bounds to be shipped.
Each is the score of the shipped bundle less two standard deviations of a binomial share.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from strangers import Answer, alarms, diagnosed, is_right

from rca.lab.testbed.pack import unpack
from rca.sources.labels import read_collection

pytestmark = pytest.mark.slow

PACKED = Path(__file__).parents[2] / "data" / "outsiders"
N_HEALTHY, N_FAULTY = 37, 59


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    folder = tmp_path_factory.mktemp("outsiders") / "windows"
    unpack(PACKED, folder)
    return diagnosed(folder, [entry.id for entry in read_collection(folder)])


@pytest.fixture(scope="module")
def faulty(answers: list[Answer]) -> list[Answer]:
    found = [each for each in answers if each.label.failure_mode != "healthy"]
    assert len(found) == N_FAULTY
    return found


@pytest.mark.system
def test_no_healthy_job_alarms_for_certain(answers: list[Answer]) -> None:
    """One job that changes as a whole alarms without a certain cause: an answer that is undecided."""
    assert sum(each.label.failure_mode == "healthy" for each in answers) == N_HEALTHY
    assert alarms(answers) in ([], ["fourth-w160"])
    assert alarms(each for each in answers if not each.found.abstained) == []


def test_faults_are_detected_with_the_right_failure_mode(faulty: list[Answer]) -> None:
    right = sum(found.failure_mode == label.failure_mode for _, label, found in faulty)
    assert right / len(faulty) > 0.84


def test_few_faulty_jobs_are_called_healthy_with_certainty(faulty: list[Answer]) -> None:
    missed = [name for name, _, found in faulty if found.failure_mode == "healthy" and not found.abstained]
    assert len(missed) <= 6, missed


def test_most_named_causes_are_true_and_on_their_ranks(faulty: list[Answer]) -> None:
    answered = [each for each in faulty if each.found.causes and not each.found.abstained]
    named = [each for each in answered if not each.found.cause_is_unknown]
    assert len(named) > 36
    assert sum(map(is_right, named)) / len(named) > 0.81


def test_most_faulty_jobs_have_exactly_their_ranks_named(faulty: list[Answer]) -> None:
    exact = [
        {rank for each in found.stragglers for rank in each.ranks}
        == {rank for cause in label.causes for rank in cause.ranks}
        for _, label, found in faulty
    ]
    assert sum(exact) / len(exact) > 0.73
