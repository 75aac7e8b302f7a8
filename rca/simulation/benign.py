"""What varies in healthy jobs, as plain data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rca.simulation.workload import Frozen, Index, NotNegative, Positive, Share

SlowStepPhase = Literal["checkpoint", "forward", "between"]
Counted = Literal["nothing", "samples", "lengths"]


class HarmlessSignal(Frozen):
    """A signal that looks guilty and costs nothing."""

    kind: Literal["ecc_sbe", "tcp_retransmits", "load", "hot_gpu", "power_cap", "pcie_replay", "io_pressure"]
    rank: Index = 0


class Burst(Frozen):
    """A neighbour that takes the cores of one node for a few steps, and is gone before anybody minds.

    Attributes
    ----------
    level : float
        Share of its runnable time that a host process waits for a core meanwhile.
    """

    node: Index
    first_step: Index
    steps: Annotated[int, Field(ge=1)] = 1
    level: Share = 0.7


class Collections(Frozen):
    """Pauses of the garbage collector that are part of the program, and cheap.

    Attributes
    ----------
    every : int
        Steps from one pause of a rank to its next.
    seconds : float
    together : bool
        Whether all ranks collect in the same step, as careful trainers have it.
    uneven : float
        Spread of the logarithm of how much longer some ranks' pauses are, lasting.
    """

    every: Annotated[int, Field(ge=1)]
    seconds: NotNegative
    together: bool = True
    uneven: NotNegative = 0.0


class LongStall(Frozen):
    """One step in which some ranks stand still: a file server hangs, a log is flushed. Nobody is to blame.

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
        Spread of the logarithm of the forward's kernel time, and that of the backward relative to it.
    common_noise : float
        Share of that variance that forward and backward of a step have in common: a clock, lengths of input.
    copy_noise, optimizer_noise, p2p_noise : float
        The same spread of copies to the device, optimizer steps, and of each transfer between stages.
    collections : Collections or None
        Pauses of the garbage collector, if it runs at all.
    events : tuple of LongStall
        Single long steps that a healthy job may have.
    hiccup_probability, hiccup_scale, hiccup_spread, hiccup_backward : float
        Single late phases: how often, how long relative to a step, the spread of the logarithm of how often
        between ranks, and the share that falls into the backward.
    transfer_ends : float
        Spread of the logarithm of a collective's length between the ranks that take part in it.
    settling : float
        How much longer copies and transfers of a beginning job's first steps are, beyond the warm-up.
    queue_spread : float
        Spread of the logarithm of what ranks wait in run queues, half of it lasting, without cost to anybody.
    slow_step_every, slow_step_factor, slow_step_phase : int, float, str
        Every so many steps all ranks take so much longer: they evaluate, within a phase or between steps, or
        write a checkpoint.
    slow_step_spread, slow_step_alone : float, bool
        Spread of the logarithm between ranks; whether rank 0 does it for all.
    slow_batches, slow_batch_factor : int, float
        The first batches of a starting job come late: how many, and how many steps' time each takes.
    shift_step, shift_factor, shift_ramp : int or None, float, int
        From which step on everybody computes more or less, by which factor, and over how many further steps
        the change comes about.
    shift_counted : str
        What the change is: more samples, longer sequences, or nothing that a loader counts.
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
    collections: Collections | None = None
    events: tuple[LongStall, ...] = ()
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
