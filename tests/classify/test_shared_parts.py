"""Which leaf switch, rail, PCIe switch or adapter slow ranks share: by their ports, and by the suspects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rca.classify.components import Component, ComponentCause
from rca.classify.shared_parts import carrying, crowded_switch, through_switches
from rca.features.port_evidence import PortEvidence
from rca.features.resource_evidence import RESOURCES, ResourceEvidence, resource_names
from rca.window.job import Job, RankPlace, Topology
from tests.for_each import for_each

NODES, PER_NODE, PER_LEAF = 6, 4, 2
N_RANKS = NODES * PER_NODE
NIC, CONGESTION, PCIE = "nic_degradation", "network_congestion", "pcie_degradation"
CHANNEL = RESOURCES["nic"][0]


def topology(**without: None) -> Topology:
    """Three leaf switches of two nodes; a node has two PCIe switches of two GPUs, and four adapters."""
    places = tuple(
        RankPlace(
            rank=rank,
            node=f"n{rank // PER_NODE}",
            **(
                {
                    "pcie_switch": f"plx{rank % PER_NODE // 2}",
                    "nic": f"mlx5_{rank % PER_NODE}",
                    "leaf_switch": f"leaf{rank // PER_NODE // PER_LEAF}",
                    "rail": str(rank % PER_NODE),
                }
                | without
            ),
        )
        for rank in range(N_RANKS)
    )
    return Job(job_id="j", world_size=N_RANKS, ranks=places, start=0.0, end=1.0).topology


def node(*numbers: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(N_RANKS) if rank // PER_NODE in numbers)


def ports(crowded: tuple[int, ...], *, past: bool, usual: float = 1e5) -> PortEvidence:
    """Ports of these ranks are crowded, since the slow segment or all along; others show `usual`."""
    inside = np.isin(np.arange(N_RANKS), crowded)
    scores = np.where(inside, 4.0, 0.1) if past else np.full(N_RANKS, np.nan)
    values = np.where(inside, 3e7, usual * np.linspace(0.8, 1.2, N_RANKS))
    unknown = np.full(N_RANKS, np.nan)
    return PortEvidence({"fabric": unknown, "nic": scores}, {"fabric": (), "nic": ((CHANNEL, values),)})


def seen(
    known: Topology, at_ports: PortEvidence | None = None, at_nodes: tuple[int, ...] | None = None
) -> Any:
    """What the rules look at of a window's features."""
    scores = np.full((N_RANKS, len(RESOURCES)), np.nan)
    peers, values = scores.copy(), {}
    if at_nodes is not None:
        column = resource_names().index("nic")
        scores[:, column] = np.where(np.isin(known.node, at_nodes), 4.0, 0.1)
        peers[:, column] = scores[:, column]
        values = {CHANNEL.channel: np.where(np.isin(known.node, at_nodes), 3e7, 1e5)}
    evidence = ResourceEvidence(peers, scores, scores, np.full(scores.shape, -1), values, {})
    return SimpleNamespace(topology=known, evidence=evidence, ports=at_ports)


def suspect(ranks: tuple[int, ...], cause: str, probability: float = 0.8) -> ComponentCause:
    return ComponentCause(Component("node" if len(ranks) == PER_NODE else "rank", ranks, probability), cause)


def test_a_topology_has_its_parts() -> None:
    parts = {(part.level, part.within, part.name): part.ranks for part in topology().parts}
    assert parts["leaf_switch", None, "leaf1"] == node(2, 3)
    assert parts["rail", "leaf1", "2"] == (10, 14)
    assert parts["pcie_switch", "n2", "plx1"] == (10, 11)
    assert parts["nic", "n2", "mlx5_3"] == (11,)


def test_a_part_that_all_ranks_share_says_nothing() -> None:
    places = tuple(RankPlace(rank=rank, node=f"n{rank}", leaf_switch="only") for rank in range(4))
    assert Job(job_id="j", world_size=4, ranks=places, start=0.0, end=1.0).topology.parts == ()


@for_each("past", [True, False], ids=["since", "from the first step on"])
@for_each(
    ("crowded", "level", "name"),
    [
        (node(2, 3), "leaf_switch", "leaf1"),
        ((10, 14), "rail", "2"),
        (node(2), None, ""),
        (node(1, 2), None, ""),
        (node(*range(NODES)), None, ""),
        ((10, 11, 14), None, ""),
        ((), None, ""),
    ],
    ids=["leaf", "rail", "one node", "nodes of two leaves", "all", "more than the rail", "none"],
)
def test_exactly_the_ports_of_the_part_have_to_be_crowded(
    crowded: tuple[int, ...], level: str | None, name: str, past: bool
) -> None:
    part = crowded_switch(seen(topology(), ports(crowded, past=past)))
    assert (None if part is None else part.level) == level
    assert part is None or (part.name == name and part.ranks == crowded)


