"""Bandwidth between GPUs: links inside nodes, NICs, the PCIe switches both hang on, and the fabric."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.simulation.host import launch_gap_ratio
from rca.simulation.noise import Noise
from rca.simulation.resources import Resources
from rca.simulation.scenario import Scenario


def nic_factor(scenario: Scenario, resources: Resources) -> FloatArray:
    """How much longer a node's port takes, (n_nodes, n_steps): its own state, or a switch too narrow for it.

    A rank's NIC traffic fills ``switch_share`` of a whole link; one that is narrower by more than the inverse
    is the bottleneck, and a ring moves at the pace of the node's slowest rank.
    """
    share = scenario.fleet.switch_share
    if share == 0:
        return resources.nic_stretch
    first = np.arange(0, scenario.world_size, scenario.ranks_per_node)
    narrowest = np.maximum.reduceat(resources.copy_stretch, first, axis=0)
    return np.asarray(np.maximum(resources.nic_stretch, share * narrowest))


def exchange_seconds(scenario: Scenario, resources: Resources, noise: Noise) -> tuple[FloatArray, FloatArray]:
    """Seconds each rank exchanges gradients, and gathers parameters, both (n_ranks, n_steps).

    A ring moves at the pace of its slowest member; that one's own end of it is sometimes later still.
    """
    load, sizes = scenario.workload, scenario.parallelism
    node_of = np.arange(scenario.world_size) // scenario.ranks_per_node
    crowded = launch_gap_ratio(scenario, resources)
    coupling = 1 + load.host_coupling * crowded
    inside = np.maximum(resources.nvlink_stretch[node_of], 1.0)
    grid = (sizes.pipeline, scenario.replicas, sizes.tensor, scenario.n_steps)

    def group_max(values: FloatArray) -> FloatArray:
        slowest = values.reshape(grid).max(axis=1, keepdims=True)
        return np.broadcast_to(slowest, grid).reshape(values.shape)

    nodes = np.broadcast_to(node_of[:, None], (scenario.world_size, scenario.n_steps)).astype(np.float64)
    spans = group_max(nodes) > -group_max(-nodes)
    outside = nic_factor(scenario, resources)[node_of]
    between = np.where(spans, group_max(outside), group_max(inside))
    share = load.intra_node_share
    factor = (1 - share) * between * group_max(coupling) + share * inside * coupling
    factor = factor + load.own_coupling * crowded + load.own_port * np.where(spans, outside - 1, 0.0)
    seconds = load.transfer_seconds * noise.transfer_rank * factor
    gathered = load.gather_share
    return seconds * (1 - gathered) * noise.transfer, seconds * gathered * noise.gather


def stage_link_seconds(scenario: Scenario, resources: Resources) -> FloatArray:
    """Seconds from stage ``p`` to the next (modulo the stages), (n_steps, n_stages, n_data)."""
    sizes = scenario.parallelism
    first = np.arange(0, scenario.world_size, sizes.tensor).reshape(sizes.pipeline, scenario.replicas)
    here = first // scenario.ranks_per_node
    there = np.roll(here, -1, axis=0)
    outside, inside = nic_factor(scenario, resources), np.maximum(resources.nvlink_stretch, 1.0)
    apart = (here != there)[..., None]
    factor = np.where(apart, np.maximum(outside[here], outside[there]), inside[here])
    return np.asarray(scenario.workload.p2p_seconds * factor.transpose(2, 0, 1))
