"""The testbed's faults as data: cause, scope, severities, and what is real about each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rca.window.causes import StragglerType

Scope = Literal["rank", "node", "stage", "job"]
Device = Literal["any", "stand_in", "gpu"]
Need = Literal["namespaces", "htb", "relay", "cpu_groups", "disk_groups", "memory_groups", "direct_reads"]


@dataclass(frozen=True)
class InjectableFault:
    """One fault that the testbed can inject.

    Attributes
    ----------
    cause : str
        Id in the cause catalogue, or ``unknown`` for slowness that no cause of it explains.
    alike : tuple of str
        Other causes with the same captured signals; an answer with one of them counts as right.
    scopes : tuple of str
        Possible targets; the first is the default.
    levels : tuple of three floats
        Strength at severity 1, 2 and 3, in `unit`.
    needs : tuple of str
        Capabilities that the machine must permit (`rca.lab.testbed.probe`).
    real : str
        What the injector really does, for the label's notes.
    periodic : bool
        It affects single steps, so its cost is in the mean of the steps, not in their median.
    device : {"any", "stand_in", "gpu"}
        Kind of device of the affected ranks.
    type_of_unknown : str or None
        Straggler type of a fault with the cause ``unknown``, which has none of its own.
    """

    cause: str
    scopes: tuple[Scope, ...]
    levels: tuple[float, float, float]
    unit: str
    real: str
    alike: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    periodic: bool = False
    device: Device = "any"
    type_of_unknown: StragglerType | None = None

    @property
    def straggler_type(self) -> StragglerType | None:
        """The cause's own; None where the job stops."""
        from rca.window.causes import SPECS

        match SPECS[self.cause].type:
            case "fail_stop":
                return None
            case "unknown":
                return self.type_of_unknown
            case kind:
                return kind

    @property
    def stops_the_job(self) -> bool:
        return self.straggler_type is None

    def level(self, severity: int) -> float:
        """Strength at a severity from 1 to 3."""
        return self.levels[severity - 1]


_CONGESTION = ("network_congestion",)
_CONTENTION = ("gpu_contention",)
_NETWORK: tuple[Need, ...] = ("namespaces", "htb")
_RELAY: tuple[Need, ...] = ("namespaces", "relay")

