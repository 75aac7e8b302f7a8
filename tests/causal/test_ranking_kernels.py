"""The arrays under `rca.rank_causes`."""

import networkx
import numpy as np
import pytest

from rca.causal.ranking.course import outside
from rca.causal.ranking.dependence import conditional_shifts, covariance, own_shifts
from rca.causal.ranking.graphs import read_graph
from rca.causal.ranking.onset import holds, onsets, precedence
from rca.causal.ranking.scales import standardise
from rca.causal.ranking.shifts import locations


def test_the_unit_of_spread_is_a_standard_deviation_of_gaussian_columns():
    rng = np.random.default_rng(0)
    normal, anomalous = standardise(rng.normal(5.0, 2.0, (4000, 3)), np.full((1, 3), 25.0))
    assert anomalous == pytest.approx(10.0, rel=0.1)
    assert np.median(normal, axis=0) == pytest.approx(0.0, abs=1e-9)


def test_floors_keep_still_columns_small():
    normal = np.column_stack([np.full(100, 3.0), np.zeros(100), np.tile([7.0, 8.0], 50)])
    _, anomalous = standardise(normal, np.array([[3.03, 1e9, 9.0]]))
    assert anomalous[0, 0] <= 1.0
    assert anomalous[0, 1] == pytest.approx(10.0)
    assert anomalous[0, 2] < 3.0


@pytest.mark.parametrize("unit", [5e-324, 1e-310, 1e-300, 1e300])
def test_extreme_units_neither_overflow_nor_warn(unit):
    normal = np.tile([1.0, 2.0], 50)[:, None] * unit
    _, anomalous = standardise(normal, np.full((1, 1), 8.0) * unit)
    assert 0.0 <= anomalous[0, 0] <= 1e6


def test_the_shift_of_a_cause_is_unpredicted_and_that_of_its_effect_is_not():
    rng = np.random.default_rng(0)
    cause = rng.normal(size=3000)
    effect = cause + rng.normal(size=3000)
    moments = covariance(np.column_stack([cause, effect]) / [1.0, np.sqrt(2.0)])
    shift = np.array([[6.0, 6.0 / np.sqrt(2.0)]])
    beyond_all = conditional_shifts(shift, moments)[0]
    assert beyond_all[0] > 4 * abs(beyond_all[1])
    beyond_parents = own_shifts(shift, moments, [np.array([], dtype=int), np.array([0])])[0]
    assert beyond_parents[0] == pytest.approx(6.0, rel=0.1)
    assert abs(beyond_parents[1]) < 0.5


def test_precision_times_shift_is_the_cause_and_its_parents():
    """The identity that the ranking without a graph rests on, on a chain of three."""
    weights = np.array([[0.0, 0.0, 0.0], [0.8, 0.0, 0.0], [0.0, 0.5, 0.0]])
    mixing = np.linalg.inv(np.eye(3) - weights)
    noise = np.diag([1.0, 0.5, 2.0])
    beyond = conditional_shifts(3.0 * mixing[None, :, 1], mixing @ noise @ mixing.T)[0]
    assert beyond[2] == pytest.approx(0.0, abs=1e-12)
    assert beyond[1] > 0 > beyond[0]


def test_onsets_are_found_where_they_are():
    rng = np.random.default_rng(0)
    normal, anomalous = rng.normal(size=(300, 4)), rng.normal(size=(60, 4))
    anomalous[:, 0] += 6.0
    anomalous[20:, 1] += 6.0
    anomalous[:, 2] += np.linspace(0.0, 12.0, 60)
    found = onsets(normal, anomalous)
    assert found[0] == 0
    assert abs(found[1] - 20) <= 1
    assert 0 < found[2] < 15
    assert found[3] == 60


def test_precedence_counts_later_columns_and_needs_rows():
    onset, mass = np.array([0, 10, 20]), np.array([1.0, 1.0, 2.0])
    held = np.ones(3)
    assert precedence(onset, mass, held, 60) == pytest.approx([0.75, 0.25, -0.5])
    assert precedence(onset, mass, held, 2) == pytest.approx([0.0, 0.0, 0.0])
    assert precedence(onset, mass, np.array([1.0, 15.0, 1.0]), 60) == pytest.approx([0.5, 0.0, -0.25])


