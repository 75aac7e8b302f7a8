"""What `rca.rank_causes` accepts, leaves aside, and refuses."""

from decimal import Decimal

import networkx
import numpy as np
import pandas as pd
import pytest
from incidents import CHAIN, first, system

import rca


@pytest.fixture
def incident():
    return system(CHAIN, ("disk", "query", "page"), cause="disk")


def both(frames, **columns):
    """Both frames with further columns; a function of the number of rows makes the values."""
    return tuple(
        frame.assign(**{name: make(len(frame)) for name, make in columns.items()}) for frame in frames
    )


def test_columns_of_any_numeric_type_are_ranked(incident):
    frames = both(
        incident,
        count=lambda n: np.arange(n) % 3,
        flag=lambda n: np.arange(n) % 2 == 0,
        nullable=lambda n: pd.array([None, *range(n - 1)], dtype="Int64") % 5,
        perhaps=lambda n: pd.array([None, *[True] * (n - 1)], dtype="boolean"),
        objects=lambda n: np.array([None, *[1.5] * (n - 1)], dtype=object),
        small=lambda n: np.ones(n, dtype=np.float16),
        arrow=lambda n: pd.array([None, *[2.5] * (n - 1)], dtype="double[pyarrow]"),
        sparse=lambda n: pd.arrays.SparseArray(np.arange(n) % 7 == 0, dtype="Sparse[float]"),
        decimals=lambda n: [Decimal("1.5")] * n,
    )
    found = rca.rank_causes(*frames)
    assert found["cause"].iloc[0] == "disk"
    assert set(found["cause"]) == set(frames[0].columns)
    assert found.attrs["ignored"] == {}


def test_columns_that_are_no_numbers_are_named_with_the_reason(incident):
    frames = both(
        incident,
        pod=lambda n: pd.array(["pod-1"] * n, dtype="string"),
        host=lambda n: ["a"] * n,
        kind=lambda n: pd.Categorical(["x"] * n),
        wave=lambda n: np.ones(n) * 1j,
        when=lambda n: pd.date_range("2025-01-01", periods=n),
    )
    found = rca.rank_causes(*frames)
    assert found.attrs["ignored"] == dict.fromkeys(("host", "kind", "pod", "wave", "when"), "not numeric")
    assert sorted(found["cause"]) == ["disk", "page", "query"]


def test_columns_of_one_frame_only_are_named(incident):
    normal, anomalous = incident
    found = rca.rank_causes(normal.assign(gone=1.0), anomalous.assign(new=1.0))
    assert found.attrs["ignored"] == {"gone": "only in normal", "new": "only in anomalous"}
    assert found["cause"].iloc[0] == "disk"


def test_columns_without_values_are_named(incident):
    normal, anomalous = incident
    normal = normal.assign(dead=np.nan, dying=1.0, single=[1.0] + [np.nan] * (len(normal) - 1))
    anomalous = anomalous.assign(dead=np.nan, dying=np.inf, single=1.0)
    assert rca.rank_causes(normal, anomalous).attrs["ignored"] == {
        "dead": "fewer than 2 values in normal",
        "dying": "no value in anomalous",
        "single": "fewer than 2 values in normal",
    }


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("time", lambda n, start: start + np.sort(np.random.default_rng(n).uniform(0, n, n))),
        ("Unnamed: 0", lambda n, start: np.arange(n) + start),
        ("seconds", lambda n, start: 0.1 * (np.arange(n) + start)),
    ],
)
def test_a_clock_is_no_cause(incident, name, make):
    normal, anomalous = incident
    normal.insert(0, name, make(len(normal), 0.0))
    anomalous.insert(0, name, make(len(anomalous), 1e6))
    found = rca.rank_causes(normal, anomalous)
    assert found.attrs["ignored"] == {name: "a clock"}


def test_a_metric_that_happens_to_be_called_time_is_ranked(incident):
    normal, anomalous = (frame.rename(columns={"disk": "time"}) for frame in incident)
    assert first(normal, anomalous) == "time"


def test_missing_values_do_not_hide_the_cause(incident):
    rng = np.random.default_rng(0)
    holes = (frame.mask(rng.random(frame.shape) < 0.4) for frame in incident)
    assert first(*holes) == "disk"


def test_labels_of_several_levels_come_back_as_they_were():
    normal, anomalous = system(CHAIN, ("disk", "query", "page"), cause="disk")
    labels = {"disk": ("store", "wait"), "query": ("base", "wait"), "page": ("web", "wait")}
    for frame in (normal, anomalous):
        frame.columns = pd.MultiIndex.from_tuples([labels[name] for name in frame.columns])
    graph = networkx.relabel_nodes(networkx.DiGraph(CHAIN), labels)
    found = rca.rank_causes(normal, anomalous, graph, target=("web", "wait"))
    assert found["cause"].iloc[0] == ("store", "wait")
    assert len(found) == 3


def test_two_normal_rows_and_a_single_column_are_enough():
    found = rca.rank_causes(pd.DataFrame({"x": [1.0, 1.1]}), pd.DataFrame({"x": [9.0]}))
    assert found["cause"].tolist() == ["x"]
    assert found["score"].iloc[0] > 0


def test_the_frames_are_left_as_they_were(incident):
    copies = [frame.copy(deep=True) for frame in incident]
    rca.rank_causes(*incident, worse="either")
    for frame, copy in zip(incident, copies, strict=True):
        pd.testing.assert_frame_equal(frame, copy)


def refused(*arguments, **options):
    with pytest.raises(rca.InvalidInput) as caught:
        rca.rank_causes(*arguments, **options)
    assert caught.value.hint
    return caught.value.message


def test_what_cannot_be_ranked_is_refused_with_a_hint(incident):
    normal, anomalous = incident
    assert "normal must be a pandas DataFrame, not ndarray" in refused(normal.to_numpy(), anomalous)
    assert "anomalous has no rows" in refused(normal, anomalous.iloc[:0])
    assert "no numeric column in common" in refused(normal, anomalous.add_prefix("other_"))
    assert "no numeric column in common" in refused(normal[[]], anomalous[[]])
    twice = anomalous.rename(columns={"page": "disk"})
    assert "several columns of the same name: ['disk']" in refused(normal, twice)


def test_arguments_that_make_no_sense_are_refused_with_a_hint(incident):
    assert "worse is 'up'" in refused(*incident, worse="up")
    assert "target 'pages' is not a column of both frames" in refused(*incident, target="pages")
    normal, anomalous = incident
    assert (
        refused(normal, anomalous.assign(page=np.nan), target="page")
        == "target 'page': no value in anomalous"
    )
    assert "must be a networkx.DiGraph, not list" in refused(*incident, graph=CHAIN)
    assert "no directions" in refused(*incident, graph=networkx.Graph(CHAIN))
    assert "no node of the graph is a ranked column" in refused(
        *incident, graph=networkx.DiGraph([("a", "b")])
    )
