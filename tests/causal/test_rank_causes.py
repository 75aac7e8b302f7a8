"""What `rca.rank_causes` says about incidents with a known cause."""

from itertools import pairwise

import networkx
import numpy as np
import pandas as pd
import pytest
from incidents import CHAIN, SHAPES, first, system

import rca
from tests.for_each import for_each


@for_each("shape", SHAPES)
@for_each("seed", range(3))
def test_the_planted_cause_comes_first_without_a_graph(shape, seed):
    edges, columns, cause = SHAPES[shape]
    assert first(*system(edges, columns, cause=cause, seed=seed)) == cause


@for_each("shape", SHAPES)
@for_each("seed", range(3))
def test_the_planted_cause_comes_first_with_a_graph(shape, seed):
    edges, columns, cause = SHAPES[shape]
    assert first(*system(edges, columns, cause=cause, seed=seed), networkx.DiGraph(edges)) == cause


@for_each("shape", SHAPES)
def test_one_anomalous_row_is_enough_given_the_graph(shape):
    edges, columns, cause = SHAPES[shape]
    normal, anomalous = system(edges, columns, cause=cause, size=15.0)
    assert first(normal, anomalous.iloc[[5]], networkx.DiGraph(edges)) == cause


def test_the_graph_finds_a_cause_that_its_effects_outshout():
    """Each stage triples what the one before it says: the largest shift is three steps from the cause."""
    columns = ("a", "b", "c", "d")
    edges = list(pairwise(columns))
    normal, anomalous = system(edges, columns, cause="a", gain=3.0, incident=5)
    assert first(normal, anomalous, networkx.DiGraph(edges)) == "a"


def test_who_moved_first_is_preferred():
    normal, anomalous = (frame[["disk", "page"]] for frame in system([], ("disk", "query", "page")))
    anomalous = anomalous.copy()
    anomalous["disk"] += 10.0
    anomalous.loc[anomalous.index[15:], "page"] += 10.0
    assert first(normal, anomalous) == "disk"
    swapped = anomalous.rename(columns={"disk": "page", "page": "disk"})
    assert first(normal, swapped) == "page"


@pytest.mark.parametrize("seed", range(3))
def test_what_was_extreme_before_its_effect_moved_explains_less(seed):
    """A backup runs all the time; the page is slow only while the disk is."""
    normal, anomalous = system(CHAIN, ("backup", "disk", "query", "page"), incident=8, seed=seed)
    anomalous = anomalous.copy()
    anomalous["backup"] += 20.0
    anomalous.loc[anomalous.index[3:7], ["disk", "query", "page"]] += 10.0
    graph = networkx.DiGraph([*CHAIN, ("backup", "page")])
    assert first(normal, anomalous, graph, "page") == "disk"


def test_only_the_worse_direction_counts():
    normal, anomalous = system([], ("hits", "latency", "load"))
    anomalous = anomalous.assign(hits=anomalous["hits"] - 12.0, latency=anomalous["latency"] + 6.0)
    assert first(normal, anomalous) == "latency"
    assert first(normal, anomalous, worse="lower") == "hits"
    assert first(normal, anomalous, worse="either") == "hits"


def test_given_graph_and_target_what_cannot_act_on_the_target_scores_nothing():
    normal, anomalous = system(CHAIN, ("disk", "query", "page", "backup"), cause="backup", size=20.0)
    graph = networkx.DiGraph(CHAIN)
    graph.add_node("backup")
    found = rca.rank_causes(normal, anomalous, graph, target="page").set_index("cause")
    assert found.loc["backup", ["score", "lower", "upper"]].tolist() == [0.0, 0.0, 0.0]
    assert first(normal, anomalous, graph) == "backup"