FAULTS: dict[str, InjectableFault] = {
    "cpu_hogs": InjectableFault(
        "cpu_contention",
        ("rank", "node"),
        (2, 5, 12),
        "busy processes",
        "busy loops in the rank's CPU group and on its core, or on the cores of the node's ranks",
    ),
    "cpu_quota": InjectableFault(
        "cpu_contention",
        ("rank",),
        (2.0, 1.4, 1.0),
        "ms of CPU per 20 ms",
        "the kernel's CPU quota on the rank's group (its device process is outside it)",
        needs=("cpu_groups",),
    ),
    "nic_rate": InjectableFault(
        "nic_degradation",
        ("node",),
        (250, 120, 60),
        "Mbit/s",
        "a token bucket on the node's interface",
        alike=_CONGESTION,
        needs=_NETWORK,
    ),
    "nic_delay": InjectableFault(
        "nic_degradation",
        ("node",),
        (3.0, 6.0, 15.0),
        "ms",
        "every frame that the node sends is delayed, below real TCP",
        alike=_CONGESTION,
        needs=_RELAY,
    ),
    "nic_loss": InjectableFault(
        "nic_degradation",
        ("node",),
        (0.005, 0.02, 0.06),
        "share of frames",
        "frames that the node sends are dropped at random, below real TCP",
        alike=_CONGESTION,
        needs=_RELAY,
    ),
    "fabric_rate": InjectableFault(
        "network_congestion",
        ("job",),
        (250, 120, 60),
        "Mbit/s on every node",
        "a token bucket on every node's interface",
        alike=("nic_degradation",),
        needs=_NETWORK,
    ),
    "slow_dataset": InjectableFault(
        "data_loader_stall",
        ("rank",),
        (1.2, 1.9, 3.4),
        "nominal steps per batch",
        "the loader sleeps before it delivers a batch",
    ),
    "heavy_decoding": InjectableFault(
        "data_loader_stall",
        ("rank",),
        (0.7, 0.9, 1.2),
        "nominal steps of CPU time per batch",
        "the loader really computes that long for every batch",
    ),
    "storage_throttle": InjectableFault(
        "storage_degradation",
        ("node", "rank"),
        (3.6, 2.4, 1.3),
        "MB/s per rank",
        "the kernel's read limit on the rank's group, direct reads",
        needs=("disk_groups", "direct_reads"),
    ),
    "device_duty_cycle": InjectableFault(
        "gpu_throttling",
        ("rank",),
        (0.25, 0.45, 0.65),
        "share of time stopped",
        "the device process is stopped and continued every 40 ms; it replaces a throttled GPU",
        alike=_CONTENTION,
        device="stand_in",
    ),
    "device_clock": InjectableFault(
        "gpu_throttling",
        ("rank",),
        (1.25, 1.6, 2.2),
        "times the kernel time",
        "the device process pads its kernels to a longer time; it replaces a GPU with a lower clock",
        alike=_CONTENTION,
        device="stand_in",
    ),
    "copy_bandwidth": InjectableFault(
        "pcie_degradation",
        ("node",),
        (3, 6, 12),
        "foreign copiers",
        "other processes take turns on the token that replaces the node's PCIe link",
        device="stand_in",
    ),
    "gpu_gemms": InjectableFault(
        "gpu_contention",
        ("rank",),
        (0.4, 1.0, 2.0),
        "processes' worth of matrix products",
        "other processes multiply matrices on the rank's GPU, which shares its time among them",
        device="gpu",
    ),
    "gpu_memory_traffic": InjectableFault(
        "gpu_contention",
        ("rank",),
        (0.4, 1.0, 2.0),
        "processes' worth of copies inside GPU memory",
        "other processes copy within the memory of the rank's GPU, which shares its time and bandwidth",
        device="gpu",
    ),
    # The link is healthy, so its replacement would not help; ending the other processes does.
    "pinned_copies": InjectableFault(
        "gpu_contention",
        ("rank",),
        (1.0, 2.0, 3.0),
        "processes that copy without pause",
        "other processes copy pinned memory over the PCIe link of the rank's GPU; the link itself is healthy",
        device="gpu",
    ),
    # The job itself copies slowly; the catalogue has no cause for it.
    "pageable_copies": InjectableFault(
        "unknown",
        ("rank",),
        (0.3, 0.6, 1.0),
        "share of the batch in pageable memory",
        "the rank copies its batch from pageable instead of pinned memory; the PCIe link itself is healthy",
        device="gpu",
        type_of_unknown="host",
    ),
    "gc_pauses": InjectableFault(
        "runtime_gc",
        ("rank",),
        (1.2e5, 4e5, 1.2e6),
        "objects kept alive",
        "Python's own collector runs over real kept objects, every second step",
        periodic=True,
    ),
    "memory_pressure": InjectableFault(
        "memory_pressure",
        ("rank",),
        (10, 5, 2),
        "MiB left for a 16 MiB table that is read at random",
        "the kernel's memory limit on the rank's group: real reclaim and major faults",
        needs=("memory_groups",),
        alike=("storage_degradation",),
    ),
    "sequence_lengths": InjectableFault(
        "sequence_length_imbalance",
        ("job",),
        (0.25, 0.4, 0.6),
        "spread of log length",
        "batches of really unequal lengths; kernel time follows tokens and squared lengths",
        device="stand_in",
    ),
    "full_last_stage": InjectableFault(
        "stage_imbalance",
        ("stage",),
        (1.3, 1.6, 2.2),
        "times the kernel time",
        "the last stage's device processes pad to a longer time; this replaces more layers",
        device="stand_in",
    ),
    "checkpoint_stall": InjectableFault(
        "checkpoint_stall",
        ("job", "rank"),
        (1.0, 2.5, 6.0),
        "nominal steps per checkpoint, at least",
        "a file is really written and synced at a limited pace every sixth step",
        periodic=True,
    ),
    "killed_rank": InjectableFault("process_crash", ("rank",), (1, 1, 1), "-", "SIGKILL to the host process"),
    "killed_device": InjectableFault(
        "process_crash",
        ("rank",),
        (1, 1, 1),
        "-",
        "SIGKILL to the device process; the host then fails",
        device="stand_in",
    ),
    "hung_rank": InjectableFault("hang", ("rank",), (1, 1, 1), "-", "SIGSTOP to the host process"),
    "hung_device": InjectableFault(
        "hang", ("rank",), (1, 1, 1), "-", "SIGSTOP to the device process", device="stand_in"
    ),
}

BENIGN: dict[str, str] = {
    "hiccup": "a burst of foreign load shorter than half a second",
    "neighbour_load": "a gentle foreign load on every core, all the time",
    "clock_skew": "every node's clock is off by up to half a second in what it reports (applied afterwards)",
    "slow_warm_up": "the first steps wait for a cold input pipeline, on all ranks",
}