def test_racks_that_always_differ_share_nothing_where_most_ports_grew() -> None:
    grown = ports(node(2, 3), past=False)
    shown = PortEvidence({"fabric": grown.past["fabric"], "nic": np.full(N_RANKS, 3.0)}, grown.channels)
    assert crowded_switch(seen(topology(), shown)) is None


def test_a_port_that_is_not_measured_is_not_quiet() -> None:
    shown = ports(node(2, 3), past=True)
    shown.past["nic"][0] = np.nan
    shown.channels["nic"][0][1][0] = np.nan
    assert crowded_switch(seen(topology(), shown)) is None


def test_nodes_show_the_leaf_where_ports_are_not_told_apart() -> None:
    known = topology(nic=None, rail=None)
    part = crowded_switch(seen(known, at_nodes=(2, 3)))
    assert part is not None
    assert part.name == "leaf1"


def test_suspect_links_behind_one_switch_become_one_component() -> None:
    shown = seen(topology(), ports(node(2, 3), past=True))
    suspects = [suspect((0,), "gpu_throttling"), suspect(node(2), NIC, 0.7), suspect(node(3), CONGESTION)]
    first, joined = through_switches(suspects, shown)
    assert first == suspects[0].component
    assert joined == Component("node", node(2, 3), 0.8)


def test_a_neighbour_of_the_switch_is_no_suspect_of_its_own() -> None:
    shown = seen(topology(), ports(node(2, 3), past=True))
    suspects = [suspect(node(2), NIC), suspect(node(1), NIC, 0.5), suspect(node(3), NIC)]
    assert through_switches(suspects, shown) == [Component("node", node(2, 3), 0.8)]


def test_a_rail_is_a_component_of_single_ranks() -> None:
    shown = seen(topology(), ports((10, 14), past=True))
    assert through_switches([suspect(node(2), NIC), suspect(node(3), NIC)], shown) == [
        Component("rank", (10, 14), 0.8)
    ]


@pytest.mark.parametrize(
    "suspects",
    [
        [suspect(node(2), NIC)],
        [suspect(node(2), "storage_degradation"), suspect(node(3), "storage_degradation")],
        [suspect(node(0), NIC), suspect(node(4), NIC)],
    ],
    ids=["one node", "another cause", "other nodes"],
)
def test_other_suspects_stay_as_they_are(suspects: list[ComponentCause]) -> None:
    shown = seen(topology(), ports(node(2, 3), past=True))
    assert through_switches(suspects, shown) == [each.component for each in suspects]


@pytest.mark.parametrize(("second", "joined"), [(3, True), (4, False)], ids=["same leaf", "another leaf"])
def test_without_signals_of_ports_all_nodes_of_the_leaf_have_to_be_suspects(
    second: int, joined: bool
) -> None:
    suspects = [suspect(node(2), NIC), suspect(node(second), NIC)]
    found = through_switches(suspects, seen(topology()))
    assert (found == [Component("node", node(2, 3), 0.8)]) == joined
    assert len(found) == (1 if joined else 2)


@for_each(
    ("ranks", "cause", "level"),
    [
        ((10, 11), PCIE, "pcie_switch"),
        ((10,), PCIE, None),
        ((9, 10), PCIE, None),
        ((10, 11), "gpu_throttling", None),
        (node(2, 3), CONGESTION, "leaf_switch"),
        ((10, 14), CONGESTION, "rail"),
        (node(2, 3, 4), CONGESTION, None),
        (node(2), NIC, None),
        (node(2, 3), NIC, None),
        (node(2), None, None),
    ],
)
def test_a_part_is_named_for_the_faults_that_it_can_have(
    ranks: tuple[int, ...], cause: str | None, level: str | None
) -> None:
    part = carrying(ranks, cause, seen(topology()))
    assert (None if part is None else part.level) == level


def test_the_adapter_with_the_crowded_port_is_named() -> None:
    part = carrying(node(2), NIC, seen(topology(), ports((11,), past=True)))
    assert part is not None
    assert (part.name, part.within) == ("mlx5_3", "n2")
    assert carrying(node(2), NIC, seen(topology(), ports((10, 11), past=True))) is None
