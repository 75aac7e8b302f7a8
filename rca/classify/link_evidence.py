"""Evidence on links: whose link is at fault, and whether collectives are slow beside a straggler.

A fault of one node's link belongs to the node, that of many nodes to the fabric. Stragglers explain waiting,
but not longer transfers of all ranks.
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
from rca.robust import nan_mean, nan_median
from rca.window.causes import CAUSES
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
#: Without a late rank, connections or a single port explain slow collectives from here on, in units.
NOTICEABLE = 0.7
#: Errors on the links inside a single node count from here on, in units: a healthy link has hardly any.
ERRING = 2.0
#: A port's fault is isolated if every other port shows less than this share of its score. A crowded fabric
#: shows on many ports, so isolation, not the score, outweighs the model's suspicion of the whole job.
ALONE = 0.25
#: Transfer grown by this share of the step makes slow links a possible explanation.
SLOW_TRANSFER = 0.02
#: Least growth of the collectives: this share of the steps' growth, and this share of a step.
OWN_MATTER, MIN_GROWTH = 0.2, 0.05
#: Causes of single ranks that also delay their transfers: a host that reclaims memory is late to copy into
#: and out of its sockets. Transfer is not among their phases in the catalogue, so they have no price for it.
_ALSO_LENGTHENS_TRANSFER = frozenset({"memory_pressure"})


@dataclass(frozen=True)
class Ports:
    """Scores of a node's port and connections against those of the other nodes.

    Attributes
    ----------
    queues, connections, errors : ndarray of shape (n_nodes,), units
        `queues`: queues, limits and errors of the port. `connections`: round trips and retransmissions, which
        neighbours in a ring share. `errors`: of the links inside the node.
    went_down : ndarray of shape (n_nodes,), bool
        An event reports that a port which the job may use was down. All false where ports or connections are
        measured, because these would show the effect.
    """

    queues: FloatArray
    connections: FloatArray
    errors: FloatArray
    went_down: BoolArray

    @classmethod
    def from_features(cls, features: FeatureSet) -> Ports:
        """The worst rank's scores of every known node."""
        evidence, topology = features.evidence, features.topology
        resources = [resource_names().index(name) for name in ("nic", "tcp", "nvlink")]
        worst = [of_nodes(evidence.versus_peers[:, column], topology) for column in resources]
        queues, connections, errors = (np.nan_to_num(scores, nan=0.0) for scores in worst)
        down = np.isin(np.arange(len(topology.node_names)), topology.node[features.job_end.link_down])
        watched = np.isfinite(worst[0]).any() or np.isfinite(worst[1]).any()
        return cls(queues, connections, errors, down & ~watched)


def through_ports(suspects: Sequence[ComponentCause], ports: Ports, topology: Topology) -> list[Component]:
    """Widen components whose likeliest cause is a shared link to all ranks that share it.

    A collective slows all ranks alike. So timers rarely show which rank of a node, or which of two
    neighbours, a bad port belongs to.

    Returns
    -------
    list of Component
        In the same order, without those that became part of another, and without ports that only show
        their neighbour's symptoms.
    """
    meant = _meant(suspects, ports, topology)
    bad = [each for each in meant if each.cause == NIC]
    nodes = {each.node(topology) for each in bad}
    if -1 not in nodes and len(nodes) >= max(2.0, FABRIC_SHARE * len(topology.node_names)):
        chance = max(each.component.probability for each in bad)
        rest = [each.component for each in meant if each.cause != NIC]
        return [Component("job", tuple(range(topology.n_ranks)), chance), *rest]
    widened: list[Component] = []
    for each in meant:
        wider = _whole_node(each, topology)
        if not any(set(wider.ranks) <= set(other.ranks) for other in widened):
            widened = [other for other in widened if not set(other.ranks) <= set(wider.ranks)]
            widened.append(wider)
    return widened


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


def _meant(suspects: Sequence[ComponentCause], ports: Ports, topology: Topology) -> list[ComponentCause]:
    """Leave out ports that are clearly better than the worst: by their queues, or else by connections."""
    bad = [each for each in suspects if each.cause == NIC]
    nodes = [each.node(topology) for each in bad]
    if len(set(nodes)) < 2 or -1 in nodes:
        return list(suspects)
    if ports.queues[nodes].max() >= REMARKABLE:
        kept = set(np.array(nodes)[ports.queues[nodes] >= COMPARABLE * ports.queues[nodes].max()].tolist())
    elif ports.connections[nodes].max() >= REMARKABLE:
        # A slow connection shows at both ends: only the worse end is kept.
        order = [
            (ports.connections[node], each.component.probability)
            for node, each in zip(nodes, bad, strict=True)
        ]
        kept = {nodes[max(range(len(nodes)), key=lambda index: order[index])]}
    else:
        return list(suspects)
    return [each for each in suspects if each.cause != NIC or each.node(topology) in kept]


def _whole_node(suspected: ComponentCause, topology: Topology) -> Component:
    component, node = suspected.component, suspected.node(topology)
    if suspected.cause not in OF_THE_NODE or component.scope != "rank" or node < 0:
        return component
    members = np.flatnonzero(topology.node == node)
    if members.size == 1 or len(topology.node_names) < 2:
        return component
    return Component("node", tuple(int(rank) for rank in members), component.probability)


def transfer_grew(features: FeatureSet) -> bool:
    """Whether transfers became slower within the window."""
    return bool(features.window[WINDOW_FEATURES.index("transfer_growth")] >= SLOW_TRANSFER)


def transfer_is_timed(features: FeatureSet) -> bool:
    """Whether transfer is timed, rather than estimated as the shortest communication of all ranks.

    Where ranks meet several times a step, or stages wait for each other, every rank waits. The shortest
    communication then grows without a slow link.
    """
    return bool(np.isfinite(features.phases.phase("communication_transfer_seconds")).any())


def residual_collectives(suspects: Sequence[ComponentCause], features: FeatureSet) -> bool:
    """Whether the collectives became slower by more than the suspects' causes explain."""
    if not suspects or not transfer_grew(features):
        return False
    work, segment = features.work, features.comparison.segment
    if segment.whole or any(_lengthens_transfer(each.cause) for each in suspects):
        return False
    inside = segment.mask(work.steps.size)

    def grown(series: FloatArray) -> float:
        return float(nan_mean(series[inside][:, None])[0] - nan_mean(series[~inside][:, None])[0])

    transfer = grown(nan_median(work.transfer))
    return transfer >= max(OWN_MATTER * grown(work.job_step), MIN_GROWTH * work.step_reference)


def _lengthens_transfer(cause: str) -> bool:
    """Whether the cause slows collectives, or its effect on them is unknown."""
    return cause not in CAUSES or "transfer" in CAUSES[cause].phases or cause in _ALSO_LENGTHENS_TRANSFER


def between_machines(causes: dict[str, float]) -> dict[str, float]:
    """Probabilities of the causes given a link fault; empty if no link cause has any."""
    links = {name: chance for name, chance in causes.items() if name in LINK_CAUSES and chance > 0}
    total = sum(links.values())
    return {name: chance / total for name, chance in links.items()} if total > 0 else {}
