"""How far a link fault reaches: one port, the fabric, or the part of the hardware that slow ranks share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.classify.components import Component, ComponentCause
from rca.classify.link_evidence import ALONE, NIC, NVLINK, Ports, isolated_link_fault, of_nodes
from rca.features import FeatureSet
from rca.features.port_evidence import PORT_RESOURCES, PortEvidence
from rca.features.resource_evidence import RESOURCES, ResourceEvidence, compare, resource_names
from rca.window.job import PartLevel, SharedPart, Topology

CONGESTION, PCIE = "network_congestion", "pcie_degradation"
#: Causes that a fault of each level shows as, by the catalogue.
CARRIED: Mapping[PartLevel, frozenset[str]] = {
    "leaf_switch": frozenset({CONGESTION}),
    "rail": frozenset({CONGESTION}),
    "pcie_switch": frozenset({PCIE}),
    "nic": frozenset({NIC}),
}
#: Levels that join nodes.
BETWEEN_NODES = frozenset({"leaf_switch", "rail"})
#: Causes of single nodes' links and of the fabric, which a part between nodes may explain together.
_LINKS = frozenset({NIC, CONGESTION})
#: Least score of a crowded port, in units: against its past; against the usual port outside the part; against
#: the quietest port.
CROWDED_VS_PAST, CROWDED_VS_USUAL, CROWDED_VS_QUIETEST = 0.5, 1.5, 1.5
#: Ports outside a part are quiet if all of them show less than this share of the part's quietest port.
QUIET = 0.5
#: A PCIe switch is at fault if more than this share of its ranks, and two or more, are slow.
MAJORITY = 0.5


def crowded_switch(features: FeatureSet) -> SharedPart | None:
    """The leaf switch or rail whose ports are crowded while all other ports are quiet; None if there is none.

    Signals of each rank's own adapter decide where they are known, else those of its node.
    """
    parts = _between_nodes(features.topology)
    if not parts:
        return None
    everywhere = np.arange(features.topology.n_ranks)
    of_nodes = PortEvidence.of_nodes(features.evidence)
    for ports in [of_nodes] if features.ports is None else [features.ports, of_nodes]:
        contrast = [_contrast(ports, part, everywhere) for part in parts]
        if max(contrast) > 0:
            return parts[int(np.argmax(contrast))]
    return None


def through_switches(suspects: Sequence[ComponentCause], features: FeatureSet) -> list[Component]:
    """Join suspects whose links share one leaf switch or rail into one component.

    They share it if its ports alone are crowded. Without signals of ports they share it if all its nodes have
    a suspect link, and no other node has. Suspect links of other nodes are left out: their ports are quiet,
    so they only show the symptoms of their neighbours.

    Returns
    -------
    list of Component
        In the same order, without those that became part of another.
    """
    links = [each for each in suspects if each.cause in _LINKS and each.component.scope != "job"]
    part = _shared_by(links, features)
    if part is None:
        return [each.component for each in suspects]
    behind = [each for each in links if not set(each.component.ranks).isdisjoint(part.ranks)]
    joined = behind_switch(part, max(each.component.probability for each in behind), features.topology)
    found: list[Component] = []
    for each in suspects:
        component = joined if each in links else each.component
        if component not in found:
            found.append(component)
    return found


def behind_switch(part: SharedPart, probability: float, topology: Topology) -> Component:
    """The component of all ranks behind a part between nodes: whole nodes, or single ranks of them."""
    ranks = np.array(part.ranks)
    whole = np.isin(topology.node, topology.node[ranks]).sum() == ranks.size
    return Component("node" if whole else "rank", part.ranks, probability)


def carrying(ranks: Sequence[int], cause: str | None, features: FeatureSet) -> SharedPart | None:
    """The part that slow ranks share, and that their cause is a fault of; None if there is none.

    Parameters
    ----------
    ranks : sequence of int
        Of a straggler or cause.
    """
    slow = frozenset(ranks)
    carriers = [part for part in features.topology.parts if cause in CARRIED[part.level]]
    fitting = [part for part in carriers if _is_shared(part, slow, features)]
    # The smallest one: a switch may be below another.
    return min(fitting, key=lambda part: len(part.ranks), default=None)


def is_between_nodes(component: Component, topology: Topology) -> bool:
    """Whether the ranks are exactly those behind one leaf switch or rail."""
    return any(part.ranks == component.ranks for part in _between_nodes(topology))


def _is_shared(part: SharedPart, slow: frozenset[int], features: FeatureSet) -> bool:
    members = frozenset(part.ranks)
    if part.level in BETWEEN_NODES:
        return members == slow and _n_nodes(part, features.topology) > 1
    if part.level == "nic":
        return members <= slow and (members == slow or _is_loudest_port(part, slow, features))
    return slow <= members and len(slow) > max(1.0, MAJORITY * len(members))


def _is_loudest_port(part: SharedPart, slow: frozenset[int], features: FeatureSet) -> bool:
    """Whether the adapter is crowded, and the other adapters of the slow ranks are quiet."""
    return features.ports is not None and _contrast(features.ports, part, np.array(sorted(slow))) > 0


def _between_nodes(topology: Topology) -> list[SharedPart]:
    """Leaf switches and rails of two nodes or more, the smallest first; of equal ones the leaf switch."""
    parts = [part for part in topology.parts if part.level in BETWEEN_NODES and _n_nodes(part, topology) > 1]
    return sorted(parts, key=lambda part: (len(part.ranks), part.level != "leaf_switch", part.ranks))


def _n_nodes(part: SharedPart, topology: Topology) -> int:
    nodes = topology.node[list(part.ranks)]
    return int(np.unique(nodes[nodes >= 0]).size)


def _contrast(ports: PortEvidence, part: SharedPart, among: IntArray) -> float:
    """How crowded the quietest port of a part is, in units, if all other ports are far quieter; else 0.

    Parameters
    ----------
    among : ndarray of int, shape (n_compared,)
        Ranks whose ports are compared, with those behind the part.
    """
    inside = np.isin(among, part.ranks)
    found = 0.0
    for scores, least in _port_scores(ports, among, inside):
        quietest, loudest_other = scores[inside].min(), scores[~inside].max(initial=-np.inf)
        if quietest >= least and loudest_other < QUIET * quietest:
            found = max(found, float(quietest))
    return found


def _port_scores(
    ports: PortEvidence, among: IntArray, inside: BoolArray
) -> Iterator[tuple[FloatArray, float]]:
    """Scores of the ports of ranks `among`, and the least one of a crowded port.

    Against the past, and, unless most ports became worse, by channel against the usual port that is not
    `inside`. If most became worse, the past says more than how ports compare: racks may always differ.
    """
    for resource in PORT_RESOURCES:
        past = ports.past[resource]
        if np.isfinite(past[among]).all():
            yield past[among], CROWDED_VS_PAST
        if np.median(np.nan_to_num(past)) >= CROWDED_VS_PAST:
            continue
        for channel, values in ports.channels[resource]:
            if np.isfinite(values[among]).all() and not inside.all():
                usual = np.full(among.size, np.median(values[among][~inside]))
                yield compare(channel, values[among], usual), CROWDED_VS_USUAL


def _shared_by(links: Sequence[ComponentCause], features: FeatureSet) -> SharedPart | None:
    """The leaf switch or rail that explains suspect links."""
    topology = features.topology
    slow = {rank for each in links for rank in each.component.ranks}
    part = crowded_switch(features)
    if part is not None:
        behind = topology.node[sorted(slow & set(part.ranks))]
        return part if np.unique(behind).size > 1 else None
    columns = [resource_names().index(name) for name in PORT_RESOURCES]
    if np.isfinite(features.evidence.versus_peers[:, columns]).any():
        return None
    nodes = set(np.unique(topology.node[sorted(slow)]).tolist()) if slow else set()
    for each in _between_nodes(topology):
        if each.level == "leaf_switch" and set(topology.node[list(each.ranks)].tolist()) == nodes:
            return each
    return None


def reaching(
    component: Component, causes: dict[str, float], features: FeatureSet
) -> tuple[Component, dict[str, float]]:
    """The component and the probabilities of its causes, made consistent with each other.

    By the catalogue one node's link fault is `nic_degradation`, that of many nodes `network_congestion`.
    The rank models see one rank at a time and cannot separate the two.

    Returns
    -------
    component : Component
        Narrowed to the crowded nodes if the whole job was suspected of a congestion that reaches only some.
    causes : dict of str to float
        In no particular order.
    """
    evidence, topology = features.evidence, features.topology
    if component.scope != "job":
        if is_between_nodes(component, topology):
            return component, without_single_node_link(causes)
        alone = isolated_link_fault(Ports.from_features(features), topology)
        if alone is None or not set(component.ranks) <= set(alone.component.ranks):
            return component, causes
        return component, of_one_node(causes, alone.cause)
    if len(topology.node_names) == 1:
        return component, causes
    causes = without_single_node_link(causes)
    likeliest = max(causes, key=lambda name: causes[name])
    # Without transfer times the cost is part of every rank's own time, so all ranks have to be priced.
    if likeliest == CONGESTION and np.isfinite(features.work.transfer).any():
        part = crowded_switch(features)
        if part is not None:
            return behind_switch(part, component.probability, topology), causes
        ranks = crowded_part(evidence, topology)
        component = replace(component, scope="node", ranks=ranks) if ranks else component
    return component, causes


def without_single_node_link(causes: dict[str, float]) -> dict[str, float]:
    """Probabilities given that no node is an outlier: a single node's link is ruled out."""
    return causes | {CONGESTION: causes.get(CONGESTION, 0.0) + causes.get(NIC, 0.0), NIC: 0.0}


