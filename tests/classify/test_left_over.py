"""What is said of a mended job is told if it is likely and about somebody, or something, else."""

from __future__ import annotations

import pytest

from rca.classify.components import Component
from rca.classify.left_over import SURE, is_left_over
from rca.classify.ports import Suspected
from rca.telemetry.job import Job, Parallelism, RankPlace

PLACES = tuple(RankPlace(rank=rank, node=f"n{rank // 4}") for rank in range(16))
SIZES = Parallelism(data=4, pipeline=2, tensor=2)
TOPOLOGY = Job(job_id="j", world_size=16, parallelism=SIZES, ranks=PLACES, start=0.0, end=1.0).topology
HOT = Suspected(Component("rank", (5,), 1.0), "gpu_throttling")
PORT = Suspected(Component("node", (4, 5, 6, 7), 1.0), "nic_degradation")
JOB = tuple(range(16))


def suspected(cause: str, *ranks: int, scope: str = "rank", chance: float = 1.0) -> Suspected:
    return Suspected(Component(scope, ranks, chance), cause)


def left_over(each: Suspected, belief: float = 1.0, first: Suspected = HOT) -> bool:
    return is_left_over(each, belief, [first], TOPOLOGY)


@pytest.mark.parametrize(
    "each",
    [
        suspected("cpu_contention", 12),
        suspected("gpu_throttling", 12),
        suspected("cpu_contention", 7),
        suspected("storage_degradation", 12, 13, 14, 15, scope="node"),
        suspected("sequence_length_imbalance", *JOB, scope="job"),
        suspected("stage_imbalance", *range(8), scope="stage"),
        suspected("stage_imbalance", *range(8, 16), scope="stage"),
    ],
    ids=lambda each: f"{each.cause} of {each.component.scope} {each.component.ranks[0]}",
)
def test_another_fault_is_told(each: Suspected) -> None:
    assert left_over(each)


@pytest.mark.parametrize(
    "each",
    [
        suspected("cpu_contention", 5),
        suspected("cpu_contention", 4, 5, 6, 7, scope="node"),
        suspected("cpu_contention", 4),
        suspected("stage_imbalance", 5, scope="stage"),
        suspected("unknown", 12),
        suspected("gpu_throttling", *JOB, scope="job"),
        suspected("network_congestion", *JOB, scope="job"),
        suspected("nic_degradation", 12, 13, 14, 15, scope="node"),
    ],
    ids=[
        "mended", "holds it", "in lock-step with it", "the same place", "nobody knows", "its own cause",
        "transfers of all", "a link",
    ],
)  # fmt: skip
def test_traces_of_the_first_are_not(each: Suspected) -> None:
    assert not left_over(each)


def test_beside_a_link_only_what_the_whole_job_does_is_told() -> None:
    assert left_over(suspected("runtime_gc", *JOB, scope="job"), first=PORT)
    assert not left_over(suspected("cpu_contention", 12), first=PORT)


def test_it_has_to_be_likely_that_they_straggle_and_that_it_is_why() -> None:
    each = suspected("cpu_contention", 12, chance=0.9)
    assert left_over(each, SURE / 0.9 + 0.01)
    assert not left_over(each, SURE / 0.9 - 0.01)
