"""Links that a node's ranks share: their fault is the node's, and that of many nodes is the fabric's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.classify.components import Component
from rca.telemetry.job import Topology

#: Causes that hit all ranks of a node alike, by the catalogue.
OF_THE_NODE = frozenset({"nic_degradation", "nvlink_degradation"})
#: Bad ports on this share of the nodes, two at least, are one bad fabric.
FABRIC_SHARE = 0.5


def through_ports(
    components: Sequence[Component], causes: Sequence[str], topology: Topology
) -> list[Component]:
    """Widen components whose likeliest cause is a shared link to what shares it.

    A collective makes everybody slow alike, so timers rarely tell which of a node's ranks a bad port
    belongs to; it belongs to all of them.

    Parameters
    ----------
    components : sequence of Component
    causes : sequence of str
        Likeliest cause of each.

    Returns
    -------
    list of Component
        In the same order, those that became one another's part left out.
    """
    if _is_fabric(components, causes, topology):
        kept = [each for each, cause in zip(components, causes, strict=True) if cause != "nic_degradation"]
        chance = max(
            each.probability
            for each, cause in zip(components, causes, strict=True)
            if cause == "nic_degradation"
        )
        return [Component("job", tuple(range(topology.n_ranks)), chance), *kept]
    widened: list[Component] = []
    for component, cause in zip(components, causes, strict=True):
        wider = _whole_node(component, topology) if cause in OF_THE_NODE else component
        if not any(set(wider.ranks) <= set(other.ranks) for other in widened):
            widened = [other for other in widened if not set(other.ranks) <= set(wider.ranks)]
            widened.append(wider)
    return widened


def _is_fabric(components: Sequence[Component], causes: Sequence[str], topology: Topology) -> bool:
    nodes = {
        int(topology.node[rank])
        for component, cause in zip(components, causes, strict=True)
        for rank in component.ranks
        if cause == "nic_degradation"
    }
    known = len(topology.node_names)
    return -1 not in nodes and len(nodes) >= max(2.0, FABRIC_SHARE * known)


def _whole_node(component: Component, topology: Topology) -> Component:
    node = topology.node[list(component.ranks)]
    if component.scope != "rank" or node[0] < 0 or len(topology.node_names) < 2:
        return component
    members = np.flatnonzero(topology.node == node[0])
    if members.size == 1:
        return component
    return Component("node", tuple(int(rank) for rank in members), component.probability)