def of_one_node(causes: dict[str, float], link: str) -> dict[str, float]:
    """Probabilities given that only this link of one node is faulty: congestion is ruled out.

    Where the links inside the node are faulty, its port is ruled out as well.
    """
    others = [CONGESTION, NIC] if link == NVLINK else [CONGESTION]
    total = sum(causes.get(name, 0.0) for name in (*others, link))
    return causes | dict.fromkeys(others, 0.0) | {link: total}


def crowded_part(evidence: ResourceEvidence, topology: Topology) -> tuple[int, ...]:
    """Ranks on nodes with crowded ports while all other ports are quiet, as behind one switch of several.

    Collectives slow all ranks alike, so only the ports' counters show which nodes the congestion reaches.

    Returns
    -------
    tuple of int
        Empty where the ports do not fall into two such groups, or only one port is crowded.
    """
    for resource in ("fabric", "nic"):
        column = resource_names().index(resource)
        scores = of_nodes(evidence.versus_past[:, column], topology)
        least = CROWDED_VS_PAST
        if not np.isfinite(scores).any():
            # Where most ports are crowded, the peers' median is crowded too: the quietest port is the zero.
            versus_peers = of_nodes(evidence.versus_peers[:, column], topology)
            scores, least = versus_peers - versus_peers.min(initial=np.inf), CROWDED_VS_QUIETEST
        crowded = _apart(scores, least)
        ranks = np.flatnonzero(np.isin(topology.node, crowded))
        if crowded.size > 1 and _all_measured(resource, ranks, evidence):
            return tuple(ranks.tolist())
        if (scores >= least).all():
            return ()
    return ()


def _apart(scores: FloatArray, least: float) -> IntArray:
    """Indices above the widest gap, if all scores are known, those reach `least`, and the others far less."""
    none = np.zeros(0, dtype=np.int64)
    if scores.size < 3 or not np.isfinite(scores).all():
        return none
    order = np.argsort(-scores, kind="stable")
    falling = scores[order]
    last = int(np.argmax(falling[:-1] - falling[1:]))
    clear = falling[last] >= least and falling[last + 1] < ALONE * falling[last]
    return np.asarray(order[: last + 1]) if clear else none


def _all_measured(resource: str, crowded: IntArray, evidence: ResourceEvidence) -> bool:
    """Whether all ranks have the channel by which some are crowded: absent is not quiet."""
    best = evidence.worst_channel[crowded, resource_names().index(resource)]
    channel = RESOURCES[resource][int(np.bincount(best[best >= 0]).argmax())].channel
    return bool(np.isfinite(evidence.values[channel]).all())
