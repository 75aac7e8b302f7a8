"""A suspect of the counterfactual job is kept if it is likely, costs something, and is another component."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from rca.classify.components import Component, ComponentCause
from rca.classify.counterfactual import cost, is_residual_suspect
from rca.features import FeatureSet
from rca.features.slow_segment import Segment
from rca.window.job import Job, Parallelism, RankPlace
from tests.for_each import for_each

PLACES = tuple(RankPlace(rank=rank, node=f"n{rank // 4}") for rank in range(16))
SIZES = Parallelism(data=4, pipeline=2, tensor=2)
TOPOLOGY = Job(job_id="j", world_size=16, parallelism=SIZES, ranks=PLACES, start=0.0, end=1.0).topology
JOB = tuple(range(16))
FRONT, BACK = tuple(range(8)), tuple(range(8, 16))


def suspected(cause: str, *ranks: int, scope: str = "rank", chance: float = 1.0) -> ComponentCause:
    return ComponentCause(Component(scope, ranks, chance), cause)


HOT = suspected("gpu_throttling", 5)
PORT = suspected("nic_degradation", 4, 5, 6, 7, scope="node")


def counterfactual(*, ranks: float = 0.0, nodes: float = 0.0, stages: float = 0.0) -> FeatureSet:
    """A job of one-second steps in which every rank, node and stage costs this much in steps 5 to 9."""
    slow = np.where(np.arange(10) >= 5, 1.0, 0.0)
    gains = SimpleNamespace(
        gain_rank=np.tile(ranks * slow, (16, 1)),
        gain_node=np.tile(nodes * slow, (16, 1)),
        gain_stage=np.tile(stages * slow, (2, 1)),
        segment=Segment(5, 9, 1.0, 1.0, False),
    )
    work = SimpleNamespace(steps=np.arange(10), step_reference=1.0)
    return cast("FeatureSet", SimpleNamespace(topology=TOPOLOGY, comparison=gains, work=work))


COSTLY = counterfactual(ranks=0.05, nodes=0.05, stages=0.05)


def left_over(
    each: ComponentCause, belief: float = 1.0, *first: ComponentCause, job: FeatureSet = COSTLY
) -> bool:
    return is_residual_suspect(each, belief, first or [HOT], job, job)


@for_each(
    "each",
    [
        suspected("cpu_contention", 12),
        suspected("gpu_throttling", 12),
        suspected("cpu_contention", 7),
        suspected("storage_degradation", 12, 13, 14, 15, scope="node"),
        suspected("sequence_length_imbalance", *JOB, scope="job"),
        suspected("stage_imbalance", *FRONT, scope="stage"),
        suspected("stage_imbalance", *BACK, scope="stage"),
    ],
    ids=lambda each: f"{each.cause} of {each.component.scope} {each.component.ranks[0]}",
)
def test_another_fault_is_told(each: ComponentCause) -> None:
    assert left_over(each)


@for_each(
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
        "counterfactual", "holds it", "in lock-step with it", "the same place",
        "unknown", "its own cause",
        "transfers of all", "a link",
    ],
)  # fmt: skip
def test_traces_of_the_first_are_not(each: ComponentCause) -> None:
    assert not left_over(each)


def test_every_first_suspect_counts() -> None:
    host, far = suspected("cpu_contention", 9), suspected("gpu_throttling", 12)
    assert left_over(suspected("memory_pressure", 14), 1.0, HOT, host)
    assert not left_over(suspected("memory_pressure", 9), 1.0, HOT, host)
    assert not left_over(suspected("cpu_contention", *JOB, scope="job"), 1.0, HOT, host)
    assert not left_over(suspected("memory_pressure", 14), 1.0, HOT, PORT)
    assert not left_over(suspected("stage_imbalance", *FRONT, scope="stage"), 1.0, HOT, far)


def test_a_stage_holds_few_of_its_own() -> None:
    heavy = suspected("stage_imbalance", *FRONT, scope="stage")
    assert left_over(heavy, 1.0, suspected("gpu_throttling", 0, 2, 4, 6))
    assert not left_over(heavy, 1.0, suspected("gpu_throttling", 0, 1, 2, 4, 6))


def test_beside_a_link_only_what_the_whole_job_does_is_told() -> None:
    assert left_over(suspected("runtime_gc", *JOB, scope="job"), 1.0, PORT)
    assert not left_over(suspected("cpu_contention", 12), 1.0, PORT)


def test_it_has_to_be_likely_that_they_straggle_and_that_it_is_why() -> None:
    each = suspected("cpu_contention", 12, chance=0.9)
    assert left_over(each, 0.8)
    assert not left_over(each, 0.75)


def test_it_has_to_cost_something_unless_it_is_everybodys() -> None:
    assert not left_over(suspected("cpu_contention", 12), job=counterfactual(ranks=0.009))
    assert left_over(suspected("runtime_gc", *JOB, scope="job"), job=counterfactual())


def test_it_has_to_cost_something_where_it_is_priced() -> None:
    elsewhere = cast(
        "FeatureSet",
        SimpleNamespace(
            comparison=SimpleNamespace(segment=Segment(0, 4, 1.0, 1.0, False)),
            work=SimpleNamespace(steps=np.arange(10)),
        ),
    )
    assert not is_residual_suspect(suspected("cpu_contention", 12), 1.0, [HOT], elsewhere, COSTLY)


@for_each(
    ("component", "job", "seconds"),
    [
        (Component("rank", (12,), 1.0), counterfactual(ranks=0.02), 0.02),
        (Component("rank", (12, 13), 1.0), counterfactual(ranks=0.02), 0.04),
        (Component("node", (12, 13, 14, 15), 1.0), counterfactual(nodes=0.03), 0.03),
        (Component("stage", BACK, 1.0), counterfactual(stages=0.03), 0.03),
        (Component("node", (12, 13, 14, 15), 1.0), counterfactual(stages=0.03), 0.0),
    ],
    ids=["rank", "ranks in turn", "node", "stage", "part of a stage"],
)
def test_cost_of_a_component(component: Component, job: FeatureSet, seconds: float) -> None:
    assert cost(component, job, np.arange(10) >= 5) == pytest.approx(seconds)
