"""Resources of ranks and nodes at each step; faults change nothing else.

Phases and exporters' counters follow from the resources, so all symptoms of a fault agree with each other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from rca.arrays import FloatArray
from rca.lab.simulation.compute_work import spread_for
from rca.lab.simulation.scenario import SimulationScenario

# Position in the order of work: data loading, copy, forward, backward, then the collective.
COLLECTIVE = 4
StopKind = Literal["crash", "hang"]
#: Variants of a crash after which all other ranks end as well, with the same exit code.
GANG_STOPS = frozenset({"gang", "link"})

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
        "adapter_stretch",
        "ring_stretch",
        "port_rate",
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
        "only_port",
        "foreign_cpu",
        "memory_stall",
        "disk_stall",
        "remote_stall",
        "read_stretch",
        "sockets",
        "crossed_port",
        "port_down",
        "port_rate",
    }
)


@dataclass
class Stop:
    """Where the job stops: one rank, in one phase of one step.

    `silence` is the time to the window's end, in usual steps; None draws it.
    """

    kind: StopKind
    ranks: tuple[int, ...]
    step: int
    phase: int
    variant: str
    silence: float | None = None


@dataclass
class Resources:
    """State of the machines and of the job's input, per rank or node and step.

    Attributes
    ----------
    compute_stretch : ndarray of shape (n_ranks, n_steps)
        Factor on kernel time from a shared GPU; after `apply_clock_limits` from a lower clock as well.
    launch_stretch : ndarray of shape (n_ranks, n_steps)
        Factor on forward and optimizer from a slow host program; no counter shows it.
    cooling, power_limit, clock_ceiling : ndarray of shape (n_ranks, n_steps)
        Cooling, allowed power and allowed clock, relative to the need at full load.
    clock, heat, thermal, power_cap : ndarray of shape (n_ranks, n_steps)
        Results of `rca.lab.simulation.gpu_clock.apply_clock_limits`: SM clock relative to its normal value
        under load, degrees above the healthy temperature, and shares of time limited by temperature or power.
    foreign_gpu : ndarray of shape (n_ranks, n_steps)
        Share of the GPU that other processes take.
    gpu_stall, host_stall, table_stall, gc, checkpoint : ndarray of shape (n_ranks, n_steps), seconds
        Time lost per step: to memory recovery, to a stalled host, to reading back reclaimed pages of the data
        loading, to garbage collector pauses, and to checkpoints.
    major_faults : ndarray of shape (n_ranks, n_steps), per second
        Reclaimed pages read back because of a memory limit.
    batch_extra : ndarray of shape (n_ranks, n_steps), seconds
        Extra time of a loader worker per batch.
    read_stretch : ndarray of shape (n_nodes, n_steps)
        Factor on the time to read a batch from storage.
    read_held : ndarray of shape (n_ranks, n_steps)
        Share of time in which a limit delays a rank's reads although the disk is free.
    run_queue : ndarray of shape (n_ranks, n_steps)
        Share of its runnable time in which the host process waits for a core.
    quota : ndarray of shape (n_ranks, n_steps)
        Share of time in which a CPU quota stops it.
    copy_stretch : ndarray of shape (n_ranks, n_steps)
        Factor by which the GPU's link to its PCIe switch is narrower; the NIC's traffic may use it as well.
    lost_lanes, lost_generations : ndarray of shape (n_ranks, n_steps)
        Number of halvings of the trained link width, and of the trained link rate.
    loader_cpu, group_cpu : ndarray of shape (n_ranks, n_steps)
        Extra cores used by the input pipeline, and by foreign processes in a rank's own control group.
    stage_extra : ndarray of shape (n_stages, n_steps)
        Extra work of a stage, relative to its balanced part.
    length_spread : ndarray of shape (1, n_steps)
        Standard deviation of the logarithm of sequence lengths in the input.
    ecc, pcie_replays : ndarray of shape (n_ranks, n_steps), per second
    nic_stretch, nvlink_stretch : ndarray of shape (n_nodes, n_steps)
        Factors on transfers between nodes and inside one.
    nic_queue, nic_delay, nic_loss, nic_errors, congestion : ndarray of shape (n_nodes, n_steps)
        Symptoms at the port: queued share, added seconds of round trip, lost share, link errors per second,
        marked share.
    only_port : ndarray of shape (n_nodes, n_steps)
        1 + index of the only port with these symptoms; 0 if all ports have them.
    foreign_cpu, memory_stall, disk_stall, remote_stall : ndarray of shape (n_nodes, n_steps)
        Cores used by foreign processes; share of time stalled on memory; shares of time in which the disk or
        the file server is saturated.
    compile_stall, untimed_stall : ndarray of shape (n_ranks, n_steps), seconds
        Compilation within forward and backward; work of the host after a step's phases that no timer covers.
    memory_held : ndarray of shape (n_ranks, n_steps)
        Share of the device's memory in use; 0 for the job's usual one.
    adapter_stretch, ring_stretch : ndarray of shape (n_ranks, n_steps)
        Factors on a rank's transfers between nodes: on its own part, and on that of its whole group.
    crowding, own_cores : ndarray of shape (n_ranks, n_steps)
        Share of time in which the rank's own processes wait for a core, and the cores that they use more than
        usual, as shares of the rank's part of its node.
    sockets, crossed_port, port_down, port_rate : ndarray of shape (n_nodes, n_steps)
        Share of the traffic over TCP sockets; 1 + index of the port that also carries the next one's traffic
        (0: none); how often a port went down in the step; its rate relative to the full one.
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
    only_port: FloatArray
    foreign_cpu: FloatArray
    memory_stall: FloatArray
    disk_stall: FloatArray
    remote_stall: FloatArray
    compile_stall: FloatArray
    untimed_stall: FloatArray
    memory_held: FloatArray
    adapter_stretch: FloatArray
    ring_stretch: FloatArray
    crowding: FloatArray
    own_cores: FloatArray
    sockets: FloatArray
    crossed_port: FloatArray
    port_down: FloatArray
    port_rate: FloatArray
    stop: Stop | None = None

    @classmethod
    def healthy(cls, scenario: SimulationScenario) -> Resources:
        """Resources of healthy machines."""
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
