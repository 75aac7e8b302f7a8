"""Signals of single ports: which network adapters of a node show queues, losses or congestion.

A node's evidence joins its ports. Where the job names the adapter of each rank, the same channels are scored
for every adapter alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.resource_evidence import RESOURCES, Channel, ResourceEvidence, compare, resource_names
from rca.robust import nan_max
from rca.window.job import Job, Topology
from rca.window.node_names import same_nodes
from rca.window.signals.placement import NODE, Placement
from rca.window.signals.series import SeriesSet, rows_feeding
from rca.window.signals.signal_arrays import PlacedSeries
from rca.window.window import Window

#: Resources that belong to a port.
PORT_RESOURCES = ("fabric", "nic")
_CHANNELS = frozenset(each.channel for name in PORT_RESOURCES for each in RESOURCES[name])


@dataclass(frozen=True)
class PortEvidence:
    """Signals of every rank's port, or of all ports of its node.

    Attributes
    ----------
    past : mapping of resource to ndarray of shape (n_ranks,), units
        Highest score of a channel in the slow segment against the other steps; NaN where unknown.
    channels : mapping of resource to tuple of (Channel, ndarray of shape (n_ranks,))
        Means in the slow segment, in the channel's unit.
    """

    past: Mapping[str, FloatArray]
    channels: Mapping[str, tuple[tuple[Channel, FloatArray], ...]]

    @classmethod
    def of_nodes(cls, evidence: ResourceEvidence) -> PortEvidence:
        """The evidence of nodes, all ports of a node together."""
        return cls(
            {name: evidence.versus_past[:, resource_names().index(name)] for name in PORT_RESOURCES},
            {
                name: tuple(
                    (each, evidence.values[each.channel])
                    for each in RESOURCES[name]
                    if each.channel in evidence.values
                )
                for name in PORT_RESOURCES
            },
        )

    @classmethod
    def from_window(cls, window: Window, edges: FloatArray, inside: BoolArray) -> PortEvidence | None:
        """The signals of single ports; None where the job names no adapter, or no port is measured.

        Parameters
        ----------
        edges : ndarray of shape (n_bins + 1,), Unix seconds
        inside : ndarray of shape (n_bins,), bool
            Bins of the slow segment.
        """
        ports = _port_topology(window.job)
        if ports is None:
            return None
        series = SeriesSet.from_window(replace(window, metrics=rows_feeding(window.metrics, _CHANNELS)))
        if series.n_series == 0:
            return None
        owner = _port_of_series(series, window.job, ports)
        placement = Placement(np.full(series.n_series, NODE), owner, ports.node)
        measured = PlacedSeries(series, placement).over(edges)
        if not measured.values:
            return None
        within, without = measured.means(inside), measured.means(~inside)
        # Floors are those of a node: each of its ports has a part of the traffic.
        per_node = len(ports.node_names) / max(len(window.job.topology.node_names), 1)
        scaled = {
            name: [
                replace(each, floor=each.floor / per_node)
                for each in RESOURCES[name]
                if each.channel in within
            ]
            for name in PORT_RESOURCES
        }
        unknown = np.full((1, window.job.world_size), np.nan)
        past = {
            name: nan_max(
                np.vstack(
                    [unknown, *(compare(each, within[each.channel], without[each.channel]) for each in held)]
                )
            )
            for name, held in scaled.items()
        }
        channels = {
            name: tuple((each, within[each.channel]) for each in held) for name, held in scaled.items()
        }
        return cls(past, channels)


def _port_topology(job: Job) -> Topology | None:
    """The job's topology with adapters as nodes; None if no rank names an adapter and its node."""
    names: dict[str, int] = {}
    port = np.full(job.world_size, -1)
    for place in job.ranks or ():
        if place.nic is not None and place.node is not None:
            port[place.rank] = names.setdefault(_key(place.node, place.nic), len(names))
    return replace(job.topology, node=port, node_names=tuple(names)) if names else None


def _key(node: str, device: str) -> str:
    return f"{node}\n{device}"


def _port_of_series(series: SeriesSet, job: Job, ports: Topology) -> IntArray:
    """Index of the adapter that each series is about, -1 where there is none; shape (n_series,).

    Exporters write the port behind the adapter: ``mlx5_0/1``.
    """
    nodes = job.topology.node_names
    node_of = np.append(same_nodes(series.node_names, nodes), -1)[series.node]
    number = {name: index for index, name in enumerate(ports.node_names)}
    devices = [name.split("/")[0] for name in series.device_names]
    return np.array(
        [
            number.get(_key(nodes[node], devices[device]), -1) if node >= 0 and device >= 0 else -1
            for node, device in zip(node_of.tolist(), series.device.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
