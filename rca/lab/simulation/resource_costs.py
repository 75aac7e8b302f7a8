"""From resources to seconds: launch gaps and stalls of hosts, batches of loaders, transfers over links.

The batch queue of the replay decides which part of a loader's time ranks wait for. Links are those inside
nodes, NICs, the PCIe switches that both use, and the fabric.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.lab.simulation.compute_work import inputs_over_time
from rca.lab.simulation.noise import Noise
from rca.lab.simulation.resources import Resources
from rca.lab.simulation.scenario import SimulationScenario

BETWEEN = "between steps"
HOST_PHASES = ("data_loading", "host_to_device", "forward", "backward", "optimizer", BETWEEN)
# Share of garbage collector pauses per phase: they fall where Python code runs. In a GPU job native code
# dispatches the backward, so pauses fall into the forward and around it. Planned collections run between
# steps, where no phase is timed.
GC_SHARES_TESTBED = (0.4, 0.12, 0.16, 0.12, 0.15, 0.05)
GC_SHARES_GPU = (0.1, 0.03, 0.72, 0.0, 0.1, 0.05)
GC_SHARES_CALLED = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
# Share of single host stalls per phase: most fall where the host launches kernels one by one.
STALL_SHARES = (0.07, 0.12, 0.49, 0.2, 0.07, 0.05)
# Share of launch gaps per phase.
GAP_SHARES_TESTBED = {
    "data_loading": 0.04, "host_to_device": 0.04, "forward": 0.38, "backward": 0.46, "optimizer": 0.08
}  # fmt: skip
GAP_SHARES_GPU = {
    "data_loading": 0.02, "host_to_device": 0.03, "forward": 0.6, "backward": 0.15, "optimizer": 0.2
}  # fmt: skip


def launch_gap_ratio(scenario: SimulationScenario, resources: Resources) -> FloatArray:
    """Launch time added by run-queue waiting, in units of the unhindered launch time, (n_ranks, n_steps).

    A host that waits a share ``w`` of its runnable time needs ``1 / (1 - w)`` as long.
    """
    calm = 1 / (1 - scenario.workload.run_queue_share)
    return np.maximum(1 / (1 - np.minimum(resources.run_queue, 0.95)) - calm, 0.0)


def launch_gaps(
    scenario: SimulationScenario, resources: Resources, noise: FloatArray
) -> dict[str, FloatArray]:
    """Seconds of launch gaps by phase, each (n_ranks, n_steps).

    Parameters
    ----------
    noise : ndarray of shape (5, n_ranks, n_steps) or (1, 1, 1)
        Factors by phase: each launch waits by itself.
    """
    gap = scenario.workload.launch_seconds * launch_gap_ratio(scenario, resources)
    return {
        phase: share * gap * noise[index % noise.shape[0]]
        for index, (phase, share) in enumerate(_gap_shares(scenario).items())
    }


def _gap_shares(scenario: SimulationScenario) -> dict[str, float]:
    shares = GAP_SHARES_TESTBED if scenario.dialect == "cpu_testbed" else GAP_SHARES_GPU
    backward = scenario.workload.backward_gap_share
    if backward is None:
        return shares
    rest = (1 - backward) / (1 - shares["backward"])
    return {phase: backward if phase == "backward" else rest * share for phase, share in shares.items()}


def collector_pauses(
    scenario: SimulationScenario, resources: Resources, draw: FloatArray
) -> dict[str, FloatArray]:
    """Seconds of collector pauses by phase, each (n_ranks, n_steps); a step's pause falls into one phase."""
    shares = GC_SHARES_TESTBED if scenario.dialect == "cpu_testbed" else GC_SHARES_GPU
    if scenario.workload.calls_collector:
        shares = GC_SHARES_CALLED
    return _into_phases(resources.gc, shares, draw)


def host_stalls(scenario: SimulationScenario, seconds: FloatArray, draw: FloatArray) -> dict[str, FloatArray]:
    """Seconds of host stalls by phase, each (n_ranks, n_steps).

    The backward needs little of the host, so fewer stalls delay it.
    """
    backward = scenario.benign.hiccup_backward
    rest = (1 - backward) / (1 - STALL_SHARES[3])
    shares = tuple(backward if index == 3 else rest * share for index, share in enumerate(STALL_SHARES))
    return _into_phases(seconds, shares, draw)


def _into_phases(seconds: FloatArray, shares: tuple[float, ...], draw: FloatArray) -> dict[str, FloatArray]:
    if not seconds.any():
        return {}
    chosen = np.searchsorted(np.cumsum(shares)[:-1], draw, side="right")
    return {phase: seconds * (chosen == index) for index, phase in enumerate(HOST_PHASES)}


def batch_seconds(scenario: SimulationScenario) -> float:
    """Seconds of a healthy batch with one worker; without prefetching the rank waits for all of it."""
    load = scenario.workload
    if load.prefetch_steps == 0:
        return load.data_loading_seconds
    return load.loader_share * load.loader_workers * scenario.expected_step_seconds


