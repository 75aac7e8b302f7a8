"""Outlier ranks of a job that looks slow as a whole are the suspects, whatever the job looks like."""

from __future__ import annotations

import numpy as np
import pytest

import rca
from rca.classify.suspects import job_is_suspect, outlier_ranks_of
from rca.diagnosis.bundle import baseline
from rca.features import FeatureSet, extract
from tests.for_each import for_each

LATE = {5: 0.05}


@pytest.fixture(scope="module")
def late(make_window) -> FeatureSet:
    return extract(make_window(late=LATE, steps=slice(20, None)))


def probability(**suspected: float) -> np.ndarray:
    return np.array([suspected.get(f"r{rank}", 0.02) for rank in range(8)])


def test_a_certain_rank_without_whom_all_were_quicker_stands_out(late) -> None:
    assert np.flatnonzero(outlier_ranks_of(probability(r5=0.97), late)).tolist() == [5]


@for_each(
    "suspected",
    [{}, {"r5": 0.8}, {"r5": 0.97, "r2": 0.3}, {"r2": 0.97}, {f"r{rank}": 0.97 for rank in range(5)}],
    ids=["nobody", "not certain", "another suspect", "nothing gained", "most"],
)
def test_otherwise_nobody_does(late, suspected) -> None:
    assert not outlier_ranks_of(probability(**suspected), late).any()


def test_ranks_that_are_all_suspected_do_not_stand_out(late) -> None:
    assert not outlier_ranks_of(np.full(8, 0.97), late).any()


@pytest.mark.parametrize(
    ("causes", "as_well"),
    [
        ({"checkpoint_stall": 0.9}, True),
        ({"checkpoint_stall": 0.5}, False),
        ({"runtime_gc": 0.9}, False),
        ({}, False),
    ],
    ids=["its own cause", "perhaps", "what every job shows", "none"],
)
def test_the_job_is_to_blame_as_well_with_a_likely_cause(late, causes, as_well: bool) -> None:
    assert job_is_suspect(causes, [5], late) is as_well


def test_the_job_is_to_blame_as_well_where_steps_take_longer_than_that(make_window) -> None:
    transfer = np.where(np.arange(60) >= 20, 0.5, 0.04)
    both = extract(make_window(n_steps=60, late=LATE, steps=slice(20, None), transfer=transfer))
    assert job_is_suspect({}, [5], both)


@pytest.mark.parametrize("job_says", [0.99, 0.01])
def test_the_answer_is_the_rank_whatever_the_job_looks_like(
    make_window, monkeypatch, job_says: float
) -> None:
    """A scope's head that is wrong about the job costs nothing where the ranks' head is certain."""
    heads = baseline().classifier.heads
    original = type(heads["scope"]).probabilities

    def probabilities(self, rows):
        return np.array([[1 - job_says, job_says]]) if self.name == "scope" else original(self, rows)

    monkeypatch.setattr(type(heads["scope"]), "probabilities", probabilities)
    diagnosis = rca.diagnose(make_window(late=LATE, steps=slice(20, None)))
    assert [each.ranks for each in diagnosis.stragglers] == [[5]]
