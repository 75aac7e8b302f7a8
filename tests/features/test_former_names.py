"""A bundle of feature table 8 is read with today's names of the features."""

from __future__ import annotations

import copy
from importlib.resources import files
from typing import Any

import orjson
import pytest

from rca.classify.classifier import HEADS, Classifier
from rca.features import RANK_FEATURES, VERSION, WINDOW_FEATURES
from rca.features.former_names import current_name, with_current_names

TODAY = frozenset((*RANK_FEATURES, *WINDOW_FEATURES))
BUNDLE = files("rca_models") / "baseline"


@pytest.fixture(scope="module")
def table_8() -> dict[str, Any]:
    """``heads.json`` of the shipped bundle, which was made with feature table 8."""
    document: dict[str, Any] = orjson.loads((BUNDLE / "heads.json").read_bytes())
    assert document["feature_version"] == 8
    return document


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {name: (BUNDLE / f"{name}.txt").read_text() for name in HEADS}


def test_every_former_name_is_one_feature_of_today(table_8: dict[str, Any]) -> None:
    former = {name for head in table_8["heads"].values() for name in head["features"]}
    former |= set(table_8["familiarity"]["ranges"])
    former |= {name for medians in table_8["healthy"].values() for name in medians}
    renamed = {current_name(name) for name in former}
    assert renamed <= TODAY
    assert len(renamed) == len(former)
    assert len({name for name in former if current_name(name) != name}) > 150


@pytest.mark.parametrize("name", sorted(TODAY))
def test_a_name_of_today_stays_as_it_is(name: str) -> None:
    assert current_name(name) == name


def test_a_bundle_with_todays_names_gives_the_same_heads(
    table_8: dict[str, Any], texts: dict[str, str]
) -> None:
    today = with_current_names(table_8) | {"feature_version": VERSION}
    old, new = Classifier.load(table_8, texts), Classifier.load(today, texts)
    for name in HEADS:
        assert old.heads[name].columns.tolist() == new.heads[name].columns.tolist()


def test_former_scores_of_pcie_counters_stay_without_the_state_of_the_link(table_8: dict[str, Any]) -> None:
    heads = with_current_names(table_8)["heads"].values()
    used = {name for head in heads for name in head["features"]}
    assert {"pcie_errors_vs_nominal", "max_pcie_errors_vs_nominal"} <= used
    assert not {"pcie_vs_nominal", "max_pcie_vs_nominal", "median_pcie_vs_nominal"} & used


def test_reading_leaves_the_document_unchanged(table_8: dict[str, Any]) -> None:
    before = copy.deepcopy(table_8)
    with_current_names(table_8)
    assert table_8 == before
