"""One node's link is its port, that of all nodes the fabric, and crowded among quiet ports a part of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rca.classify.components import Component
from rca.classify.shared_parts import crowded_part, of_one_node, reaching
from rca.features.resource_evidence import RESOURCES, ResourceEvidence, resource_names
from rca.window.job import Job, RankPlace, Topology

CONGESTION, NIC = "network_congestion", "nic_degradation"
NODES, PER_NODE = 6, 2
CROWDED = 4.0


def topology(n_nodes: int = NODES) -> Topology:
    places = tuple(RankPlace(rank=rank, node=f"n{rank // PER_NODE}") for rank in range(n_nodes * PER_NODE))
    return Job(job_id="j", world_size=len(places), ranks=places, start=0.0, end=1.0).topology


def evidence(
    nodes: dict[int, float], *, past: bool = True, unmeasured: tuple[int, ...] = (), n_nodes: int = NODES
) -> ResourceEvidence:
    """Scores of the fabric's channel by node, against the past or else against peers; others show 0.1."""
    n_ranks, column = n_nodes * PER_NODE, resource_names().index("fabric")
    scores = np.full((n_ranks, len(RESOURCES)), np.nan)
    scores[:, column] = np.repeat([nodes.get(node, 0.1) for node in range(n_nodes)], PER_NODE)
    values = scores[:, column].copy()
    values[[rank for rank in range(n_ranks) if rank // PER_NODE in unmeasured]] = np.nan
    best = np.full(scores.shape, -1)
    best[:, column] = 0
    unknown = np.full(scores.shape, np.nan)
    channel = RESOURCES["fabric"][0].channel
    # Most are crowded, so peers are compared with a crowded one: the quiet ones are far below it.
    peers = unknown if past else scores - CROWDED
    return ResourceEvidence(peers, scores if past else unknown, unknown, best, {channel: values}, {})


def seen(evidence: ResourceEvidence, topology: Topology, *, transfer: float = 0.1) -> Any:
    """What `reaching` looks at of a window's features."""
    work = SimpleNamespace(transfer=np.full((topology.n_ranks, 3), transfer))
    job_end = SimpleNamespace(link_down=np.zeros(topology.n_ranks, dtype=bool))
    return SimpleNamespace(evidence=evidence, topology=topology, work=work, job_end=job_end)


def ranks(*nodes: int) -> tuple[int, ...]:
    return tuple(rank for node in nodes for rank in range(node * PER_NODE, (node + 1) * PER_NODE))


@pytest.mark.parametrize("past", [True, False], ids=["since", "from the first step on"])
def test_crowded_ports_beside_quiet_ones_are_a_part(past: bool) -> None:
    shown = evidence(dict.fromkeys((0, 2, 3, 5), CROWDED), past=past)
    assert crowded_part(shown, topology()) == ranks(0, 2, 3, 5)


@pytest.mark.parametrize(
    "nodes",
    [
        {},
        dict.fromkeys(range(NODES), CROWDED),
        {node: CROWDED - 0.4 * node for node in range(NODES)},
        {3: CROWDED},
    ],
    ids=["nobody", "all_ranks", "one more than the other", "one port"],
)
def test_otherwise_there_is_no_part(nodes: dict[int, float]) -> None:
    assert crowded_part(evidence(nodes), topology()) == ()


def test_a_node_that_does_not_export_the_counter_is_not_quiet() -> None:
    shown = evidence(dict.fromkeys(range(5), CROWDED), unmeasured=(5,))
    assert crowded_part(shown, topology()) == ()


def test_everybodys_congestion_is_that_of_the_part() -> None:
    all_ranks = Component("job", tuple(range(NODES * PER_NODE)), 0.7)
    belief = {NIC: 0.5, CONGESTION: 0.3, "nvlink_degradation": 0.2}
    shown = evidence(dict.fromkeys((1, 4), CROWDED))
    component, causes = reaching(all_ranks, belief, seen(shown, topology()))
    assert (component.ranks, component.scope, component.probability) == (ranks(1, 4), "node", 0.7)
    assert causes == {NIC: 0.0, CONGESTION: pytest.approx(0.8), "nvlink_degradation": 0.2}


def test_a_fault_that_is_not_the_fabrics_stays_everybodys() -> None:
    all_ranks = Component("job", tuple(range(NODES * PER_NODE)), 0.7)
    shown = evidence(dict.fromkeys((1, 4), CROWDED))
    belief = {"storage_degradation": 0.6, CONGESTION: 0.4}
    component, _ = reaching(all_ranks, belief, seen(shown, topology()))
    assert component == all_ranks


def test_without_a_timer_around_transfers_everybody_has_to_be_priced() -> None:
    all_ranks = Component("job", tuple(range(NODES * PER_NODE)), 0.7)
    shown = evidence(dict.fromkeys((1, 4), CROWDED))
    component, _ = reaching(all_ranks, {CONGESTION: 1.0}, seen(shown, topology(), transfer=np.nan))
    assert component == all_ranks


def test_racks_that_always_differ_are_no_part_where_all_grew_alike() -> None:
    """What was before the congestion says more than how the nodes compare."""
    shown = evidence(dict.fromkeys(range(NODES), CROWDED))
    shown.versus_peers[:] = np.where(np.arange(NODES * PER_NODE)[:, None] < NODES, -CROWDED, 0.0)
    assert crowded_part(shown, topology()) == ()


def test_a_crowded_fabric_is_not_narrowed_by_a_few_ports_own_trouble() -> None:
    shown = evidence(dict.fromkeys(range(NODES), CROWDED))
    nic = resource_names().index("nic")
    shown.versus_past[:, nic] = np.repeat([CROWDED, CROWDED, 0.0, 0.0, 0.0, 0.0], PER_NODE)
    assert crowded_part(shown, topology()) == ()


@pytest.mark.parametrize("alone", [True, False], ids=["its queue alone", "no queue"])
def test_a_port_that_stands_alone_is_not_what_all_share(alone: bool) -> None:
    node = Component("node", ranks(2), 0.9)
    belief = {CONGESTION: 0.7, NIC: 0.1}
    shown = evidence({})
    queues = np.where(np.arange(NODES) == 2, CROWDED, 0.0) if alone else np.zeros(NODES)
    shown.versus_peers[:, resource_names().index("nic")] = np.repeat(queues, PER_NODE)
    component, causes = reaching(node, belief, seen(shown, topology()))
    assert component == node
    assert causes == ({CONGESTION: 0.0, NIC: pytest.approx(0.8)} if alone else belief)


def test_a_job_on_one_node_says_nothing_about_ports() -> None:
    all_ranks, belief = Component("job", (0, 1), 0.9), {CONGESTION: 0.7, NIC: 0.1}
    assert reaching(all_ranks, belief, seen(evidence({}, n_nodes=1), topology(1))) == (all_ranks, belief)


def test_errors_inside_the_one_node_are_neither_its_ports_nor_everybodys() -> None:
    found = of_one_node(
        {CONGESTION: 0.4, NIC: 0.3, "nvlink_degradation": 0.2, "hang": 0.1}, "nvlink_degradation"
    )
    assert found == {CONGESTION: 0.0, NIC: 0.0, "nvlink_degradation": pytest.approx(0.9), "hang": 0.1}


def test_a_port_leaves_the_links_inside_the_node_their_belief() -> None:
    found = of_one_node({CONGESTION: 0.4, NIC: 0.3, "nvlink_degradation": 0.2}, NIC)
    assert found == {CONGESTION: 0.0, NIC: pytest.approx(0.7), "nvlink_degradation": 0.2}