def late_batch_seconds(scenario: SimulationScenario, wait: FloatArray) -> FloatArray:
    """Seconds per batch at which every step waits `wait` seconds once the queue is empty."""
    load = scenario.workload
    if load.prefetch_steps == 0:
        return wait + batch_seconds(scenario)
    return load.loader_workers * (scenario.expected_step_seconds + wait)


def lone_batch_seconds(scenario: SimulationScenario, wait: FloatArray) -> FloatArray:
    """Seconds of a single late batch at which its step waits `wait` seconds; the queue covers the rest."""
    load = scenario.workload
    return np.maximum(
        wait + load.prefetch_steps * scenario.expected_step_seconds, wait + batch_seconds(scenario)
    )


def read_seconds(scenario: SimulationScenario) -> float:
    """Seconds of a healthy batch that reading takes."""
    return scenario.workload.read_share * batch_seconds(scenario)


def service_seconds(scenario: SimulationScenario, resources: Resources, noise: Noise) -> FloatArray:
    """Time a loader worker needs for each step's batch, shape (n_ranks, n_steps), seconds.

    A worker makes a batch `prefetch_steps` steps before its use, with the resources of that step.
    """
    made_at = np.maximum(np.arange(scenario.n_steps) - scenario.workload.prefetch_steps, 0)
    node_of = np.arange(scenario.world_size) // scenario.ranks_per_node
    whole, read = batch_seconds(scenario) * inputs_over_time(scenario), read_seconds(scenario)
    slower = (resources.read_stretch - 1)[node_of]
    usual = noise.loading if scenario.workload.prefetch_steps == 0 else noise.batch
    return np.asarray(usual * whole + (read * slower * noise.batch + resources.batch_extra)[:, made_at])


def taking_seconds(scenario: SimulationScenario, noise: Noise) -> FloatArray:
    """Time to take a loaded batch, shape (n_ranks, n_steps), seconds."""
    if scenario.workload.prefetch_steps == 0:
        return np.zeros(noise.loading.shape)
    return scenario.workload.data_loading_seconds * inputs_over_time(scenario) * noise.loading


def nic_factor(scenario: SimulationScenario, resources: Resources) -> FloatArray:
    """Factor on a node's transfers from its port or from a narrow switch link, (n_nodes, n_steps).

    A rank's NIC traffic fills ``switch_share`` of a full link. A link that is narrower by more than the
    inverse is the bottleneck. A ring moves at the pace of the node's slowest rank.
    """
    share = scenario.fleet.switch_share
    if share == 0:
        return resources.nic_stretch
    first = np.arange(0, scenario.world_size, scenario.ranks_per_node)
    narrowest = np.maximum.reduceat(resources.copy_stretch, first, axis=0)
    return np.asarray(np.maximum(resources.nic_stretch, share * narrowest))


def exchange_seconds(
    scenario: SimulationScenario, resources: Resources, noise: Noise
) -> tuple[FloatArray, FloatArray]:
    """Seconds each rank exchanges gradients, and gathers parameters, both (n_ranks, n_steps).

    A ring moves at the pace of its slowest member, whose own transfer sometimes ends even later.
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
    between = np.where(spans, group_max(outside * resources.ring_stretch), group_max(inside))
    share = load.intra_node_share
    factor = (1 - share) * between * group_max(coupling) + share * inside * coupling
    factor = factor + load.own_coupling * crowded + load.own_port * np.where(spans, outside - 1, 0.0)
    factor = factor + (1 - share) * np.where(spans, resources.adapter_stretch - 1, 0.0)
    seconds = load.transfer_seconds * noise.transfer_rank * factor
    gathered = load.gather_share
    return seconds * (1 - gathered) * noise.transfer, seconds * gathered * noise.gather


def stage_link_seconds(scenario: SimulationScenario, resources: Resources) -> FloatArray:
    """Seconds of a transfer from stage ``p`` to the next (modulo the stages), (n_steps, n_stages, n_data)."""
    sizes = scenario.parallelism
    first = np.arange(0, scenario.world_size, sizes.tensor).reshape(sizes.pipeline, scenario.replicas)
    here = first // scenario.ranks_per_node
    there = np.roll(here, -1, axis=0)
    outside, inside = nic_factor(scenario, resources), np.maximum(resources.nvlink_stretch, 1.0)
    apart = (here != there)[..., None]
    adapter = (resources.ring_stretch + resources.adapter_stretch - 1)[first]
    crossing = np.maximum(adapter, np.roll(adapter, -1, axis=0))
    factor = np.where(apart, np.maximum(outside[here], outside[there]) * crossing, inside[here])
    return np.asarray(scenario.workload.p2p_seconds * factor.transpose(2, 0, 1))
