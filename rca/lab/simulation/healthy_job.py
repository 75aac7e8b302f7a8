"""A healthy job as plain data: its workload, its machines, and its variation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rca.frozen import Frozen

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0)]


class Workload(Frozen):
    """Healthy seconds per step of each phase, and how the job depends on its host.

    Attributes
    ----------
    data_loading_seconds : float
        Taking a batch from the queue; without prefetching, making the batch.
    launch_seconds : float
        Host time per step in which waiting for a core delays kernels.
    host_coupling : float
        How much a contended host slows its collectives; large where a CPU moves the bytes, as in gloo.
    own_coupling : float
        How much longer than its peers' a contended host's own transfer is, beyond that.
    own_port : float
        Part of a slow port's delay that only its own node's ranks see.
    copy_sharing : float
        Part of a copy's time that simultaneous copies of neighbours cause.
    calls_collector : bool
        Whether the trainer collects garbage itself, between steps.
    backward_gap_share : float or None
        Share of launch gaps that fall into the backward; None takes the dialect's usual share.
    p2p_seconds : float
        One microbatch's activations or gradients from one pipeline stage to the next.
    gather_share : float
        Share of the exchange that gathers parameters before the forward (a sharded optimizer).
    prefetch_steps, loader_workers : int
        Batches kept ahead, and loader workers of each rank.
    loader_share, read_share : float
        Share of time in which a loader worker is busy, and share of that in which it reads.
    layers : int
        A layer is never split between stages.
    last_stage_extra : float
        Extra layer-equivalents of the last stage (the logits), relative to a stage's layers.
    attention_share : float
        Share of compute that grows with the square of a sequence's length.
    packed : bool
        Whether sequences are packed to a constant number of tokens.
    """

    data_loading_seconds: Positive = 0.00005
    host_to_device_seconds: Positive = 0.0048
    forward_seconds: Positive = 0.0222
    backward_seconds: Positive = 0.0407
    transfer_seconds: Positive = 0.043
    optimizer_seconds: Positive = 0.0034
    launch_seconds: NotNegative = 0.0073
    host_coupling: NotNegative = 0.7
    own_coupling: NotNegative = 0.0
    own_port: Share = 0.0
    calls_collector: bool = False
    copy_sharing: Share = 0.0
    backward_gap_share: Share | None = None
    run_queue_share: Share = 0.35
    intra_node_share: Share = 0.0
    p2p_seconds: NotNegative = 0.0
    gather_share: Share = 0.0
    microbatches: Annotated[int, Field(ge=1)] = 8
    prefetch_steps: Index = 2
    loader_workers: Annotated[int, Field(ge=1)] = 1
    loader_share: Share = 0.3
    read_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    layers: Annotated[int, Field(ge=1)] = 48
    attention_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    packed: bool = True
    gradient_bytes: Positive = 1.07e6
    samples_per_step: Index = 0
    last_stage_extra: Annotated[float, Field(ge=-0.5, le=1)] = 0.0

    @property
    def step_seconds(self) -> float:
        """A healthy step without noise, waiting or pipeline bubbles."""
        return (
            self.data_loading_seconds
            + self.host_to_device_seconds
            + self.forward_seconds
            + self.backward_seconds
            + self.transfer_seconds
            + self.optimizer_seconds
        )


class Fleet(Frozen):
    """The machines.

    Attributes
    ----------
    models : tuple of int
        GPU model of each node (see `rca.lab.simulation.machine_differences`); empty where all are alike.
    speeds : tuple of float
        Compute speed of each node relative to the job's usual one; empty where all are alike.
    cooling_seconds : float
        Time constant of a GPU's heat sink.
    switch_share : float
        Part of a full PCIe link that a rank's NIC traffic uses; 0 where GPU and NIC share no switch.
    memory_share : float
        Share of its device's memory that the job holds.
    """

    models: tuple[Index, ...] = ()
    speeds: tuple[Positive, ...] = ()
    cooling_seconds: Positive = 15.0
    switch_share: Share = 0.0
    memory_share: Share = 0.72


SlowStepPhase = Literal["checkpoint", "forward", "between"]
Counted = Literal["nothing", "samples", "lengths"]


class HarmlessSignal(Frozen):
    """A signal that looks like a fault but costs nothing."""

    kind: Literal["ecc_sbe", "tcp_retransmits", "load", "hot_gpu", "power_cap", "pcie_replay", "io_pressure"]
    rank: Index = 0


class Burst(Frozen):
    """A neighbour that takes the cores of one node for a few steps.

    Attributes
    ----------
    level : float
        Share of its runnable time in which a host process waits for a core during the burst.
    """

    node: Index
    first_step: Index
    steps: Annotated[int, Field(ge=1)] = 1
    level: Share = 0.7


class GcPauses(Frozen):
    """Planned and cheap pauses of the garbage collector.

    Attributes
    ----------
    every : int
        Steps between two pauses of a rank.
    together : bool
        Whether all ranks collect in the same step.
    uneven : float
        Spread of the logarithm of lasting factors between ranks' pauses.
    """

    every: Annotated[int, Field(ge=1)]
    seconds: NotNegative
    together: bool = True
    uneven: NotNegative = 0.0


class LongStall(Frozen):
    """One step in which some ranks stall without a fault: a file server hangs, a log is flushed.

    Attributes
    ----------
    length : float
        In usual steps.
    """

    ranks: tuple[Index, ...]
    step: Index
    length: NotNegative


class Benign(Frozen):
    """Everything that varies in a healthy job.

    Attributes
    ----------
    rank_offset, copy_offset : float
        Lasting relative differences between ranks' compute, and between their copies to the device.
    loading_noise, gap_noise : float
        Spread of the logarithm of a step's data loading, and of the launch gaps in each of its phases.
    noise, backward_calm : float
        Spread of the logarithm of the forward's kernel time, and the backward's spread relative to it.
    common_noise : float
        Share of that variance that forward and backward of a step have in common.
    copy_noise, optimizer_noise, p2p_noise : float
        The same spread of copies to the device, optimizer steps, and of each transfer between stages.
    gc_pauses : GcPauses or None
        Pauses of the garbage collector; None if it does not run.
    events, compilations : tuple of LongStall
        Single long steps of a healthy job; compilations of new shapes are long in the forward.
    hiccup_probability, hiccup_scale : float
        Probability of a single late phase, and its length relative to a step.
    hiccup_spread, hiccup_backward : float
        Spread of that probability's logarithm between ranks, and the share that falls into the backward.
    transfer_ends : float
        Spread of the logarithm of a collective's length between its ranks.
    settling : float
        Extra relative length of copies and transfers in a starting job's first steps, beyond the warm-up.
    queue_spread : float
        Spread of the logarithm of harmless waiting in run queues; half of it lasts.
    slow_step_every, slow_step_factor, slow_step_phase : int, float, str
        Period and factor of long steps of all ranks. They evaluate, within a phase or between steps, or write
        a checkpoint.
    slow_step_spread, slow_step_alone : float, bool
        Spread of the logarithm between ranks; whether rank 0 does it for all ranks.
    slow_batches, slow_batch_factor : int, float
        Number of late first batches of a starting job, and the time of each in steps.
    shift_step, shift_factor, shift_ramp : int or None, float, int
        First step in which all ranks compute more or less, the factor, and the number of further steps over
        which the change grows.
    shift_counted : str
        What changes: the number of samples, the lengths of sequences, or nothing that a loader counts.
    """

    rank_offset: NotNegative = 0.003
    copy_offset: NotNegative = 0.0
    loading_noise: NotNegative = 0.5
    gap_noise: NotNegative = 0.0
    noise: NotNegative = 0.028
    noise_memory: Share = 0.3
    backward_calm: NotNegative = 0.43
    common_noise: Share = 0.0
    copy_noise: NotNegative = 0.08
    optimizer_noise: NotNegative = 0.02
    p2p_noise: NotNegative = 0.0
    transfer_noise: NotNegative = 0.14
    transfer_ends: NotNegative = 0.004
    settling: NotNegative = 0.0
    hiccup_probability: Share = 0.002
    hiccup_scale: NotNegative = 0.15
    hiccup_spread: NotNegative = 0.0
    hiccup_backward: Share = 0.25
    queue_spread: NotNegative = 0.0
    bursts: tuple[Burst, ...] = ()
    gc_pauses: GcPauses | None = None
    events: tuple[LongStall, ...] = ()
    compilations: tuple[LongStall, ...] = ()
    slow_batches: Index = 0
    slow_batch_factor: NotNegative = 0.0
    drift: NotNegative = 0.0
    warmup_steps: Index = 1
    warmup_factor: Positive = 10.0
    slow_step_every: Index = 0
    slow_step_factor: Positive = 1.0
    slow_step_phase: SlowStepPhase = "checkpoint"
    slow_step_spread: NotNegative = 0.0
    slow_step_alone: bool = False
    sequence_jitter: NotNegative = 0.0
    shift_step: Index | None = None
    shift_factor: Positive = 1.0
    shift_ramp: Index = 0
    shift_counted: Counted = "nothing"
    harmless: tuple[HarmlessSignal, ...] = ()
