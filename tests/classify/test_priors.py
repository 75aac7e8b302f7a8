"""Cluster priors move beliefs by Bayes' rule, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rca
from rca.classify.operator_inputs import checked_priors, ratios, read_priors, reweighted
from rca.errors import InvalidInput, SourceError
from rca.window.causes import SLOW_CAUSES
from tests.for_each import for_each

frequencies = st.dictionaries(st.sampled_from(SLOW_CAUSES), st.floats(1e-3, 1e3), min_size=1)
beliefs = st.fixed_dictionaries({name: st.floats(1e-6, 1) for name in SLOW_CAUSES})


@given(beliefs, frequencies)
def test_reweighting_is_bayes_rule(held: dict[str, float], given_priors: dict[str, float]) -> None:
    trained = dict.fromkeys(SLOW_CAUSES, 1 / len(SLOW_CAUSES))
    priors = checked_priors(given_priors)
    moved = reweighted(held, ratios(priors, trained))
    first, second = SLOW_CAUSES[:2]
    odds = held[first] / held[second] * priors[first] / priors[second]
    assert moved[first] / moved[second] == pytest.approx(odds)
    assert sum(moved.values()) == pytest.approx(sum(held.values()))


@given(beliefs, frequencies)
def test_the_training_priors_change_nothing(held: dict[str, float], given_priors: dict[str, float]) -> None:
    trained = checked_priors(given_priors)
    assert reweighted(held, ratios(trained, trained)) == pytest.approx(held)


def test_counts_of_any_unit_mean_the_same() -> None:
    counts = {"nic_degradation": 12, "cpu_contention": 3}
    tenth = {name: value / 10 for name, value in counts.items()}
    assert checked_priors(counts) == pytest.approx(checked_priors(tenth))
    assert sum(checked_priors(counts).values()) == pytest.approx(1.0)


def test_what_was_never_seen_is_rare_and_not_impossible() -> None:
    priors = checked_priors({"nic_degradation": 12, "cpu_contention": 3})
    assert priors["gpu_throttling"] == priors["cpu_contention"] > 0


@for_each(
    ("priors", "said"),
    [
        ({}, "no cause"),
        ({"nic": 1.0}, "not in the catalogue"),
        ({"hang": 1.0}, "stops jobs"),
        ({"cpu_contention": 0.0}, "positive"),
        ({"cpu_contention": -1}, "positive"),
        ({"cpu_contention": float("nan")}, "positive"),
        ({"cpu_contention": "often"}, "positive"),
        ({"cpu_contention": True}, "positive"),
    ],
)
def test_priors_that_mean_nothing_are_refused(priors: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        checked_priors(priors)


def test_a_file_that_is_no_object_of_numbers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "priors.json"
    for content in ("[1]", "{", '{"nic": 1}'):
        file.write_text(content)
        with pytest.raises(InvalidInput):
            read_priors(file)
    with pytest.raises(SourceError):
        read_priors(tmp_path / "absent.json")


def test_priors_decide_between_look_alikes(make_window) -> None:
    """Loading takes longer and no signal says why: the loader's code, or the storage below it?"""
    window = make_window(late={5: 0.05}, phase="data_loading_seconds")

    def chance(priors: dict[str, float] | None) -> dict[str, float]:
        return {cause.cause: cause.probability for cause in rca.diagnose(window, priors=priors).causes}

    storage = chance({"storage_degradation": 1_000_000, "data_loader_stall": 1})
    loader = chance({"storage_degradation": 1, "data_loader_stall": 1_000_000})
    assert max(storage, key=storage.__getitem__) == "storage_degradation"
    assert max(loader, key=loader.__getitem__) == "data_loader_stall"


def test_the_mode_and_the_stragglers_do_not_depend_on_priors(make_window) -> None:
    window = make_window(late={5: 0.05}, phase="data_loading_seconds")
    plain, moved = rca.diagnose(window), rca.diagnose(window, priors={"storage_degradation": 5})
    assert moved.failure_mode_probability == plain.failure_mode_probability
    assert [each.ranks for each in moved.stragglers] == [each.ranks for each in plain.stragglers]


def test_a_file_of_counts_is_read(tmp_path: Path) -> None:
    file = tmp_path / "priors.json"
    file.write_text(json.dumps({"nic_degradation": 12, "cpu_contention": 3}))
    assert read_priors(file) == checked_priors({"nic_degradation": 12, "cpu_contention": 3})
