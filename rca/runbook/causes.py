"""What each catalogue cause means, in one line for a person who did not write the catalogue."""

from __future__ import annotations

MEANING: dict[str, str] = {
    "gpu_throttling": "the GPU runs below its clock (heat, power cap or a hardware slowdown)",
    "gpu_contention": "another process computes on the same GPU",
    "gpu_memory_errors": "the GPU's memory reports errors or its driver an Xid",
    "pcie_degradation": "the PCIe link between host and GPU runs narrower or slower than it can",
    "nvlink_degradation": "NVLink between GPUs of one node reports errors or moves less",
    "nic_degradation": "the node's network link loses, repeats or limits traffic",
    "network_congestion": "the fabric between many nodes is full; no single link is at fault",
    "cpu_contention": "other work takes the node's CPU, so kernels are launched late",
    "memory_pressure": "the node runs short of memory and stalls to reclaim it",
    "data_loader_stall": "the input pipeline delivers batches late",
    "storage_degradation": "the storage behind the input is slow for every rank of the node",
    "runtime_gc": "the interpreter's garbage collection pauses the step",
    "stage_imbalance": "one pipeline stage holds more work than the others",
    "sequence_length_imbalance": "batches hold sequences of uneven length, another rank each step",
    "checkpoint_stall": "writing checkpoints holds up the step",
    "process_crash": "the process ended; its peers wait for it",
    "hang": "a rank never joined the last collective; all the others wait for it",
    "unknown": "slow, and nothing in the catalogue explains it",
}


def meaning(cause: str) -> str:
    """One line on `cause`; empty for an id newer than this table."""
    return MEANING.get(cause, "")
