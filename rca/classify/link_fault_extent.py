"""How far a link fault reaches: one port, the whole fabric, or the nodes behind one switch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.classify.components import Component
from rca.classify.link_evidence import ALONE, NIC, NVLINK, Ports, isolated_link_fault, of_nodes
from rca.classify.shared_parts import (
    CONGESTION,
    behind_switch,
    crowded_switch,
    is_between_nodes,
)
from rca.features import FeatureSet
from rca.features.resource_evidence import RESOURCES, Evidence, resource_names
from rca.telemetry.job import Topology

#: Least score of a crowded port, in units: against its past, or against the quietest port.
CROWDED_VS_PAST, CROWDED_VS_QUIETEST = 0.5, 1.5


def reaching(
    component: Component, causes: dict[str, float], features: FeatureSet
) -> tuple[Component, dict[str, float]]:
    """The component and the probabilities of its causes, made consistent with each other.

    By the catalogue one node's link fault is `nic_degradation`, that of many nodes `network_congestion`.
    The rank models see one rank at a time and cannot separate the two.

    Parameters
    ----------
    component : Component
    causes : dict of str to float
    features : FeatureSet

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


def crowded_part(evidence: Evidence, topology: Topology) -> tuple[int, ...]:
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


def _all_measured(resource: str, crowded: IntArray, evidence: Evidence) -> bool:
    """Whether all ranks have the channel by which some are crowded: absent is not quiet."""
    best = evidence.worst_channel[crowded, resource_names().index(resource)]
    channel = RESOURCES[resource][int(np.bincount(best[best >= 0]).argmax())].channel
    return bool(np.isfinite(evidence.values[channel]).all())
