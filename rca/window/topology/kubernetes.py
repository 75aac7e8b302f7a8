"""Labels of Kubernetes nodes: the leaf switch of each node, from ``kubectl get nodes -o json``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeGuard

from rca.errors import InvalidInput, cut
from rca.window.names import flaw_of
from rca.window.topology.hardware import Facts, HardwarePlace, HardwareTopology

#: Labels with the switch that a node is connected to, the most certain first: NVIDIA Topograph (its current
#: name and the two before), AWS (the highest layer is the nearest to the instance), Google Cloud (a sub-block
#: is a rack), Oracle Cloud (rack).
LEAF_LABELS = (
    "fabric.topograph.run/tier-0",
    "network.topology.nvidia.com/leaf",
    "network.topology.nvidia.com/block",
    "topology.k8s.aws/network-node-layer-4",
    "topology.k8s.aws/network-node-layer-3",
    "cloud.google.com/gce-topology-subblock",
    "oci.oraclecloud.com/host.rack_id",
)
#: Labels that name a place with many switches: they do not say what is shared.
_TOO_WIDE = re.compile(r"topology\.kubernetes\.io/(zone|region)|network-node-layer-[12]|gce-topology-block")
_HOSTNAME = "kubernetes.io/hostname"


def is_node_list(document: object) -> TypeGuard[Mapping[str, object]]:
    """Whether a document is a Kubernetes node, or a list of nodes."""
    if not isinstance(document, dict):
        return False
    items = document.get("items") if "items" in document else [document]
    kinds = (
        {each.get("kind") for each in items if isinstance(each, dict)} if isinstance(items, list) else set()
    )
    return kinds == {"Node"} or document.get("kind") == "NodeList"


def leaf_of(labels: Mapping[str, object]) -> str | None:
    """The leaf switch in a node's labels; None if they name none."""
    names = (labels.get(label) for label in LEAF_LABELS)
    return next((name for name in names if isinstance(name, str) and flaw_of(name) is None), None)


def read_node_list(document: Mapping[str, object], source: str) -> HardwareTopology:
    """Leaf switch of each labelled node. Nodes without such a label stay unknown.

    Raises
    ------
    InvalidInput
        If no node has a label that names its leaf switch.
    """
    items = document.get("items") if "items" in document else [document]
    facts = Facts(source)
    seen: set[str] = set()
    found = 0
    for item in items if isinstance(items, list) else []:
        metadata = item.get("metadata") if isinstance(item, dict) else None
        labels = metadata.get("labels") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not isinstance(labels, dict):
            continue
        seen |= {str(label) for label in labels if _TOO_WIDE.search(str(label))}
        leaf = leaf_of(labels)
        if leaf is None:
            continue
        found += 1
        for name in {metadata.get("name"), labels.get(_HOSTNAME)}:
            if isinstance(name, str) and flaw_of(name) is None:
                facts.add(HardwarePlace(name), "leaf_switch", leaf)
    if not found:
        wide = f"; {cut(', '.join(sorted(seen)), 200)} name places with many switches" if seen else ""
        raise InvalidInput(
            f"{source}: no node has a label with its leaf switch{wide}",
            hint=f"one of {', '.join(LEAF_LABELS)}",
        )
    return facts.topology()
