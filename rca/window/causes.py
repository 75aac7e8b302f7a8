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
    """One cause: its effect on a step, and the evidence for it.

    Attributes
    ----------
    phases : tuple of str
        The phases (without ``_seconds``) of a rank that the cause lengthens, and ``transfer``.
    resources : tuple of str
        Evidence resources (`rca.features.resource_evidence.RESOURCES`) that change with it.
    next_check : str
        The check on the machine that confirms or excludes the cause.
    by_design : bool
        Part of the job: every run is as slow, on all machines.
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
        "the GPU runs below its normal clock (heat, power cap, power brake)",
        "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE on the node while the job is busy",
    ),
    CauseSpec(
        "gpu_contention",
        "compute",
        "infrastructure",
        ("forward", "backward", "optimizer"),
        ("gpu_activity", "stopped"),
        "another process uses the same GPU",
        "nvidia-smi pmon -c 5 on the node: is there a second process on the GPU?",
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
        "the PCIe link has fewer lanes or a lower speed than it should",
        "lspci -vv on the node: compare LnkSta with LnkCap while the GPU is busy (an idle one shows Gen1)",
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
        "the network fabric is congested; no single node causes it",
        "switch congestion counters (CNP, pause frames) over the job's window",
    ),
    CauseSpec(
        "cpu_contention",
        "host",
        "infrastructure",
        ("forward", "backward", "optimizer", "data_loading", "transfer"),
        ("cpu_wait", "cpu_quota", "cpu_load"),
        "the host's CPUs are shared or capped, so kernels are launched and inputs loaded late",
        "pidstat -u 1 and the node's CPU quota: strangers or the job's own processes?",
    ),
    CauseSpec(
        "memory_pressure",
        "host",
        "infrastructure",
        ("forward", "backward", "optimizer", "data_loading"),
        ("memory",),
        "the host lacks memory and waits for reclaim or swap",
        "/proc/pressure/memory and major faults of the process on the node",
    ),
    CauseSpec(
        "data_loader_stall",
        "input",
        "workload",
        ("data_loading",),
        ("loader_cpu",),
        "the input pipeline is slower than the training step",
        "time one epoch of the data loader alone on that rank; check its workers and decoding time",
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
        "allocator_retries",
        "workload",
        "workload",
        ("forward", "backward"),
        ("device_memory",),
        "GPU memory is nearly full, so the allocator empties its cache and tries again",
        "log torch.cuda.memory_stats()['num_alloc_retries'] per rank and step; is device memory nearly full?",
    ),
    CauseSpec(
        "communication_misconfiguration",
        "communication",
        "infrastructure",
        ("transfer",),
        (),
        "the collectives take a wrong route or transport, such as one adapter for two GPUs, or TCP sockets",
        "start with NCCL_DEBUG=INFO: which adapter and transport does each rank use (NET/IB or NET/Socket)?",
    ),
    CauseSpec(
        "recompilation",
        "host",
        "workload",
        ("forward", "backward"),
        (),
        "shapes of the input change, so the model is compiled again during the run",
        "run with TORCH_LOGS=recompiles: which shapes change at the long steps?",
        by_design=True,
    ),
    CauseSpec(
        "process_crash",
        "fail_stop",
        "either",
        (),
        (),
        "a process ended; its peers wait for it without end",
        "the rank's own log and exit code, dmesg on its node (OOM, Xid)",
    ),
    CauseSpec(
        "hang",
        "fail_stop",
        "either",
        (),
        ("stopped",),
        "a rank did not join a collective; all other ranks wait",
        "py-spy dump (or the flight recorder) on the named rank: in which call is it blocked?",
    ),
)


CAUSES: dict[str, CauseSpec] = {spec.id: spec for spec in _CATALOGUE}
#: The job is slow, and no cause of the catalogue certainly explains it.
UNKNOWN = "unknown"
#: Every id that a label or an answer may have.
SPECS: dict[str, CauseSpec] = CAUSES | {
    UNKNOWN: CauseSpec(
        UNKNOWN,
        "unknown",
        "either",
        (),
        (),
        "the job is slow, and no cause of the catalogue certainly explains it",
        "run one test on its machine and on a fast peer: does the machine or the work stay slow?",
    )
}
SLOW_CAUSES = tuple(spec.id for spec in _CATALOGUE if spec.type != "fail_stop")
STOP_CAUSES = tuple(spec.id for spec in _CATALOGUE if spec.type == "fail_stop")
STRAGGLER_TYPES: tuple[StragglerType, ...] = get_args(StragglerType)
#: Cause -> the evidence resources of which at least one has to change. Causes that only a phase or the job's
#: layout defines are absent.
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
    "allocator_retries": ("device_memory",),
}


def pattern_of(cause: str, *, ends_inside: bool) -> Pattern:
    """Pattern of a straggler: transient, persistent or deterministic [1]_.

    Parameters
    ----------
    cause : str
        Catalogue id, or ``unknown``.
    ends_inside : bool
        Whether it ends before the window ends. Its begin does not matter: windows begin anywhere.

    References
    ----------
    .. [1] AntDT, arXiv 2404.09679: transient and persistent contention, deterministic heterogeneity.
    """
    if ends_inside:
        return "transient"
    return "deterministic" if SPECS[cause].by_design else "persistent"