def test_a_column_that_is_read_rarely_is_recognised():
    every_row = np.random.default_rng(0).normal(size=100)
    normal = np.column_stack([every_row, np.repeat(every_row[:10], 10), np.ones(100)])
    assert holds(normal) == pytest.approx([1.0, 10.0, 100.0])


def test_locations_resample_around_the_estimate():
    rng = np.random.default_rng(0)
    normal, anomalous = rng.normal(size=(400, 2)), rng.normal([5.0, 0.0], size=(100, 2))
    found = locations(normal, anomalous, seed=0)
    assert found[0] == pytest.approx([5.0, 0.0], abs=0.3)
    assert found[1:].mean(axis=0) == pytest.approx(found[0], abs=0.05)
    expected = np.sqrt(1 / 100 + 1 / 400)
    assert found[1:].std(axis=0) == pytest.approx([expected, expected], rel=0.35)


def test_a_single_row_is_as_uncertain_as_a_normal_row():
    normal = np.random.default_rng(0).normal(size=(400, 1))
    assert locations(normal, np.array([[5.0]]), seed=0)[1:].std() == pytest.approx(1.0, rel=0.2)


def test_parents_are_found_through_nodes_without_a_column():
    graph = networkx.DiGraph([("a", "hidden"), ("hidden", "b"), ("b", "c"), ("c", "b")])
    found = read_graph(graph, ("a", "b", "c", "x"))
    assert [parents.tolist() for parents in found.parents] == [[], [0], [], []]
    assert found.reach[0].tolist() == [True, True, True, False]
    assert found.known.tolist() == [True, True, True, False]
    assert len(found.notes) == 3


def courses(**columns):
    """Usual rows, and rows with the given levels on top of the same noise."""
    rng = np.random.default_rng(0)
    levels = np.column_stack(list(columns.values()))
    return rng.normal(size=(300, levels.shape[1])), levels + rng.normal(size=levels.shape)


def step(first, end=40, size=10.0):
    rows = np.arange(40)
    return size * ((rows >= first) & (rows < end))


def star(*causes):
    """Columns that act on the first one directly."""
    return read_graph(networkx.DiGraph([(cause, "target") for cause in causes]), ("target", *causes))


def test_what_is_as_extreme_while_the_target_is_usual_lies_outside_of_its_trouble():
    normal, anomalous = courses(
        target=step(20, 30), same=step(20, 30), earlier=step(15, 30), always=step(0), quiet=step(40)
    )
    found = outside(normal, anomalous, 0, star("same", "earlier", "always", "quiet"))
    assert found[3] > 0.6
    assert found[[0, 1, 2, 4]] == pytest.approx(0.0, abs=0.1)


def test_a_slow_effect_is_judged_by_the_nearest_one_of_the_graph():
    normal, anomalous = courses(target=step(25), cause=step(0), queue=step(0), aside=step(0))
    edges = [("cause", "queue"), ("queue", "target"), ("aside", "target")]
    found = outside(
        normal, anomalous, 0, read_graph(networkx.DiGraph(edges), ("target", "cause", "queue", "aside"))
    )
    assert found[1] == 0.0
    assert found[[2, 3]].min() > 0.6


@pytest.mark.parametrize("target", [step(40), step(0)], ids=["never in trouble", "always in trouble"])
def test_a_target_without_a_course_says_nothing(target):
    normal, anomalous = courses(target=target, always=step(0))
    assert outside(normal, anomalous, 0, star("always")) == pytest.approx([0.0, 0.0])


def test_few_rows_have_no_course_and_gaps_do_not_matter():
    normal, anomalous = courses(target=step(20), always=step(0))
    assert outside(normal, anomalous[18:21], 0, star("always")).tolist() == [0.0, 0.0]
    anomalous[::3] = np.nan
    assert outside(normal, anomalous, 0, star("always"))[1] > 0.6
