"""The cause catalogue: stable ids that labels, diagnoses and runbooks share.

A new cause is added, never renamed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

FailureMode = Literal["healthy", "fail_slow", "fail_stop"]
StragglerType = Literal["compute", "communication", "host", "input", "workload"]
CauseType = Literal["compute", "communication", "host", "input", "workload", "fail_stop", "unknown"]
CauseOwner = Literal["infrastructure", "workload", "either"]
Pattern = Literal["transient", "persistent", "deterministic"]


class CauseSpec(NamedTuple):
    """What a cause does to a step, and where one would see it.

    Attributes
    ----------
    phases : tuple of str
        Own phases (without ``_seconds``) and ``transfer`` that the cause lengthens.
    resources : tuple of str
        Evidence resources (`rca.features.resource_evidence.RESOURCES`) that move with it.
    next_check : str
        What settles the question at the machine.
    by_design : bool
        It is made into the job: every run of it is as slow, on whichever machines.
    """

    id: str
    type: CauseType
    owner: CauseOwner
    phases: tuple[str, ...]
    resources: tuple[str, ...]
    meaning: str
    next_check: str
    by_design: bool = False


_CATALOGUE = (
    CauseSpec(
        "gpu_throttling",
        "compute",
        "infrastructure",
        ("forward", "backward", "optimizer"),
        ("gpu_clock", "gpu_heat", "stopped"),
        "the GPU runs below its clock (heat, power cap, brake)",
        "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE on the node while the job is busy",
    ),
    CauseSpec(
        "gpu_contention",
        "compute",
        "infrastructure",
        ("forward", "backward", "optimizer"),
        ("gpu_activity", "stopped"),
        "another process uses the same GPU",
        "nvidia-smi pmon -c 5 on the node: is there a second process on the device?",
    ),
    CauseSpec(
        "gpu_memory_errors",
        "compute",
        "infrastructure",
        ("forward", "backward"),
        ("gpu_memory",),
        "correctable or uncorrectable memory errors slow or stop the GPU",
        "nvidia-smi -q -d ECC,ROW_REMAPPER and the kernel log for Xid lines",
    ),
    CauseSpec(
        "pcie_degradation",
        "host",
        "infrastructure",
        ("host_to_device", "transfer"),
        ("pcie",),
        "the PCIe link runs narrower or slower than it should",
        "nvidia-smi -q -d PCIE under load, or lspci -vv: compare LnkSta with LnkCap",
    ),
    CauseSpec(
        "nvlink_degradation",
        "communication",
        "infrastructure",
        ("transfer",),
        ("nvlink",),
        "NVLink errors slow the collectives inside a node",
        "nvidia-smi nvlink -e on the node: do replay or CRC counters grow?",
    ),
    CauseSpec(
        "nic_degradation",
        "communication",
        "infrastructure",
        ("transfer",),
        ("nic", "tcp"),
        "one node's network interface or link is slow or lossy",
        "ethtool -S / perfquery on the node, and a pairwise bandwidth test with a healthy node",
    ),
    CauseSpec(
        "network_congestion",
        "communication",
        "infrastructure",
        ("transfer",),
        ("fabric", "tcp", "nic"),
        "the fabric is congested; no single node is the culprit",
        "switch congestion counters (CNP, pause frames) over the job's window",
    ),
    CauseSpec(
        "cpu_contention",
        "host",
        "infrastructure",
        ("forward", "backward", "optimizer", "transfer"),
        ("cpu_wait", "cpu_quota", "cpu_load"),
        "the host's CPUs are shared or capped, so kernels are launched late",
        "pidstat -u 1 / the container's CPU quota on the node: who else runs there?",
    ),
    CauseSpec(
        "memory_pressure",
        "host",
        "infrastructure",
        ("forward", "backward", "optimizer", "data_loading"),
        ("memory",),
        "the host is short of memory and stalls in reclaim or swap",
        "/proc/pressure/memory and major faults of the process on the node",
    ),
    CauseSpec(
        "data_loader_stall",
        "input",
        "workload",
        ("data_loading",),
        ("loader_cpu",),
        "the input pipeline does not keep up",
        "time one epoch of the data loader alone on that rank; look at worker count and decode cost",
    ),
    CauseSpec(
        "storage_degradation",
        "input",
        "infrastructure",
        ("data_loading",),
        ("storage",),
        "the storage behind the input pipeline is slow",
        "iostat -x 1 (or the file system's own latency figures) on the node",
    ),
    CauseSpec(
        "runtime_gc",
        "host",
        "workload",
        ("gc", "forward"),
        ("collector",),
        "the language runtime's garbage collector pauses the rank",
        "gc.callbacks timing, or run with gc.freeze() and a planned collection interval",
    ),
    CauseSpec(
        "stage_imbalance",
        "workload",
        "workload",
        ("forward", "backward"),
        (),
        "one pipeline stage has more work than the others",
        "compare mean compute per stage; move layers away from the slow stage",
        by_design=True,
    ),
    CauseSpec(
        "sequence_length_imbalance",
        "workload",
        "workload",
        ("forward", "backward"),
        (),
        "ranks get batches of very different total length",
        "log tokens and the sum of squared sequence lengths per rank and step",
        by_design=True,
    ),
    CauseSpec(
        "checkpoint_stall",
        "input",
        "workload",
        ("checkpoint",),
        ("storage",),
        "writing checkpoints stops the job periodically",
        "time the checkpoint write; make it asynchronous or less frequent",
        by_design=True,
    ),
    CauseSpec(
        "process_crash",
        "fail_stop",
        "either",
        (),
        (),
        "a process ended; its peers wait for ever",
        "the rank's own log and exit code, dmesg on its node (OOM, Xid)",
    ),
    CauseSpec(
        "hang",
        "fail_stop",
        "either",
        (),
        ("stopped",),
        "a rank did not join a collective; everybody waits",
        "py-spy dump (or the flight recorder) on the named rank: what is it blocked in?",
    ),
)


CAUSES: dict[str, CauseSpec] = {spec.id: spec for spec in _CATALOGUE}
#: Slow, and no catalogue cause explains it.
UNKNOWN = "unknown"
#: Every id that a label or an answer may bear.
SPECS: dict[str, CauseSpec] = CAUSES | {
    UNKNOWN: CauseSpec(
        UNKNOWN,
        "unknown",
        "either",
        (),
        (),
        "slow, and nothing in the catalogue explains it",
        "one test on its machine and on a quick peer: does slowness stay with machine or work?",
    )
}
SLOW_CAUSES = tuple(spec.id for spec in _CATALOGUE if spec.type != "fail_stop")
STOP_CAUSES = tuple(spec.id for spec in _CATALOGUE if spec.type == "fail_stop")
STRAGGLER_TYPES: tuple[StragglerType, ...] = get_args(StragglerType)
#: Cause -> the evidence resources without which it cannot be: by its definition in the catalogue at least one
#: of them moves. Causes that are defined by a phase or by the job's layout alone are not among them.
DECIDING: dict[str, tuple[str, ...]] = {
    "gpu_throttling": ("gpu_clock",),
    "gpu_contention": ("gpu_activity",),
    "gpu_memory_errors": ("gpu_memory",),
    "pcie_degradation": ("pcie",),
    "nvlink_degradation": ("nvlink",),
    "nic_degradation": ("nic", "tcp"),
    "network_congestion": ("nic", "tcp", "fabric"),
    "cpu_contention": ("cpu_wait", "cpu_quota", "cpu_load"),
    "memory_pressure": ("memory",),
    "storage_degradation": ("storage",),
    "runtime_gc": ("collector",),
}


def pattern_of(cause: str, *, ends_inside: bool) -> Pattern:
    """How a straggler comes: short, to stay, or by design [1]_.

    Parameters
    ----------
    cause : str
        Catalogue id, or ``unknown``.
    ends_inside : bool
        Whether it is over before the window is. When it began does not matter: a window is cut anywhere.

    References
    ----------
    .. [1] AntDT, arXiv 2404.09679: transient and persistent contention, deterministic heterogeneity.
    """
    if ends_inside:
        return "transient"
    return "deterministic" if SPECS[cause].by_design else "persistent"
