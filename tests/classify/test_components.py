"""ComponentCause ranks are covered by the smallest components: ranks, nodes, stages, the job."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.arrays import FloatArray
from rca.classify.components import (
    FURTHER,
    LEARNED_AMONG,
    MIN_JOB_SHARE,
    Component,
    cover,
    exact_cover,
    likely_among_all_ranks,
)
from rca.lab.training.corpus import RANKS_KEPT
from rca.window.job import Job, Parallelism, Topology
from tests.for_each import for_each


def topology(n_ranks: int = 16, *, per_node: int | None = 4, pipeline: int = 1) -> Topology:
    ranks = [{"rank": rank, "node": f"n{rank // per_node}"} for rank in range(n_ranks)] if per_node else None
    sizes = Parallelism(data=n_ranks // pipeline, pipeline=pipeline)
    job = {
        "job_id": "j",
        "world_size": n_ranks,
        "parallelism": sizes,
        "ranks": ranks,
        "start": 0.0,
        "end": 1.0,
    }
    return Topology.from_job(Job.model_validate(job))


def covered(suspected: set[int], where: Topology) -> list[tuple[str, tuple[int, ...]]]:
    probability = np.where(np.isin(np.arange(where.n_ranks), list(suspected)), 0.9, 0.1)
    return [(component.scope, component.ranks) for component in cover(probability, 0.5, where)]


def test_one_rank_is_a_rank() -> None:
    assert covered({6}, topology()) == [("rank", (6,))]


def test_no_suspected_rank_gives_no_component() -> None:
    assert covered(set(), topology()) == []


def test_a_whole_node_is_a_node() -> None:
    assert covered({4, 5, 6, 7}, topology()) == [("node", (4, 5, 6, 7))]


def test_most_of_a_node_is_the_node_and_half_of_it_is_not() -> None:
    where = topology(per_node=8)
    assert covered(set(range(8, 15)), where) == [("node", tuple(range(8, 16)))]
    assert covered({8, 9, 10, 11}, where) == [("rank", (rank,)) for rank in (8, 9, 10, 11)]


def test_one_certain_rank_among_doubtful_ones_is_not_its_node() -> None:
    probability = np.full(16, 0.01)
    probability[4:8] = 0.6, 0.03, 0.999, 0.31
    found = cover(probability, 0.3, topology())
    assert [component.ranks for component in found] == [(6,), (4,), (7,)]


def test_weakly_suspected_ranks_are_grouped_as_well() -> None:
    probability = np.full(16, 0.01)
    probability[4:8] = 0.31
    assert [component.ranks for component in cover(probability, 0.3, topology())] == [(4, 5, 6, 7)]
    assert [component.scope for component in cover(np.full(4, 0.31), 0.3, topology(4))] == ["job"]


def test_two_faults_in_a_stage_are_not_the_stage() -> None:
    """A node and a rank of the next one are likelier than a stage with a healthy rank in it."""
    where = topology(8, per_node=2, pipeline=2)
    probability = np.array([0.98, 0.99, 0.999, 0.02, 0.01, 0.01, 0.01, 0.01])
    found = cover(probability, 0.3, where)
    assert {(component.scope, component.ranks) for component in found} == {("node", (0, 1)), ("rank", (2,))}


@pytest.mark.parametrize("innocent", [0.18, 0.2, 0.25])
def test_two_faulty_nodes_of_three_are_not_their_stage(innocent: float) -> None:
    probability = np.full(48, 0.01)
    probability[:16], probability[16:24] = 0.97, innocent
    found = cover(probability, 0.3, topology(48, per_node=8, pipeline=2))
    assert [component.ranks for component in found] == [tuple(range(8)), tuple(range(8, 16))]


def _gain(members: tuple[int, ...], odds: FloatArray) -> float:
    """What a component is likelier than its suspected ranks, of which the hardly suspected do not count."""
    suspected = [float(odd) for odd in odds[list(members)] if odd >= 0]
    rivals = [odd - FURTHER for odd in suspected if odd > FURTHER] or [odd - FURTHER for odd in suspected]
    return float(odds[list(members)].sum()) - FURTHER - sum(rivals)


@given(
    st.lists(st.sampled_from([0.02, 0.1, 0.25, 0.31, 0.6, 0.9, 0.95]), min_size=16, max_size=16),
    st.sampled_from([(4, 1), (4, 2), (2, 2), (2, 4), (8, 2)]),
    st.sampled_from([0.3, 0.5]),
)
def test_no_other_components_are_likelier_together(
    chances: list[float], layout: tuple[int, int], threshold: float
) -> None:
    per_node, pipeline = layout
    where = topology(16, per_node=per_node, pipeline=pipeline)
    probability = np.array(chances)
    odds = np.log(probability / (1 - probability)) - np.log(threshold / (1 - threshold))
    wholes = [tuple(np.flatnonzero(where.node == node)) for node in range(16 // per_node)]
    if pipeline > 1 and 16 // pipeline > per_node:
        wholes += [tuple(np.flatnonzero(where.stage == stage)) for stage in range(pipeline)]
    best = 0.0
    for chosen in chain.from_iterable(combinations(wholes, size) for size in range(1, len(wholes) + 1)):
        named = [rank for whole in chosen for rank in whole]
        if len(named) == len(set(named)):
            best = max(best, sum(_gain(whole, odds) for whole in chosen))
    all_ranks = tuple(range(16))
    if (probability >= threshold).mean() >= MIN_JOB_SHARE:
        best = max(best, _gain(all_ranks, odds))
    found = [component for component in cover(probability, threshold, where) if component.scope != "rank"]
    assert sum(_gain(component.ranks, odds) for component in found) == pytest.approx(best)


@for_each(
    ("faulty", "expected"),
    [
        ({5}, [("rank", (5,))]),
        ({4, 5, 6, 7}, [("node", (4, 5, 6, 7))]),
        ({4, 5, 6}, [("rank", (4,)), ("rank", (5,)), ("rank", (6,))]),
        (set(range(8, 16)), [("stage", tuple(range(8, 16)))]),
        (set(range(16)), [("job", tuple(range(16)))]),
        (set(), []),
    ],
)
def test_known_culprits_are_wholes_only_if_all_of_them_are(
    faulty: set[int], expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    known = np.isin(np.arange(16), list(faulty))
    found = exact_cover(known, np.full(16, 0.9), topology(16, pipeline=2))
    assert [(component.scope, component.ranks) for component in found] == expected


def test_a_stage_over_several_nodes_is_a_stage() -> None:
    assert covered(set(range(8, 16)), topology(pipeline=2)) == [("stage", tuple(range(8, 16)))]


def test_nearly_all_ranks_are_the_job() -> None:
    assert covered(set(range(15)), topology()) == [("job", tuple(range(16)))]


def test_three_faulty_nodes_of_four_are_not_the_job_if_the_fourth_is_healthy() -> None:
    probability = np.array([0.01, 0.01, 0.6, 0.9, 0.999, 0.999, 0.9, 0.9])
    found = cover(probability, 0.3, topology(8, per_node=2))
    assert [component.ranks for component in found] == [(4, 5), (6, 7), (2, 3)]


def test_both_ranks_of_a_pair_are_two_ranks_or_a_node_but_one_of_them_is_a_rank() -> None:
    assert covered({1}, topology(2, per_node=1)) == [("rank", (1,))]


def test_compound_a_node_and_a_rank_elsewhere() -> None:
    assert set(covered({4, 5, 6, 7, 13}, topology())) == {("node", (4, 5, 6, 7)), ("rank", (13,))}


def test_compound_a_stage_and_a_node_of_another_stage() -> None:
    where = topology(32, pipeline=2)
    assert set(covered({*range(16, 32), 0, 1, 2, 3}, where)) == {
        ("stage", tuple(range(16, 32))),
        ("node", (0, 1, 2, 3)),
    }


def test_ranks_on_unknown_nodes_stay_ranks() -> None:
    assert covered({4, 5, 6, 7}, topology(per_node=None)) == [("rank", (rank,)) for rank in (4, 5, 6, 7)]


def test_the_likeliest_component_comes_first() -> None:
    probability = np.full(16, 0.1)
    probability[[2, 9]] = 0.7, 0.95
    assert [component.ranks for component in cover(probability, 0.5, topology())] == [(9,), (2,)]


@given(st.sets(st.integers(0, 15)), st.sampled_from([1, 2, 4]))
def test_every_suspect_is_in_exactly_one_component(suspected: set[int], pipeline: int) -> None:
    found = [rank for _, ranks in covered(suspected, topology(pipeline=pipeline)) for rank in ranks]
    assert len(found) == len(set(found))
    assert set(found) >= suspected


@pytest.mark.parametrize("threshold", [0.9, 0.9000001])
def test_a_rank_is_suspected_at_the_threshold_itself(threshold: float) -> None:
    probability = np.full(16, 0.1)
    probability[3] = 0.9
    assert len(cover(probability, threshold, topology())) == (threshold <= 0.9)


@pytest.mark.parametrize(("n_ranks", "kept"), [(8, [4, 1]), (512, [4])])
def test_a_second_suspect_has_to_be_likely_among_so_many(n_ranks: int, kept: list[int]) -> None:
    suspects = [Component("rank", (1,), 0.8), Component("rank", (4,), 0.95)]
    assert [component.ranks[0] for component in likely_among_all_ranks(suspects, n_ranks)] == kept


def test_an_unlikely_first_suspect_stays_and_two_sure_ones_do() -> None:
    assert likely_among_all_ranks([Component("rank", (7,), 0.5)], 4096) == [Component("rank", (7,), 0.5)]
    sure = [Component("rank", (1,), 0.999), Component("rank", (2,), 0.999)]
    assert likely_among_all_ranks(sure, 512) == sure


@pytest.mark.parametrize("n_ranks", [64, 256])
def test_many_that_look_alike_vouch_for_each_other(n_ranks: int) -> None:
    """One or two at .8 among so many are accidents; a dozen are not, unless there are thousands of ranks."""
    alike = [Component("rank", (rank,), 0.8) for rank in range(24)]
    assert likely_among_all_ranks(alike, n_ranks) == alike
    assert likely_among_all_ranks(alike[:3], n_ranks) == alike[:1]
    assert likely_among_all_ranks(alike, 16_384) == alike[:1]


def test_ranks_vouch_whether_they_are_named_one_by_one_or_by_their_nodes() -> None:
    ranks = [Component("rank", (rank,), 0.98) for rank in range(96)]
    nodes = [Component("node", tuple(range(first, first + 8)), 0.98) for first in range(0, 96, 8)]
    assert likely_among_all_ranks(ranks, 4096) == ranks
    assert likely_among_all_ranks(nodes, 4096) == nodes


def test_no_component_raises_its_own_odds_and_the_likeliest_raises_none() -> None:
    """The one that has to be slow in a slow job says nothing about others, however large and sure it is."""
    node = Component("node", tuple(range(8, 16)), 0.999)
    second = Component("rank", (40,), 0.85)
    assert likely_among_all_ranks([node, second], 64) == [node]


def test_without_suspects_no_component_is_kept() -> None:
    assert likely_among_all_ranks([], 64) == []


def test_the_correction_is_for_as_many_ranks_as_training_keeps() -> None:
    assert LEARNED_AMONG == RANKS_KEPT


def test_a_whole_node_needs_less_than_one_of_its_ranks() -> None:
    first, node = Component("rank", (1,), 0.99), Component("node", tuple(range(8, 16)), 0.8)
    assert likely_among_all_ranks([first, node], 256) == [first, node]
    assert likely_among_all_ranks([first, Component("rank", (8,), 0.8)], 256) == [first]
