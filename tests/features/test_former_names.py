"""A bundle of feature table 8 is read with today's names of the features."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import orjson
import pytest

from rca.features import RANK_FEATURES, WINDOW_FEATURES
from rca.features.former_names import current_name, with_current_names
from tests.for_each import for_each

TODAY = frozenset((*RANK_FEATURES, *WINDOW_FEATURES))
#: Names of the features that the bundle of commit 59ccc931 has.
NAMES = orjson.loads((Path(__file__).parent / "table_8.json").read_bytes())


@pytest.fixture(scope="module")
def table_8() -> dict[str, Any]:
    """The parts of a ``heads.json`` of feature table 8 that have names of features."""
    return {
        "feature_version": 8,
        "heads": {"mode": {"features": NAMES["window"]}, "cause": {"features": NAMES["rank"]}},
        "familiarity": {
            "ranges": {name: [0.0, 1.0] for name in NAMES["window"]},
            "shape": {"features": NAMES["shape"]},
        },
    }


def test_every_former_name_is_one_feature_of_today(table_8: dict[str, Any]) -> None:
    former = {name for head in table_8["heads"].values() for name in head["features"]}
    former |= set(table_8["familiarity"]["ranges"])
    former |= set(NAMES["rank"])
    renamed = {current_name(name) for name in former}
    assert renamed <= TODAY
    assert len(renamed) == len(former)
    assert len({name for name in former if current_name(name) != name}) > 150


@for_each("name", sorted(TODAY))
def test_a_name_of_today_stays_as_it_is(name: str) -> None:
    assert current_name(name) == name


def test_the_renamed_inputs_are_columns_of_todays_tables(table_8: dict[str, Any]) -> None:
    today = with_current_names(table_8)
    assert set(today["heads"]["mode"]["features"]) <= set(WINDOW_FEATURES)
    assert set(today["heads"]["cause"]["features"]) <= set(RANK_FEATURES)
    assert set(today["familiarity"]["shape"]["features"]) <= set(WINDOW_FEATURES)


def test_former_scores_of_pcie_counters_stay_without_the_state_of_the_link(table_8: dict[str, Any]) -> None:
    heads = with_current_names(table_8)["heads"].values()
    used = {name for head in heads for name in head["features"]}
    assert {"pcie_errors_vs_nominal", "max_pcie_errors_vs_nominal"} <= used
    assert not {"pcie_vs_nominal", "max_pcie_vs_nominal", "median_pcie_vs_nominal"} & used


def test_reading_leaves_the_document_unchanged(table_8: dict[str, Any]) -> None:
    before = copy.deepcopy(table_8)
    with_current_names(table_8)
    assert table_8 == before
