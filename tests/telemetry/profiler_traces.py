"""Profiler traces of a job with known work and waits, written as PyTorch writes them."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rca.arrays import FloatArray

#: Unix seconds.
BEGIN = 1_790_000_000.0
TRANSFER = 2.0e-3
TAIL = 1.0e-3


@dataclass(frozen=True)
class Job:
    """A data-parallel job: each step has rounds of work, each with an all-reduce after it.

    Attributes
    ----------
    work : ndarray of shape (n_ranks, n_steps, n_rounds), seconds
    clock : ndarray of shape (n_ranks,), seconds
        Ahead of the first rank's clock.
    """

    work: FloatArray
    clock: FloatArray

    def arrivals(self) -> tuple[FloatArray, FloatArray]:
        """Start and end of each collective on the first rank's clock, (n_ranks, n_steps, n_rounds)."""
        n_ranks, n_steps, n_rounds = self.work.shape
        start, end = np.zeros(self.work.shape), np.zeros(self.work.shape)
        now = np.full(n_ranks, BEGIN)
        for step in range(n_steps):
            for number in range(n_rounds):
                start[:, step, number] = now + self.work[:, step, number]
                now = np.full(n_ranks, start[:, step, number].max() + TRANSFER)
                end[:, step, number] = now
            now = now + TAIL
        return start, end


def job(n_ranks: int = 4, n_steps: int = 3, n_rounds: int = 3, seed: int = 0) -> Job:
    """A healthy job."""
    draw = np.random.default_rng(seed)
    usual = np.linspace(4e-3, 9e-3, n_rounds)
    return Job(usual + draw.normal(0.0, 5e-5, (n_ranks, n_steps, n_rounds)), np.zeros(n_ranks))


def events(
    made: Job, rank: int, *, base: float = 0.0, kernel: str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
) -> list[dict[str, Any]]:
    """Events of one rank; times are microseconds since `base`."""
    start, end = (times + made.clock[rank] for times in made.arrivals())
    found: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "ts": 0, "args": {"name": "python"}}
    ]

    def add(category: str, name: str, at: float, length: float, **args: object) -> None:
        found.append(
            {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": (at - base) * 1e6,
             "dur": length * 1e6, "args": args}
        )  # fmt: skip

    for step in range(made.work.shape[1]):
        first = (BEGIN + made.clock[rank]) if step == 0 else float(end[rank, step - 1, -1]) + TAIL
        length = float(end[rank, step, -1]) + TAIL - first
        add("user_annotation", f"ProfilerStep#{10 + step}", first, length)
        add("user_annotation", "enumerate(DataLoader)#_Iter.__next__", first, 5e-4)
        add("cpu_op", "aten::mm", first, 1e-5)
        add("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", first + 6e-4, 2e-4)
        for number in range(made.work.shape[2]):
            at = float(start[rank, step, number])
            add("kernel", "gemm", at - 1e-3, 9e-4, stream=7)
            add("kernel", f"{kernel}(ncclDevComm*)", at, float(end[rank, step, number]) - at, stream=20)
    found.append({"name": "Record Window End", "ph": "i", "s": "g", "ts": 0, "args": {}})
    return found


def document(made: Job, rank: int, *, base: float = 0.0, **members: object) -> dict[str, Any]:
    """A whole trace of one rank."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": made.work.shape[0]},
        **({"baseTimeNanoseconds": int(base * 1e9)} if base else {}),
        "traceEvents": events(made, rank, base=base),
        "traceName": "trace.json",
        **members,
    }


def write(folder: Path, made: Job, *, packed: bool = False, base: float = 0.0) -> Path:
    """Write one file per rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(made.work.shape[0]):
        text = json.dumps(document(made, rank, base=base), indent=1).encode()
        if packed:
            (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(text))
        else:
            (folder / f"rank{rank}.json").write_bytes(text)
    return folder
