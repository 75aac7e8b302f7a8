"""Evidence on links: whose port is at fault, and whether transfers grew.

A fault of one node's port belongs to the node, that of many nodes to the fabric.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import FloatArray
from rca.classify.components import Component, ComponentCause
from rca.features import WINDOW_FEATURES, FeatureSet
from rca.features.resource_evidence import resource_names
from rca.window.job import Topology

NIC = "nic_degradation"
#: Causes that slow collectives by a link.
LINK_CAUSES = frozenset({NIC, "nvlink_degradation", "network_congestion"})
#: Bad ports on at least this share of the nodes, and on two nodes or more, are one bad fabric.
FABRIC_SHARE = 0.5
#: A score from here on is evidence, in units; ports with less than this share of the worst score are not.
REMARKABLE, COMPARABLE = 1.0, 0.5
#: Transfer grown by this share of the step makes slow links a possible explanation.
SLOW_TRANSFER = 0.02


def port_queues(features: FeatureSet) -> FloatArray:
    """Score of each known node's port against the other nodes, of its worst rank; (n_nodes,), units."""
    topology = features.topology
    worst, known = np.full(len(topology.node_names), np.nan), topology.node >= 0
    scores = features.evidence.versus_peers[:, resource_names().index("nic")]
    np.fmax.at(worst, topology.node[known], scores[known])
    known_scores: FloatArray = np.nan_to_num(worst)
    return known_scores


def through_ports(
    suspects: Sequence[ComponentCause], queues: FloatArray, topology: Topology
) -> list[Component]:
    """The components without ports that only show their neighbour's symptoms.

    Bad ports of many nodes are one component, the job. A collective slows all ranks alike. So timers rarely
    show which of two neighbours a bad port belongs to.

    Parameters
    ----------
    queues : ndarray of shape (n_nodes,), units
        From `port_queues`.

    Returns
    -------
    list of Component
        In the same order.
    """
    meant = _meant(suspects, queues, topology)
    bad = [each for each in meant if each.cause == NIC]
    nodes = {each.node(topology) for each in bad}
    if -1 not in nodes and len(nodes) >= max(2.0, FABRIC_SHARE * len(topology.node_names)):
        chance = max(each.component.probability for each in bad)
        rest = [each.component for each in meant if each.cause != NIC]
        return [Component("job", tuple(range(topology.n_ranks)), chance), *rest]
    return [each.component for each in meant]


def _meant(
    suspects: Sequence[ComponentCause], queues: FloatArray, topology: Topology
) -> list[ComponentCause]:
    """Leave out ports whose queues are clearly shorter than the longest."""
    nodes = [each.node(topology) for each in suspects if each.cause == NIC]
    if len(set(nodes)) < 2 or -1 in nodes or queues[nodes].max() < REMARKABLE:
        return list(suspects)
    least = COMPARABLE * queues[nodes].max()
    return [each for each in suspects if each.cause != NIC or queues[each.node(topology)] >= least]


def transfer_grew(features: FeatureSet) -> bool:
    """Whether transfers became slower within the window."""
    return bool(features.window[WINDOW_FEATURES.index("transfer_growth")] >= SLOW_TRANSFER)
