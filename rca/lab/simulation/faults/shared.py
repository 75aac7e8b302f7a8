"""Faults of parts that ranks share: a leaf switch, a rail, a PCIe switch; of scenarios with a wiring."""

from __future__ import annotations

from typing import Any

from rca.lab.simulation.scenario import Fault, SimulationScenario
from rca.lab.simulation.wiring import Wiring


def leaf_fault(scenario: SimulationScenario, leaf: int, **changes: Any) -> Fault:
    """A leaf switch that marks and queues the traffic of all its nodes."""
    nodes = _nodes_on(scenario, leaf)
    ranks = tuple(rank for node in nodes for rank in scenario.ranks_on(node))
    return Fault(cause="network_congestion", ranks=ranks, nodes=nodes, **changes)


def rail_fault(scenario: SimulationScenario, leaf: int, rail: int, **changes: Any) -> Fault:
    """A switch that marks and queues the traffic of the adapters with one index, on all nodes of a leaf."""
    wiring, nodes = _wiring(scenario), _nodes_on(scenario, leaf)
    ranks = tuple(
        rank
        for node in nodes
        for gpu, rank in enumerate(scenario.ranks_on(node))
        if wiring.rail(gpu, scenario.ranks_per_node) == rail
    )
    return Fault(cause="network_congestion", ranks=ranks, nodes=nodes, rail=rail, **changes)


def pcie_switch_fault(scenario: SimulationScenario, node: int, switch: int, **changes: Any) -> Fault:
    """A PCIe switch of one node behind which all GPUs have a narrower link."""
    size = _wiring(scenario).gpus_per_switch
    ranks = scenario.ranks_on(node)[switch * size : (switch + 1) * size]
    return Fault(cause="pcie_degradation", ranks=ranks, nodes=(node,), **changes)


def _wiring(scenario: SimulationScenario) -> Wiring:
    if scenario.wiring is None:
        raise ValueError("a shared part needs a scenario with a wiring")
    return scenario.wiring


def _nodes_on(scenario: SimulationScenario, leaf: int) -> tuple[int, ...]:
    size = _wiring(scenario).nodes_per_leaf
    return tuple(range(leaf * size, min((leaf + 1) * size, scenario.n_nodes)))
