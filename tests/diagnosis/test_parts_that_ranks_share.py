"""Simulated faults of a leaf switch, a rail and a PCIe switch are named; faults of single ranks are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from simulated_jobs import WORKLOAD

import rca
from rca.diagnosis.result import Diagnosis
from rca.lab.simulation import (
    Benign,
    Fault,
    SimulationScenario,
    Telemetry,
    Wiring,
    leaf_fault,
    pcie_switch_fault,
    rail_fault,
    simulate,
)
from rca.window.job import Parallelism
from rca.window.window import Window
from tests.for_each import for_each

NODES, PER_NODE, LEAF = 6, 4, 2
FIRST = 30
QUICK, ALL = range(2), range(20)

Inject = Callable[[SimulationScenario, int], Fault]


def job(seed: int) -> SimulationScenario:
    """Six nodes on three leaf switches; four GPUs on two PCIe switches, each with an adapter of its own."""
    return SimulationScenario(
        seed=seed,
        dialect="gpu_cluster",
        parallelism=Parallelism(data=NODES * PER_NODE),
        ranks_per_node=PER_NODE,
        n_steps=80,
        workload=WORKLOAD,
        benign=Benign(warmup_steps=0),
        telemetry=Telemetry(exporters=("dcgm", "infiniband", "cpu"), interval_seconds=2.0),
        wiring=Wiring(nodes_per_leaf=LEAF, gpus_per_switch=2, adapters=PER_NODE),
    )


def faulty(seed: int, inject: Inject | None) -> tuple[Window, dict[str, object]]:
    scenario = job(seed)
    if inject is not None:
        scenario = scenario.model_copy(update={"faults": (inject(scenario, seed),)})
    simulated = simulate(scenario)
    return simulated.window, dict(simulated.label)


def when(seed: int) -> dict[str, float | int]:
    return {"first_step": FIRST, "severity": 0.6 + 0.02 * (seed % 20)}


def leaf(scenario: SimulationScenario, seed: int) -> Fault:
    return leaf_fault(scenario, seed % 3, **when(seed))


def rail(scenario: SimulationScenario, seed: int) -> Fault:
    return rail_fault(scenario, seed % 3, seed % PER_NODE, **when(seed))


def switch(scenario: SimulationScenario, seed: int) -> Fault:
    return pcie_switch_fault(scenario, seed % NODES, seed % 2, **when(seed))


def one_gpu(scenario: SimulationScenario, seed: int) -> Fault:
    rank = 7 * seed % scenario.world_size
    cause = ("gpu_throttling", "pcie_degradation")[seed % 2]
    return Fault(cause=cause, ranks=(rank,), nodes=(rank // PER_NODE,), **when(seed))


def two_hot_gpus(scenario: SimulationScenario, seed: int) -> Fault:
    """Both GPUs behind a PCIe switch, but of a cause that no switch has."""
    first = 2 * (seed % (scenario.world_size // 2))
    ranks = (first, first + 1)
    return Fault(cause="gpu_throttling", ranks=ranks, nodes=(first // PER_NODE,), **when(seed))


def one_node(scenario: SimulationScenario, seed: int) -> Fault:
    node = seed % NODES
    return Fault(cause="nic_degradation", ranks=scenario.ranks_on(node), nodes=(node,), **when(seed))


def fabric(scenario: SimulationScenario, seed: int) -> Fault:
    ranks = tuple(range(scenario.world_size))
    return Fault(cause="network_congestion", ranks=ranks, nodes=tuple(range(NODES)), **when(seed))


def check_named(inject: Inject, seed: int) -> None:
    window, label = faulty(seed, inject)
    (true,) = label["causes"]
    answer = rca.diagnose(window)
    (group,), first = answer.stragglers, answer.causes[0]
    assert first.cause == true["cause"]
    assert group.ranks == first.ranks == true["ranks"]
    for named in (group.shared, first.shared):
        assert named is not None
        assert (named.level, named.name) == (true["shared"]["level"], true["shared"]["name"])
        assert named.ranks == true["ranks"]
        assert named.nodes == sorted(true["nodes"])


def blamed(answer: Diagnosis) -> list[str]:
    """Levels of all parts in the answer that several ranks share."""
    named = [each.shared for each in (*answer.stragglers, *answer.causes)]
    return [part.level for part in named if part is not None and part.level != "nic"]


def check_not_blamed(inject: Inject | None, seed: int) -> None:
    window, label = faulty(seed, inject)
    answer = rca.diagnose(window)
    assert answer.failure_mode == label["failure_mode"]
    assert blamed(answer) == []
    if inject is None:
        assert not answer.abstained


SHARED = pytest.mark.parametrize("inject", [leaf, rail, switch])
OTHER = pytest.mark.parametrize("inject", [one_gpu, two_hot_gpus, one_node, fabric, None])


@SHARED
@for_each("seed", QUICK)
def test_the_part_that_slow_ranks_share_is_named(inject: Inject, seed: int) -> None:
    check_named(inject, seed)


@OTHER
@for_each("seed", QUICK[:1])
def test_no_part_is_blamed_for_other_faults_or_none(inject: Inject | None, seed: int) -> None:
    check_not_blamed(inject, seed)


@pytest.mark.long
@SHARED
def test_the_part_is_named_in_each_of_twenty_jobs(inject: Inject) -> None:
    for seed in ALL:
        check_named(inject, seed)


@pytest.mark.long
@OTHER
def test_no_part_is_blamed_in_any_of_twenty_jobs(inject: Inject | None) -> None:
    for seed in ALL:
        check_not_blamed(inject, seed)


def test_an_answer_without_a_topology_does_not_mention_one() -> None:
    window, _ = faulty(0, leaf)
    assert window.job.ranks is not None
    bare = tuple(
        place.model_copy(update=dict.fromkeys(("pcie_switch", "nic", "leaf_switch", "rail")))
        for place in window.job.ranks
    )
    job = window.job.model_copy(update={"ranks": bare})
    answer = rca.diagnose(Window(job, *window.tables.values()))
    assert "shared" not in answer.to_json()


def test_the_page_and_the_next_check_name_the_part_first() -> None:
    answer = rca.diagnose(faulty(0, leaf)[0])
    assert answer.next_check.startswith("look at leaf switch leaf-0: switch congestion counters")
    page = answer.to_markdown()
    headline = next(line for line in page.splitlines() if "FAIL-SLOW" in line)
    assert "FAIL-SLOW: leaf switch `leaf-0` (nodes" in headline
    page = rca.diagnose(faulty(1, rail)[0]).to_markdown()
    assert "rail `1` of leaf switch `leaf-1` (ranks" in page


@pytest.mark.parametrize("inject", [leaf, switch])
def test_exporters_alone_show_a_part_as_one_place(inject: Inject) -> None:
    window, label = faulty(1, inject)
    (true,) = label["causes"]
    answer = rca.diagnose(replace(window, steps=window.steps.slice(0, 0)))
    first = next(cause for cause in answer.causes if cause.shared is not None)
    assert (first.cause, first.ranks) == (true["cause"], true["ranks"])
    assert first.shared is not None
    assert first.shared.name == true["shared"]["name"]
    assert [each.ranks for each in answer.stragglers].count(true["ranks"]) == 1
