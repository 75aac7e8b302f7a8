"""How far a link fault reaches: a port, the fabric of all, or what is behind one of its switches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.classify.components import Component
from rca.classify.link_evidence import ALONE, NIC, NVLINK, Ports, isolated_link_fault, of_nodes
from rca.features import FeatureSet
from rca.features.resource_evidence import RESOURCES, Evidence, resource_names
from rca.telemetry.job import Topology

CONGESTION = "network_congestion"
#: Ports of a crowded part show at least this much, in units: more than before, or than the quietest port.
CROWDED_SINCE, CROWDED_BESIDE = 0.5, 1.5


def reaching(
    component: Component, causes: dict[str, float], features: FeatureSet
) -> tuple[Component, dict[str, float]]:
    """The component and the beliefs in its causes after each has limited the other.

    By the catalogue one node's link is `nic_degradation` and many nodes' is `network_congestion`; the rank
    models, who see one rank at a time, cannot tell.

    Parameters
    ----------
    component : Component
    causes : dict of str to float
    features : FeatureSet

    Returns
    -------
    component : Component
        Narrowed to the crowded nodes if everybody was suspected of a congestion that reaches only some.
    causes : dict of str to float
        In no particular order.
    """
    evidence, topology = features.evidence, features.topology
    if component.scope != "job":
        alone = isolated_link_fault(Ports.from_features(features), topology)
        if alone is None or not set(component.ranks) <= set(alone.component.ranks):
            return component, causes
        return component, of_one_node(causes, alone.cause)
    if len(topology.node_names) == 1:
        return component, causes
    causes = without_single_node_link(causes)
    likeliest = max(causes, key=lambda name: causes[name])
    # Where nobody timed the transfer its cost lies in everybody's own time, and all have to be priced.
    if likeliest == CONGESTION and np.isfinite(features.work.transfer).any():
        ranks = crowded_part(evidence, topology)
        component = replace(component, scope="node", ranks=ranks) if ranks else component
    return component, causes


def without_single_node_link(causes: dict[str, float]) -> dict[str, float]:
    """Beliefs given that no node stands out: then it is no single node's link."""
    return causes | {CONGESTION: causes.get(CONGESTION, 0.0) + causes.get(NIC, 0.0), NIC: 0.0}


def of_one_node(causes: dict[str, float], link: str) -> dict[str, float]:
    """Beliefs given that this link of one node of several stands alone: then it is not what all share.

    A port that nothing sets apart is not it either where links inside the node do.
    """
    others = [CONGESTION, NIC] if link == NVLINK else [CONGESTION]
    moved = sum(causes.get(name, 0.0) for name in (*others, link))
    return causes | dict.fromkeys(others, 0.0) | {link: moved}


def crowded_part(evidence: Evidence, topology: Topology) -> tuple[int, ...]:
    """Ranks on the nodes whose ports are crowded while all others are quiet, as behind one switch of several.

    Collectives make everybody slow alike, so only the ports' own counters tell whom the congestion reaches.

    Returns
    -------
    tuple of int
        Empty where the ports do not fall into two such groups, or one port stands alone.
    """
    for resource in ("fabric", "nic"):
        column = resource_names().index(resource)
        scores = of_nodes(evidence.versus_past[:, column], topology)
        least = CROWDED_SINCE
        if not np.isfinite(scores).any():
            # Where most are crowded, so is what peers are compared with: the quietest is the zero.
            beside = of_nodes(evidence.versus_peers[:, column], topology)
            scores, least = beside - beside.min(initial=np.inf), CROWDED_BESIDE
        crowded = _apart(scores, least)
        ranks = np.flatnonzero(np.isin(topology.node, crowded))
        if crowded.size > 1 and _all_measured(resource, ranks, evidence):
            return tuple(ranks.tolist())
        if (scores >= least).all():
            return ()
    return ()


def _apart(scores: FloatArray, least: float) -> IntArray:
    """Indices above the widest gap, if all are known, those reach `least`, and the others far less."""
    nobody = np.zeros(0, dtype=np.int64)
    if scores.size < 3 or not np.isfinite(scores).all():
        return nobody
    order = np.argsort(-scores, kind="stable")
    falling = scores[order]
    last = int(np.argmax(falling[:-1] - falling[1:]))
    clear = falling[last] >= least and falling[last + 1] < ALONE * falling[last]
    return np.asarray(order[: last + 1]) if clear else nobody


def _all_measured(resource: str, crowded: IntArray, evidence: Evidence) -> bool:
    """Whether the quiet ranks have the channel, too, by which the others are crowded: absent is not quiet."""
    best = evidence.worst_channel[crowded, resource_names().index(resource)]
    channel = RESOURCES[resource][int(np.bincount(best[best >= 0]).argmax())].channel
    return bool(np.isfinite(evidence.values[channel]).all())