def test_a_target_prefers_what_moves_with_it():
    normal, anomalous = system(CHAIN, ("disk", "query", "page"), cause="disk", size=6.0)
    rng = np.random.default_rng(1)
    for frame in (normal, anomalous):
        frame.insert(0, "aside", rng.normal(5.0, 1.0, len(frame)))
    loud = anomalous.assign(aside=anomalous["aside"] + np.tile([0.0, 14.0], len(anomalous) // 2))
    without = rca.rank_causes(normal, loud).set_index("cause")["score"]
    aimed = rca.rank_causes(normal, loud, target="page").set_index("cause")["score"]
    assert aimed["disk"] / aimed["aside"] > without["disk"] / without["aside"]


def test_a_tiny_change_of_a_constant_column_decides_nothing():
    normal, anomalous = system(CHAIN, ("disk", "query", "page"), cause="disk")
    normal, anomalous = normal.assign(replicas=3.0), anomalous.assign(replicas=3.001)
    assert first(normal, anomalous) == "disk"


def test_a_constant_column_scores_nothing():
    normal, anomalous = system(CHAIN, ("disk", "query", "page"), cause="disk")
    found = rca.rank_causes(normal.assign(still=1.0), anomalous.assign(still=1.0))
    assert found.iloc[-1].tolist() == ["still", 0.0, 0.0, 0.0]


def test_heavy_tails_are_no_incident():
    """A Pareto column shows huge values on any day; a small steady shift of another column is the cause."""
    rng = np.random.default_rng(3)
    normal = pd.DataFrame({"bytes": rng.pareto(1.5, 500), "wait": rng.normal(50, 1, 500)})
    anomalous = pd.DataFrame({"bytes": rng.pareto(1.5, 60), "wait": rng.normal(60, 1, 60)})
    assert first(normal, anomalous) == "wait"


def test_nothing_happened_is_an_answer():
    normal, anomalous = system(CHAIN, ("disk", "query", "page"))
    found = rca.rank_causes(normal, anomalous)
    assert found.attrs["none_of_them"] > found["score"].max()
    planted = rca.rank_causes(*system(CHAIN, ("disk", "query", "page"), cause="disk", size=20.0))
    assert planted.attrs["none_of_them"] < planted["score"].max()


def test_nodes_without_a_column_are_passed_through():
    normal, anomalous = system(CHAIN, ("disk", "query", "page"), cause="disk")
    frames = normal.drop(columns="query"), anomalous.drop(columns="query")
    found = rca.rank_causes(*frames, networkx.DiGraph(CHAIN), target="page")
    assert found["cause"].tolist() == ["disk", "page"]
    assert "'query'" in found.attrs["notes"][0]


def test_columns_without_a_node_stay_in_the_race():
    normal, anomalous = system(CHAIN, ("disk", "query", "page", "fan"), cause="fan", size=20.0)
    found = rca.rank_causes(normal, anomalous, networkx.DiGraph(CHAIN), target="page")
    assert found["cause"].iloc[0] == "fan"
    assert any("'fan'" in note for note in found.attrs["notes"])


def test_a_target_outside_of_the_graph_excludes_no_column_and_says_so():
    normal, anomalous = system(CHAIN, ("disk", "query", "page", "fan"), cause="disk")
    found = rca.rank_causes(normal, anomalous, networkx.DiGraph(CHAIN), target="fan")
    assert found["cause"].iloc[0] == "disk"
    assert any("target 'fan'" in note for note in found.attrs["notes"])


def test_a_cycle_leaves_its_members_unordered_and_the_rest_as_it_was():
    edges = [*CHAIN, ("page", "query"), ("query", "query")]
    normal, anomalous = system(CHAIN, ("disk", "query", "page"), cause="disk", gain=2.0)
    found = rca.rank_causes(normal, anomalous, networkx.DiGraph(edges), target="page")
    assert found["cause"].iloc[0] == "disk"
    assert any("cycles" in note and "'page'" in note for note in found.attrs["notes"])


def test_scores_are_chances_and_intervals_hold_them():
    normal, anomalous = system(CHAIN, ("disk", "query", "page"), cause="query", size=4.0)
    found = rca.rank_causes(normal, anomalous, target="page")
    assert found.columns.tolist() == ["cause", "score", "lower", "upper"]
    assert found["score"].is_monotonic_decreasing
    assert found["score"].sum() + found.attrs["none_of_them"] == pytest.approx(1.0)
    assert (found["lower"] <= found["score"]).all()
    assert (found["score"] <= found["upper"]).all()
    assert found[["score", "lower", "upper"]].stack().between(0.0, 1.0).all()


def test_fewer_rows_make_wider_intervals():
    normal, anomalous = system(CHAIN, ("disk", "query", "page"), cause="query", size=4.0, incident=200)
    widths = []
    for rows in (2, 200):
        best = rca.rank_causes(normal, anomalous.iloc[-rows:], worse="higher").set_index("cause").loc["query"]
        widths.append(best["upper"] - best["lower"])
    assert widths[0] > 1.5 * widths[1] > 0


def test_the_same_call_gives_the_same_answer():
    normal, anomalous = system(CHAIN, ("disk", "query", "page"), cause="query")
    pd.testing.assert_frame_equal(rca.rank_causes(normal, anomalous), rca.rank_causes(normal, anomalous))
    other = rca.rank_causes(normal, anomalous, seed=1)
    assert other["score"].tolist() == rca.rank_causes(normal, anomalous)["score"].tolist()
    assert other["lower"].tolist() != rca.rank_causes(normal, anomalous)["lower"].tolist()
