"""Evidence on links: whose link is at fault.

A fault of one node's link belongs to the node, that of many nodes to the fabric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.classify.components import Component, ComponentCause
from rca.classify.decision_table import POINTED_TO
from rca.features import WINDOW_FEATURES, FeatureSet
from rca.features.resource_evidence import resource_names
from rca.window.job import Topology

NIC, NVLINK = "nic_degradation", "nvlink_degradation"
#: Causes that hit all ranks of a node alike, by the catalogue.
OF_THE_NODE = frozenset({NIC, NVLINK})
#: Causes that slow collectives by a link.
LINK_CAUSES = OF_THE_NODE | {"network_congestion"}
#: Bad ports on at least this share of the nodes, and on two nodes or more, are one bad fabric.
FABRIC_SHARE = 0.5
#: A score from here on is evidence, in units; ports with less than this share of the worst score are not.
REMARKABLE, COMPARABLE = 1.0, 0.5
#: Without a late rank, a single port explains slow collectives from here on, in units.
NOTICEABLE = 0.7
#: Errors on the links inside a single node count from here on, in units: a healthy link has hardly any.
ERRING = 2.0
#: A port's fault is isolated if every other port shows less than this share of its score. A crowded fabric
#: shows on many ports, so isolation, not the score, outweighs the model's suspicion of the whole job.
ALONE = 0.25
#: Transfer grown by this share of the step makes slow links a possible explanation.
SLOW_TRANSFER = 0.02


@dataclass(frozen=True)
class Ports:
    """Scores of a node's links against those of the other nodes.

    Attributes
    ----------
    queues, errors : ndarray of shape (n_nodes,), units
        `queues`: queues, limits and errors of the port. `errors`: of the links inside the node.
    went_down : ndarray of shape (n_nodes,), bool
        An event reports that a port which the job may use was down. All false where ports or connections are
        measured, because these would show the effect.
    """

    queues: FloatArray
    errors: FloatArray
    went_down: BoolArray

    @classmethod
    def from_features(cls, features: FeatureSet) -> Ports:
        """The worst rank's scores of every known node."""
        evidence, topology = features.evidence, features.topology
        queues, connections, errors = (
            of_nodes(evidence.versus_peers[:, resource_names().index(name)], topology)
            for name in ("nic", "tcp", "nvlink")
        )
        down = np.isin(np.arange(len(topology.node_names)), topology.node[features.job_end.link_down])
        watched = np.isfinite(queues).any() or np.isfinite(connections).any()
        return cls(np.nan_to_num(queues), np.nan_to_num(errors), down & ~watched)


def through_ports(suspects: Sequence[ComponentCause], ports: Ports, topology: Topology) -> list[Component]:
    """The components without ports that only show their neighbour's symptoms.

    Bad ports of many nodes are one component, the job. A collective slows all ranks alike. So timers rarely
    show which of two neighbours a bad port belongs to.

    Returns
    -------
    list of Component
        In the same order.
    """
    meant = _meant(suspects, ports, topology)
    bad = [each for each in meant if each.cause == NIC]
    nodes = {each.node(topology) for each in bad}
    if -1 not in nodes and len(nodes) >= max(2.0, FABRIC_SHARE * len(topology.node_names)):
        chance = max(each.component.probability for each in bad)
        rest = [each.component for each in meant if each.cause != NIC]
        return [Component("job", tuple(range(topology.n_ranks)), chance), *rest]
    return [each.component for each in meant]


def _meant(suspects: Sequence[ComponentCause], ports: Ports, topology: Topology) -> list[ComponentCause]:
    """Leave out ports whose queues are clearly shorter than the longest."""
    nodes = [each.node(topology) for each in suspects if each.cause == NIC]
    if len(set(nodes)) < 2 or -1 in nodes or ports.queues[nodes].max() < REMARKABLE:
        return list(suspects)
    least = COMPARABLE * ports.queues[nodes].max()
    return [each for each in suspects if each.cause != NIC or ports.queues[each.node(topology)] >= least]


def isolated_link_fault(ports: Ports, topology: Topology) -> ComponentCause | None:
    """The only node whose link shows a fault, and the link's cause; None if there is no such node.

    The strongest evidence is the port's queue, then errors inside the node, then a port that was down for a
    moment. Evidence on several nodes outweighs weaker evidence on one.
    """
    if ports.queues.size < 2:
        return None
    for scores, enough, cause in (
        (ports.queues, NOTICEABLE, NIC),
        (ports.errors, ERRING, NVLINK),
        (ports.went_down.astype(float), 1.0, NIC),
    ):
        second, worst = np.sort(scores)[-2:]
        if worst < enough:
            continue
        if second >= ALONE * worst:
            return None
        ranks = tuple(int(rank) for rank in np.flatnonzero(topology.node == int(scores.argmax())))
        return ComponentCause(Component("node" if len(ranks) > 1 else "rank", ranks, POINTED_TO), cause)
    return None


def of_nodes(scores: FloatArray, topology: Topology) -> FloatArray:
    """The worst rank's score of each known node, NaN where none is known; shape (n_nodes,)."""
    worst = np.full(len(topology.node_names), np.nan)
    known = topology.node >= 0
    np.fmax.at(worst, topology.node[known], scores[known])
    return worst


def transfer_grew(features: FeatureSet) -> bool:
    """Whether transfers became slower within the window."""
    return bool(features.window[WINDOW_FEATURES.index("transfer_growth")] >= SLOW_TRANSFER)
