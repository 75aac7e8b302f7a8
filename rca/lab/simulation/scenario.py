"""A scenario: one job, its machines' faults, and its telemetry.

A `SimulationScenario` is plain data and determines its window: equal scenarios yield equal telemetry.
A corpus can therefore be stored as scenarios.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rca.frozen import Frozen
from rca.lab.simulation.healthy_job import (
    Benign,
    Fleet,
    Index,
    NotNegative,
    Positive,
    Share,
    Workload,
)
from rca.lab.simulation.wiring import Wiring
from rca.window.job import Parallelism

Dialect = Literal["gpu_cluster", "cpu_testbed", "mixed"]
Shape = Literal["step", "ramp", "intermittent"]
Ending = Literal["complete", "cut", "lagging", "finished"]
ExchangePlace = Literal["own phase", "backward", "layers", "optimizer"]
LoadingPlace = Literal["own phase", "forward"]
CopyPlace = Literal["own phase", "data loading", "forward"]
BubblePlace = Literal["waiting", "nowhere", "backward"]
DeviceWait = Literal["every phase", "forward", "optimizer", "nowhere"]
SkewedBy = Literal["ring", "node"]
StepEnd = Literal["after all", "before pauses", "before saves"]
Watchdogs = Literal["few", "all"]
CorpusVersion = Literal[1, 2]
Visibility = Literal["full", "unsplit", "minimal", "loading"]
#: Fewest rows per rank of a window with missing rows at its beginning.
MIN_ROWS_AFTER_SKIP = 20
#: Visibilities without timers for the ranks' own work: whole steps, or whole steps and data loading.
HARDLY_VISIBLE = frozenset({"minimal", "loading"})


class Fault(Frozen):
    """One injected fault.

    Attributes
    ----------
    cause : str
        Catalogue id; see `rca.lab.simulation.faults.FAULTS`.
    variant : str
        Mechanism of that cause, e.g. ``bandwidth``, ``delay`` or ``loss`` of ``nic_degradation``.
        Empty for the cause's first one.
    ranks : tuple of int
        Affected ranks; for a node's fault all ranks of the node.
    nodes : tuple of int
        Indices of the affected nodes.
    severity : float
        0 (no effect) to 1 (the worst that is simulated).
    strength, curve : float
        Sensitivity of these machines: a factor on the cost at full severity, and the power of the severity in
        the cost, both relative to usual machines.
    first_step, last_step : int
        Inclusive; a fail-stop fault has no last step.
    shape : {"step", "ramp", "intermittent"}
        Development between the first and the last step.
    late_share : float
        Share of late batches under a fault of a loader or its storage; fewer late batches are longer.
    rail : int or None
        The only adapter of each node on which a fault of the fabric shows; None for all of them.
    every : int or None
        Mean number of steps between two events of a fault that acts in single steps; None for the cause's
        usual one.
    seconds : float or None
        Length of one such event; None for the cause's usual one.
    own_share : float
        Part of a slow adapter's delay that only its own ranks see; the other part delays their whole groups.
    silence : float or None
        Usual steps from a hang to the window's end; None draws them.
    """

    cause: str
    variant: str = ""
    ranks: tuple[Index, ...] = ()
    nodes: tuple[Index, ...] = ()
    severity: Share = 0.7
    strength: Positive = 1.0
    curve: Positive = 1.0
    first_step: Index = 0
    last_step: Index | None = None
    shape: Shape = "step"
    late_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    rail: Index | None = None
    every: Annotated[int, Field(ge=1)] | None = None
    seconds: Positive | None = None
    own_share: Share = 0.0
    silence: Positive | None = None

    @property
    def force(self) -> float:
        """Severity to the power of `curve`; the cost is a function of it."""
        return float(self.severity**self.curve)


class PhaseAccounting(Frozen):
    """How the trainer's timers divide a step into phases.

    Attributes
    ----------
    batch_shared : bool
        A tensor group's data loading lasts until its last member needs the batch.
    tensor_waits_inside : bool
        A tensor group's forward and backward are as long as those of its slowest member.
    loading_in : {"own phase", "forward"}
        Phase in which the batch is taken from the loader: many forward functions fetch it themselves.
    copy_in : {"own phase", "data loading", "forward"}
        Phase in which it is copied to the device. Within another phase neither has a column of its own.
    bubbles_in : {"waiting", "nowhere", "backward"}
        Phase of a pipeline's bubbles: waiting, no phase, or the backward if its timer contains the receiving
        of gradients.
    exchange_in : {"own phase", "backward", "layers", "optimizer"}
        Phase of the exchange, which has columns only if it is a phase of its own. "backward": gradients are
        exchanged behind the backward. "layers": parameters are gathered layer by layer (FSDP, ZeRO-3), so
        ranks wait within the forward as well. "optimizer": the optimizer waits for the gradients (Horovod).
    waits_for_device : {"every phase", "forward", "optimizer", "nowhere"}
        Phase in which the host waits for its device; other timers see the launches of kernels only. "nowhere"
        is at the step's end, which has no timer. The exchange has columns only if every phase waits.
    launch_share : float
        Time of a phase's launches relative to its kernels.
    transfer_skew, skewed_by : float, {"ring", "node"}
        Largest part of a transfer that a rank counts as waiting because its data comes later, and the
        affected ranks. They are chosen by their place in the ring, or are all ranks of a node but the sender.
        A trace of operations does not have this error.
    step_ends : {"after all", "before pauses", "before saves"}
        End of the timer of whole steps: work of the host between steps follows it, or checkpoints as well.
    """

    batch_shared: bool = False
    tensor_waits_inside: bool = False
    loading_in: LoadingPlace = "own phase"
    copy_in: CopyPlace = "own phase"
    bubbles_in: BubblePlace = "waiting"
    exchange_in: ExchangePlace = "own phase"
    waits_for_device: DeviceWait = "every phase"
    launch_share: Share = 0.3
    transfer_skew: Share = 0.0
    skewed_by: SkewedBy = "ring"
    step_ends: StepEnd = "after all"


class Telemetry(Frozen):
    """What is observed, and what is lost.

    Attributes
    ----------
    interval_seconds : float
        Seconds between scrapes.
    hold_seconds, lag_seconds : float
        Some device exporters collect on their own clock: the time for which they repeat a value, and the
        value's age when they collect it. 0: they read the device at every scrape.
    ops : bool
        Whether operations are traced.
    partly_timed : tuple of str
        Phases for which only `timing_ranks` have timers.
    visibility : {"full", "unsplit", "minimal", "loading"}
        All phases, communication in one column, whole steps only, or whole steps and data loading.
    states_sampled : bool
        Whether exporters sample a process's state (mostly sleeping) rather than its existence.
    forgets_dead : bool
        Whether the series of a process end with the process.
    load_columns, samples_counted : bool
        Whether rows hold the amount of input per step; `samples_counted` alone gives the samples only.
    begun_steps_reported : bool
        Whether an interrupted step has rows: many trainers write a row only at a step's end.
    rows_skipped, rows_behind : int
        Steps at the window's beginning and end with samples but without rows: producers cut both at different
        times, and some write many rows at once.
    steps_reported : bool
        Whether the window has step times at all, besides the exporters.
    watchdogs : {"few", "all"}
        Waiting ranks whose watchdog reports a stopped collective: a few of them, or all.
    """

    exporters: tuple[str, ...] = ()
    interval_seconds: Positive = 0.2
    hold_seconds: NotNegative = 0.0
    lag_seconds: NotNegative = 0.0
    ops: bool = False
    states_sampled: bool = False
    forgets_dead: bool = False
    visibility: Visibility = "full"
    missing_phases: tuple[str, ...] = ()
    ranks_without_phases: tuple[Index, ...] = ()
    partly_timed: tuple[str, ...] = ()
    timing_ranks: tuple[Index, ...] = ()
    load_columns: bool = False
    samples_counted: bool = False
    node_names: bool = True
    list_ranks: bool = True
    missing_metrics: Share = 0.0
    missing_series: Share = 0.0
    gap_probability: Share = 0.0
    reset_probability: Share = 0.0
    old_names: bool = False
    clock_skew_seconds: NotNegative = 0.0
    events: bool = True
    ending: Ending = "complete"
    phase_accounting: PhaseAccounting = PhaseAccounting()
    begun_steps_reported: bool = True
    rows_skipped: Index = 0
    rows_behind: Index = 0
    steps_reported: bool = True
    watchdogs: Watchdogs = "few"


class SimulationScenario(Frozen):
    """One simulated window, in full.

    Attributes
    ----------
    parallelism : Parallelism
        Sizes of the parallel dimensions; their product is the world size.
    n_steps : int
        Training steps the window covers, warm-up included.
    dialect : {"gpu_cluster", "cpu_testbed", "mixed"}
        Kind of machines and exporters that it resembles.
    wiring : Wiring or None
        Switches and adapters of the nodes; the window names them if it lists ranks and nodes.
    corpus : {1, 2}
        Version of the corpus. From 2 on exporters also show free device memory and the rates of ports, and
        labels say whose processes take the CPUs, and the mechanism.
    mechanism : str
        Name of the mechanism that drew it (see `rca.lab.simulation.mechanisms`); empty in version 1.
    """

    seed: Index = 0
    dialect: Dialect = "cpu_testbed"
    parallelism: Parallelism = Parallelism(data=8)
    ranks_per_node: Annotated[int, Field(ge=1)] = 2
    n_steps: Annotated[int, Field(ge=2)] = 66
    start: Annotated[float, Field(allow_inf_nan=False)] = 1_790_000_000.0
    first_step_number: Index = 0
    workload: Workload = Workload()
    fleet: Fleet = Fleet()
    faults: tuple[Fault, ...] = ()
    benign: Benign = Benign()
    telemetry: Telemetry = Telemetry()
    wiring: Wiring | None = None
    corpus: CorpusVersion = 1
    mechanism: str = ""

    @property
    def world_size(self) -> int:
        return self.parallelism.world_size

    @property
    def n_nodes(self) -> int:
        return -(-self.world_size // self.ranks_per_node)

    @property
    def replicas(self) -> int:
        """Number of ranks with the same part of the model: the data dimension times the context dimension."""
        return self.parallelism.data * self.parallelism.context

    @property
    def expected_step_seconds(self) -> float:
        """A healthy step without noise or waiting, but with the pipeline's bubble."""
        sizes, load = self.parallelism, self.workload
        bubble = (sizes.pipeline - 1) / (load.microbatches * sizes.virtual_pipeline)
        return load.step_seconds + bubble * (load.forward_seconds + load.backward_seconds)

    def ranks_on(self, node: int) -> tuple[int, ...]:
        """Ranks hosted by one node."""
        first = node * self.ranks_per_node
        return tuple(range(first, min(first + self.ranks_per_node, self.world_size)))

    def steps_with_rows(self, stop_step: int | None) -> tuple[int, int]:
        """First and past-the-last finished step with rows; a stopped job has rows up to its stop."""
        late = self.telemetry.rows_behind if self.telemetry.ending == "complete" else 0
        end = self.n_steps - late if stop_step is None else stop_step
        skipped = self.telemetry.rows_skipped
        return (skipped if end - skipped >= MIN_ROWS_AFTER_SKIP else 0), end

    def without(self, index: int) -> Self:
        """Return the same job and noise without one of its faults."""
        kept = self.faults[:index] + self.faults[index + 1 :]
        return self.model_copy(update={"faults": kept})

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        sizes = self.parallelism
        if sizes.virtual_pipeline > 1 and (
            sizes.pipeline == 1 or self.workload.microbatches % sizes.pipeline
        ):
            raise ValueError("model chunks need a pipeline, and microbatches that divide by its stages")
        for name in ("models", "speeds"):
            given = len(getattr(self.fleet, name))
            if given not in (0, self.n_nodes):
                raise ValueError(f"fleet.{name} has {given} entries for {self.n_nodes} nodes")
        return self

    @model_validator(mode="after")
    def _bursts_fit(self) -> Self:
        for burst in self.benign.bursts:
            if burst.node >= self.n_nodes or burst.first_step >= self.n_steps:
                raise ValueError(
                    f"a burst on node {burst.node} at step {burst.first_step} lies outside the job"
                )
        for event in self.benign.events:
            if event.step >= self.n_steps or any(rank >= self.world_size for rank in event.ranks):
                raise ValueError(f"a stall of ranks {event.ranks} at step {event.step} lies outside the job")
        return self

    @model_validator(mode="after")
    def _faults_fit(self) -> Self:
        for fault in self.faults:
            if fault.first_step >= self.n_steps:
                raise ValueError(f"{fault.cause} starts at step {fault.first_step} of {self.n_steps}")
            if any(rank >= self.world_size for rank in fault.ranks):
                raise ValueError(f"{fault.cause} names a rank beyond the world size {self.world_size}")
            if any(node >= self.n_nodes for node in fault.nodes):
                raise ValueError(f"{fault.cause} names a node beyond the {self.n_nodes} nodes")
        return self
