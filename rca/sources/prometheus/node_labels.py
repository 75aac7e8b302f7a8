"""Hardware of a job's ranks: PCI addresses of devices, and leaf switches by labels of Kubernetes nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.job_devices import JobDevices
from rca.sources.prometheus.kubernetes import PREFIXES, label_name
from rca.sources.prometheus.promql import chunks, matcher, regex, selector
from rca.sources.prometheus.rank_places import DeviceNames, RankPlaces
from rca.window.node_names import same_nodes
from rca.window.topology.hardware import canonical_address
from rca.window.topology.kubernetes import LEAF_LABELS, leaf_of

#: Metric of kube-state-metrics. It has labels only if ``--metric-labels-allowlist=nodes=[*]`` allows them.
KUBE_NODE_LABELS = "kube_node_labels"
#: Label of DCGM's exporter.
_PCI_ADDRESS = "pci_bus_id"


def with_hardware(
    places: RankPlaces,
    found: JobDevices,
    devices: DeviceNames,
    server: Prometheus,
    matchers: Sequence[str],
    start: float,
    end: float,
) -> RankPlaces:
    """The places with PCI addresses and, in Kubernetes, leaf switches, as far as labels name them.

    Parameters
    ----------
    matchers : sequence of str
        Matchers that every series has to meet.
    start, end : float, Unix seconds
    """
    addresses: dict[int, str] = {}
    for labels in found.series:
        device = devices.of(labels)
        rank = None if device is None else places.ranks.get(device)
        if rank is not None and labels.get(_PCI_ADDRESS):
            addresses.setdefault(rank, canonical_address(labels[_PCI_ADDRESS]))
    nodes = sorted({place.node for place in places.places if place.node is not None})
    leaves = _leaves(nodes, server, matchers, start, end) if found.pods else {}
    if not addresses and not leaves:
        return places
    return replace(
        places,
        places=tuple(
            place.model_copy(
                update={
                    "pci_address": addresses.get(place.rank),
                    "leaf_switch": leaves.get(place.node or ""),
                }
            )
            for place in places.places
        ),
    )


def _leaves(
    nodes: Sequence[str], server: Prometheus, matchers: Sequence[str], start: float, end: float
) -> dict[str, str]:
    """Leaf switch of each machine whose node has a label with it."""
    named = matcher("__name__", [KUBE_NODE_LABELS])
    asked = [
        selector(named, *matchers, regex(PREFIXES[0] + label_name(label), ".+")) for label in LEAF_LABELS
    ]
    series = [labels for part in chunks(asked) for labels in server.series(part, start, end)]
    names = [labels.get("node", "") for labels in series]
    found: dict[str, str] = {}
    for labels, index in zip(series, same_nodes(names, nodes).tolist(), strict=True):
        leaf = leaf_of(_written(labels))
        if index >= 0 and leaf is not None:
            found.setdefault(nodes[index], leaf)
    return found


def _written(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels of a node by their names in Kubernetes."""
    exported = {label: PREFIXES[0] + label_name(label) for label in LEAF_LABELS}
    return {label: labels[name] for label, name in exported.items() if labels.get(name)}
