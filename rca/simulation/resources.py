"""What ranks and nodes have to work with at each step; faults act here and nowhere else.

Everything downstream follows: the timing kernel turns resources into phases, the exporters into counters,
so a fault's symptoms agree with each other without being written down one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from rca.arrays import FloatArray
from rca.simulation.compute_work import spread_for
from rca.simulation.scenario import Scenario

# Position in the order of work: data loading, copy, forward, backward, then the collective.
COLLECTIVE = 4
StopKind = Literal["crash", "hang"]

# Resources that are one when healthy; the others are zero.
FACTORS = frozenset(
    {
        "compute_stretch",
        "launch_stretch",
        "clock",
        "clock_ceiling",
        "power_limit",
        "cooling",
        "copy_stretch",
        "nic_stretch",
        "nvlink_stretch",
        "read_stretch",
    }
)
OF_NODES = frozenset(
    {
        "nic_stretch",
        "nvlink_stretch",
        "nic_queue",
        "nic_delay",
        "nic_loss",
        "nic_errors",
        "congestion",
        "foreign_cpu",
        "memory_stall",
        "disk_stall",
        "remote_stall",
        "read_stretch",
    }
)


@dataclass
class Stop:
    """Where the job stops: one rank, in one phase of one step."""

    kind: StopKind
    ranks: tuple[int, ...]
    step: int
    phase: int
    variant: str


@dataclass
class Resources:
    """State of the machines and of the job's input, per rank (or node) and step.

    Attributes
    ----------
    compute_stretch : ndarray of shape (n_ranks, n_steps)
        Factor on kernel time from a shared GPU; once settled, from lost clock too.
    launch_stretch : ndarray of shape (n_ranks, n_steps)
        Factor on what the host's own program paces, forward and optimizer: no counter knows of it.
    cooling, power_limit, clock_ceiling : ndarray of shape (n_ranks, n_steps)
        Heat carried off, power allowed and clock allowed, relative to what full load needs.
    clock, heat, thermal, power_cap : ndarray of shape (n_ranks, n_steps)
        What the GPU's controller makes of these (`rca.simulation.gpu_clock.settle`): SM clock relative to its
        normal value under load, degrees above the healthy temperature, and the share of time the GPU is
        held back for temperature or power.
    foreign_gpu : ndarray of shape (n_ranks, n_steps)
        Share of the GPU that other processes take.
    gpu_stall, host_stall, table_stall, gc, checkpoint : ndarray of shape (n_ranks, n_steps), seconds
        Time lost per step to memory recovery, to a host that stands still, to reading back what the loading
        of data needs and was reclaimed, to collector pauses and checkpoints.
    major_faults : ndarray of shape (n_ranks, n_steps), per second
        Pages read back that a memory limit had pushed out.
    batch_extra : ndarray of shape (n_ranks, n_steps), seconds
        What a loader worker needs for a batch beyond the usual.
    read_stretch : ndarray of shape (n_nodes, n_steps)
        Factor on the time to read a batch from storage.
    read_held : ndarray of shape (n_ranks, n_steps)
        Share of time a limit holds a rank's reads back, above a disk that has time.
    run_queue : ndarray of shape (n_ranks, n_steps)
        Share of its runnable time the host process waits for a core.
    quota : ndarray of shape (n_ranks, n_steps)
        Share of time it is stopped by a CPU quota.
    copy_stretch : ndarray of shape (n_ranks, n_steps)
        How many times narrower the GPU's link to its PCIe switch is; the NIC's traffic passes it as well.
    lost_lanes, lost_generations : ndarray of shape (n_ranks, n_steps)
        How often the link's width, or its rate, is halved: what it was trained to.
    loader_cpu, group_cpu : ndarray of shape (n_ranks, n_steps)
        Extra cores used by the input pipeline, and by strangers in a rank's own control group.
    stage_extra : ndarray of shape (n_stages, n_steps)
        Work a stage has beyond its balanced part, relative to that part.
    length_spread : ndarray of shape (1, n_steps)
        Standard deviation of the logarithm of sequence lengths in the input.
    ecc, pcie_replays : ndarray of shape (n_ranks, n_steps), per second
    nic_stretch, nvlink_stretch : ndarray of shape (n_nodes, n_steps)
        Factors on transfers between nodes and inside one.
    nic_queue, nic_delay, nic_loss, nic_errors, congestion : ndarray of shape (n_nodes, n_steps)
        Symptoms at the port: queued share, added seconds of round trip, lost share, link errors per second,
        marked share.
    foreign_cpu, memory_stall, disk_stall, remote_stall : ndarray of shape (n_nodes, n_steps)
        Cores used by strangers; share of time stalled on memory; share of time the disk is saturated, or the
        file server.
    """

    compute_stretch: FloatArray
    launch_stretch: FloatArray
    cooling: FloatArray
    power_limit: FloatArray
    clock_ceiling: FloatArray
    clock: FloatArray
    heat: FloatArray
    foreign_gpu: FloatArray
    gpu_stall: FloatArray
    host_stall: FloatArray
    table_stall: FloatArray
    major_faults: FloatArray
    batch_extra: FloatArray
    read_stretch: FloatArray
    read_held: FloatArray
    gc: FloatArray
    checkpoint: FloatArray
    run_queue: FloatArray
    quota: FloatArray
    copy_stretch: FloatArray
    lost_lanes: FloatArray
    lost_generations: FloatArray
    loader_cpu: FloatArray
    group_cpu: FloatArray
    stage_extra: FloatArray
    length_spread: FloatArray
    ecc: FloatArray
    pcie_replays: FloatArray
    thermal: FloatArray
    power_cap: FloatArray
    nic_stretch: FloatArray
    nvlink_stretch: FloatArray
    nic_queue: FloatArray
    nic_delay: FloatArray
    nic_loss: FloatArray
    nic_errors: FloatArray
    congestion: FloatArray
    foreign_cpu: FloatArray
    memory_stall: FloatArray
    disk_stall: FloatArray
    remote_stall: FloatArray
    stop: Stop | None = None

    @classmethod
    def healthy(cls, scenario: Scenario) -> Resources:
        """Machines as they should be."""
        rows = dict.fromkeys(OF_NODES, scenario.n_nodes)
        rows |= {"stage_extra": scenario.parallelism.pipeline, "length_spread": 1}
        held: dict[str, FloatArray] = {}
        for field in fields(cls):
            if field.name == "stop":
                continue
            shape = rows.get(field.name, scenario.world_size), scenario.n_steps
            held[field.name] = np.ones(shape) if field.name in FACTORS else np.zeros(shape)
        held["run_queue"] += scenario.workload.run_queue_share
        held["length_spread"] += spread_for(scenario.workload, scenario.benign.sequence_jitter)
        return cls(stop=None, **held)

    def add_stop(self, stop: Stop) -> None:
        """Keep the earliest stop: a job ends once."""
        if self.stop is None or stop.step < self.stop.step:
            self.stop = stop
