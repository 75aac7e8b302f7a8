"""What a job does by itself, and the machines it does it on: plain data."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0)]


class Frozen(BaseModel):
    """Plain data that nobody changes and that has no field by mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Workload(Frozen):
    """Healthy seconds per step of each phase, how they come about, and how the job reacts to its host.

    Attributes
    ----------
    data_loading_seconds : float
        Taking a batch that waits in the queue; all of its making where nothing is prefetched.
    launch_seconds : float
        Host time per step whose run-queue waiting delays kernels.
    host_coupling : float
        How much a contended host also slows its collectives (large where a CPU moves the bytes, as in gloo).
    own_coupling : float
        How much longer than its peers' a contended host's own transfer is, beyond that.
    own_port : float
        The same of a node with a slow port: part of what it adds that only the node's own ranks see.
    copy_sharing : float
        Part of a copy's time that is owed to neighbours who copy at the same time.
    calls_collector : bool
        Whether the trainer collects garbage itself, between steps, rather than whenever Python sees fit.
    backward_gap_share : float or None
        Share of launch gaps that fall into the backward; None takes what is usual for the kind of machine.
    p2p_seconds : float
        One microbatch's activations or gradients from one pipeline stage to the next.
    gather_share : float
        Share of the exchange that gathers parameters before the forward (a sharded optimizer).
    prefetch_steps, loader_workers : int
        Batches kept ahead, and the workers of each rank that make them.
    loader_share, read_share : float
        Share of its time a loader worker is busy, and share of that it reads.
    layers : int
        Placed on the stages whole.
    last_stage_extra : float
        Further layer-equivalents of the last stage (the logits), relative to a stage's layers.
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
        GPU model of each node (see `rca.simulation.exporters.models`); empty where all are alike.
    speeds : tuple of float
        Compute speed of each node relative to the job's usual one; empty where all are alike.
    cooling_seconds : float
        Time constant of a GPU's heat sink.
    switch_share : float
        Part of a whole PCIe link that a rank's NIC traffic fills; 0 where GPU and NIC share no switch.
    """

    models: tuple[Index, ...] = ()
    speeds: tuple[Positive, ...] = ()
    cooling_seconds: Positive = 15.0
    switch_share: Share = 0.0
