"""A port serves its whole node; bad ports on most nodes are a bad fabric."""

from __future__ import annotations

import numpy as np

from rca.classify.components import Component, ComponentCause
from rca.classify.link_evidence import NVLINK, Ports, isolated_link_fault
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


def ports(
    n_nodes: int = 4,
    *,
    queues: dict[int, float] | None = None,
    trips: dict[int, float] | None = None,
    errors: dict[int, float] | None = None,
    down: tuple[int, ...] = (),
) -> Ports:
    shown = np.zeros((3, n_nodes))
    for row, given in enumerate((queues or {}, trips or {}, errors or {})):
        for node, score in given.items():
            shown[row, node] = score
    return Ports(shown[0], shown[1], shown[2], np.isin(np.arange(n_nodes), down))


def through_ports(
    components: list[Component], causes: list[str], topology: Topology, shown: Ports | None = None
) -> list[Component]:
    suspects = [ComponentCause(component, cause) for component, cause in zip(components, causes, strict=True)]
    return through(suspects, shown or ports(len(topology.node_names)), topology)


def rank(number: int, chance: float = 0.9) -> Component:
    return Component("rank", (number,), chance)


def test_one_rank_of_a_bad_port_means_its_node() -> None:
    assert through_ports([rank(3, 0.7)], [NIC], topology()) == [Component("node", (2, 3), 0.7)]


def test_two_ranks_of_one_node_become_one_component() -> None:
    assert through_ports([rank(3), rank(2, 0.8)], [NIC, NIC], topology()) == [Component("node", (2, 3), 0.9)]


def test_other_causes_stay_with_their_rank() -> None:
    found = through_ports([rank(3), rank(6)], ["cpu_contention", NIC], topology())
    assert found == [rank(3), Component("node", (6, 7), 0.9)]


def test_bad_ports_on_half_of_the_nodes_are_the_fabric() -> None:
    suspected = [Component("node", (0, 1), 0.9), rank(5, 0.6), rank(7, 0.5)]
    found = through_ports(suspected, [NIC, NIC, "runtime_gc"], topology())
    assert found == [Component("job", tuple(range(8)), 0.9), rank(7, 0.5)]


def test_two_bad_ports_of_many_stay_two() -> None:
    suspected = [Component("node", (0, 1), 0.9), Component("node", (8, 9), 0.8)]
    assert through_ports(suspected, [NIC, NIC], topology(8)) == suspected


def test_a_single_port_of_a_two_node_job_is_no_fabric() -> None:
    found = through_ports([rank(0)], [NIC], topology(2))
    assert found == [Component("node", (0, 1), 0.9)]


def test_without_node_names_nothing_is_widened() -> None:
    assert through_ports([rank(3)], [NIC], topology(named=False)) == [rank(3)]


def test_a_port_whose_neighbour_queues_is_not_meant() -> None:
    found = through_ports([rank(2), rank(4)], [NIC, NIC], topology(), ports(queues={1: 4.2, 2: 0.3}))
    assert found == [Component("node", (2, 3), 0.9)]


def test_ports_that_queue_alike_are_the_fabric() -> None:
    found = through_ports([rank(0), rank(4)], [NIC, NIC], topology(), ports(queues={0: 4.1, 2: 3.2}))
    assert found == [Component("job", tuple(range(8)), 0.9)]


def test_of_two_ends_of_a_slow_connection_the_worse_is_meant() -> None:
    found = through_ports([rank(5), rank(7)], [NIC, NIC], topology(), ports(trips={2: 1.4, 3: 1.2}))
    assert found == [Component("node", (4, 5), 0.9)]
    tied = through_ports([rank(1, 0.5), rank(7, 0.6)], [NIC, NIC], topology(), ports(trips={0: 1.8, 3: 1.8}))
    assert tied == [Component("node", (6, 7), 0.6)]


SECOND = Component("node", (2, 3), 0.5)


def test_only_a_link_that_stands_alone_stands_against_a_fault_of_the_whole_job() -> None:
    assert isolated_link_fault(ports(queues={1: 4.0}), topology()) == ComponentCause(SECOND, NIC)
    assert isolated_link_fault(ports(queues={1: 0.9, 2: 0.1}), topology()) == ComponentCause(SECOND, NIC)
    assert isolated_link_fault(ports(queues={1: 0.6}), topology()) is None
    assert isolated_link_fault(ports(queues={1: 4.0, 2: 1.5}), topology()) is None
    assert isolated_link_fault(ports(trips={1: 8.0}), topology()) is None


def test_errors_inside_one_node_alone_are_that_nodes_links() -> None:
    assert isolated_link_fault(ports(errors={1: 4.0}), topology()) == ComponentCause(SECOND, NVLINK)
    # Sound links count an error now and then.
    assert isolated_link_fault(ports(errors={1: 1.5}), topology()) is None
    assert isolated_link_fault(ports(errors={1: 4.0, 3: 2.0}), topology()) is None
    assert isolated_link_fault(ports(queues={2: 1.0}, errors={1: 4.0}), topology()) == ComponentCause(
        Component("node", (4, 5), 0.5), NIC
    )


def test_what_several_nodes_show_is_not_outdone_by_a_weaker_sign_of_one() -> None:
    crowded = {0: 5.0, 1: 4.0, 2: 5.0, 3: 4.0}
    assert isolated_link_fault(ports(queues=crowded, errors={1: 4.0}), topology()) is None
    assert isolated_link_fault(ports(errors=crowded, down=(1,)), topology()) is None


def test_the_one_port_that_was_down_is_meant_where_nothing_else_tells() -> None:
    assert isolated_link_fault(ports(down=(1,)), topology()) == ComponentCause(SECOND, NIC)
    assert isolated_link_fault(ports(down=(1, 2)), topology()) is None
    assert isolated_link_fault(ports(queues={2: 1.0}, down=(1,)), topology()) == ComponentCause(
        Component("node", (4, 5), 0.5), NIC
    )
