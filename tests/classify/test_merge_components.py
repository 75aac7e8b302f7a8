"""One fault is one component: suspects of the same cause in the same place are merged."""

from __future__ import annotations

import pytest

from rca.classify.components import Component, ComponentCause, merge_suspects
from rca.window.job import Job, Parallelism, RankPlace, Topology


def topology(*, pipeline: int = 1, named: bool = True) -> Topology:
    """Sixteen ranks on four nodes of four."""
    places = tuple(RankPlace(rank=rank, node=f"n{rank // 4}" if named else None) for rank in range(16))
    sizes = Parallelism(data=16 // pipeline, pipeline=pipeline)
    return Job(job_id="j", world_size=16, parallelism=sizes, ranks=places, start=0.0, end=1.0).topology


def suspected(cause: str, *ranks: int, chance: float = 0.9) -> ComponentCause:
    return ComponentCause(Component("node" if len(ranks) == 4 else "rank", ranks, chance), cause)


def test_two_gpus_of_a_node_with_one_cause_are_one_component() -> None:
    found = merge_suspects(
        [suspected("gpu_throttling", 6), suspected("gpu_throttling", 5, chance=0.8)], topology()
    )
    assert found == [Component("rank", (5, 6), 0.9)]


@pytest.mark.parametrize(
    "suspects",
    [
        [suspected("gpu_throttling", 5), suspected("gpu_contention", 6)],
        [suspected("gpu_throttling", 5), suspected("gpu_throttling", 9)],
    ],
    ids=["other cause", "other node"],
)
def test_what_another_fault_may_have_done_stays_apart(suspects: list[ComponentCause]) -> None:
    assert merge_suspects(suspects, topology()) == [each.component for each in suspects]


@pytest.mark.parametrize(("types", "apart"), [(("input", "compute"), True), (("compute", "compute"), False)])
def test_that_nobody_knows_why_is_no_common_cause(types: tuple[str, str], apart: bool) -> None:
    late = [Component("rank", (5,), 0.9), Component("rank", (6,), 0.8)]
    suspects = [ComponentCause(each, "unknown", of) for each, of in zip(late, types, strict=True)]
    assert merge_suspects(suspects, topology()) == (late if apart else [Component("rank", (5, 6), 0.9)])


def test_all_ranks_of_a_node_are_the_node() -> None:
    found = merge_suspects([suspected("cpu_contention", rank) for rank in (4, 5, 6, 7)], topology())
    assert found == [Component("node", (4, 5, 6, 7), 0.9)]


def test_of_nodes_that_nobody_named_one_fault_is_likelier_than_two() -> None:
    suspects = [suspected("pcie_degradation", 1), suspected("pcie_degradation", 9)]
    assert merge_suspects(suspects, topology(named=False)) == [Component("rank", (1, 9), 0.9)]


def test_slow_storage_of_several_nodes_is_one_fault_of_all_their_ranks() -> None:
    slow = [suspected("storage_degradation", 0, 1, 2, 3), suspected("storage_degradation", 8, 9)]
    assert merge_suspects(slow, topology()) == [Component("node", (0, 1, 2, 3, 8, 9, 10, 11), 0.9)]


def test_a_single_rank_with_slow_storage_does_not_accuse_its_node() -> None:
    slow = [suspected("storage_degradation", 0, 1, 2, 3), suspected("storage_degradation", 8)]
    assert merge_suspects(slow, topology()) == [Component("rank", (0, 1, 2, 3, 8), 0.9)]


def test_ranks_of_a_heavy_stage_are_its_stage() -> None:
    """With two stages on four nodes a stage is two nodes; that they are apart does not matter."""
    heavy = [suspected("stage_imbalance", *range(8, 12)), suspected("stage_imbalance", *range(12, 16))]
    (found,) = merge_suspects(heavy, topology(pipeline=2))
    assert found.ranks == tuple(range(8, 16))
    other = [suspected("stage_imbalance", 3), suspected("stage_imbalance", 9)]
    assert len(merge_suspects(other, topology(pipeline=2))) == 2


def test_the_order_is_that_of_the_first_members() -> None:
    suspects = [suspected("gpu_throttling", 5), suspected("hang", 1), suspected("gpu_throttling", 4)]
    assert [each.ranks for each in merge_suspects(suspects, topology())] == [(4, 5), (1,)]
