"""Laws of a ranking: what must not change it."""

import networkx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from incidents import system

import rca

COLUMNS = ("a", "b", "c", "d", "e", "f")


@st.composite
def incidents(draw):
    """Two frames of a random linear system, its graph, and the planted cause."""
    pairs = [(one, other) for at, one in enumerate(COLUMNS) for other in COLUMNS[at + 1 :]]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=8))
    cause = draw(st.sampled_from(COLUMNS))
    rows, seed = draw(st.integers(1, 30)), draw(st.integers(0, 2**16))
    normal, anomalous = system(edges, COLUMNS, cause=cause, rows=80, incident=rows, size=10.0, seed=seed)
    graph = networkx.DiGraph(edges)
    graph.add_nodes_from(COLUMNS)
    return normal, anomalous, graph if draw(st.booleans()) else None


modes = st.sampled_from(["higher", "lower", "either"])
targets = st.sampled_from([None, *COLUMNS])
few = settings(max_examples=40)


@few
@given(incidents(), modes, targets, st.permutations(COLUMNS))
def test_the_order_of_the_columns_does_not_matter(incident, worse, target, order):
    normal, anomalous, graph = incident
    expected = rca.rank_causes(normal, anomalous, graph, target, worse)
    found = rca.rank_causes(normal[order], anomalous[list(reversed(order))], graph, target, worse)
    pd.testing.assert_frame_equal(found, expected)


@few
@given(incidents(), modes, targets, st.lists(st.floats(1e-6, 1e9), min_size=6, max_size=6))
def test_units_do_not_matter(incident, worse, target, factors):
    normal, anomalous, graph = incident
    expected = rca.rank_causes(normal, anomalous, graph, target, worse)
    found = rca.rank_causes(normal * factors, anomalous * factors, graph, target, worse)
    assert found["cause"].tolist() == expected["cause"].tolist()
    assert found["score"].to_numpy() == pytest.approx(expected["score"].to_numpy(), abs=1e-6)


@few
@given(incidents(), modes, targets, st.floats(-1e6, 1e6))
def test_a_constant_column_changes_nothing(incident, worse, target, value):
    normal, anomalous, graph = incident
    expected = rca.rank_causes(normal, anomalous, graph, target, worse)
    found = rca.rank_causes(normal.assign(still=value), anomalous.assign(still=value), graph, target, worse)
    others = found[found["cause"] != "still"]
    assert others["cause"].tolist() == expected["cause"].tolist()
    assert others["score"].to_numpy() == pytest.approx(expected["score"].to_numpy(), abs=1e-6)


@few
@given(incidents(), targets)
def test_lower_is_higher_of_the_negative(incident, target):
    normal, anomalous, graph = incident
    expected = rca.rank_causes(normal, anomalous, graph, target, "higher")
    found = rca.rank_causes(-normal, -anomalous, graph, target, "lower")
    assert found["cause"].tolist() == expected["cause"].tolist()


@few
@given(incidents(), modes)
def test_every_column_is_ranked_once_and_chances_add_up(incident, worse):
    found = rca.rank_causes(*incident, worse=worse)
    assert sorted(found["cause"]) == sorted(COLUMNS)
    assert found["score"].sum() + found.attrs["none_of_them"] == pytest.approx(1.0)
    assert np.isfinite(found[["score", "lower", "upper"]].to_numpy()).all()
