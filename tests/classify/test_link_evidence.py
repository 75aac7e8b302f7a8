"""A port serves its whole node; bad ports on most nodes are a bad fabric."""

from __future__ import annotations

import numpy as np

from rca.classify.components import Component, ComponentCause
from rca.classify.link_evidence import through_ports as through
from rca.window.job import Job, RankPlace, Topology

NIC = "nic_degradation"


def topology(n_nodes: int = 4, per_node: int = 2, *, named: bool = True) -> Topology:
    places = tuple(
        RankPlace(rank=rank, node=f"n{rank // per_node}" if named else None)
        for rank in range(n_nodes * per_node)
    )
    job = Job(job_id="j", world_size=n_nodes * per_node, ranks=places, start=0.0, end=1.0)
    return job.topology


def through_ports(
    components: list[Component], causes: list[str], topology: Topology, queues: dict[int, float] | None = None
) -> list[Component]:
    suspects = [ComponentCause(component, cause) for component, cause in zip(components, causes, strict=True)]
    shown = np.zeros(len(topology.node_names))
    shown[list(queues or {})] = list((queues or {}).values())
    return through(suspects, shown, topology)


def rank(number: int, chance: float = 0.9) -> Component:
    return Component("rank", (number,), chance)


def test_other_causes_stay_with_their_rank() -> None:
    found = through_ports([rank(3), rank(6)], ["cpu_contention", NIC], topology())
    assert found == [rank(3), rank(6)]


def test_bad_ports_on_half_of_the_nodes_are_the_fabric() -> None:
    suspected = [Component("node", (0, 1), 0.9), rank(5, 0.6), rank(7, 0.5)]
    found = through_ports(suspected, [NIC, NIC, "runtime_gc"], topology())
    assert found == [Component("job", tuple(range(8)), 0.9), rank(7, 0.5)]


def test_two_bad_ports_of_many_stay_two() -> None:
    suspected = [Component("node", (0, 1), 0.9), Component("node", (8, 9), 0.8)]
    assert through_ports(suspected, [NIC, NIC], topology(8)) == suspected


def test_a_single_port_of_a_two_node_job_is_no_fabric() -> None:
    found = through_ports([rank(0)], [NIC], topology(2))
    assert found == [rank(0)]


def test_a_port_whose_neighbour_queues_is_not_meant() -> None:
    found = through_ports([rank(2), rank(4)], [NIC, NIC], topology(), {1: 4.2, 2: 0.3})
    assert found == [rank(2)]


def test_ports_that_queue_alike_are_the_fabric() -> None:
    found = through_ports([rank(0), rank(4)], [NIC, NIC], topology(), {0: 4.1, 2: 3.2})
    assert found == [Component("job", tuple(range(8)), 0.9)]
