"""Clocks and gauges: repeated timing, peak memory, one core for everything."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Budget:
    """How long one measurement may go on: until `seconds` are spent, within a number of runs."""

    seconds: float = 5.0
    least: int = 5
    most: int = 300

    def spent(self, started: float, runs: int) -> bool:
        """Whether to stop after `runs` runs since `started` (of `time.perf_counter`)."""
        return runs >= self.most or (runs >= self.least and time.perf_counter() - started > self.seconds)


def repeat(run: Callable[[], Any], budget: Budget) -> list[float]:
    """Seconds of every call of `run`."""
    taken: list[float] = []
    started = time.perf_counter()
    while not budget.spent(started, len(taken)):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return taken


def summary(taken: list[float]) -> dict[str, float]:
    """Median, 99th percentile (the largest, below a hundred runs), least and number of runs; seconds."""
    p99 = np.quantile(taken, 0.99, method="higher")
    return {"p50": float(np.median(taken)), "p99": float(p99), "least": min(taken), "runs": len(taken)}


def peak_memory(process: int | str = "self") -> int:
    """Largest resident size that a process has had, bytes.

    From the kernel's own gauge: ``getrusage`` inherits the parent's peak across ``exec``.
    """
    return _status(process, "VmHWM")


def memory(process: int | str = "self") -> int:
    """Resident size of a process now, bytes."""
    return _status(process, "VmRSS")


def proportional_memory(process: int | str = "self") -> int:
    """Resident size of a process now, pages shared with others divided among them; bytes."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no Pss in /proc/{process}/smaps_rollup")


def _status(process: int | str, field: str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/{process}/status")


def processor_seconds(process: int) -> float:
    """Processor time of a process so far, in the kernel and outside."""
    user, system = _stat(Path(f"/proc/{process}"))[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def child_processes(parent: int | None = None) -> list[int]:
    """Child processes of this process, or of the given one."""
    parent = os.getpid() if parent is None else parent
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(_stat(entry)[1]) == parent:
                found.append(int(entry.name))
        except OSError:  # It ended while we looked.
            continue
    return found


def _stat(entry: Path) -> list[str]:
    # The name in the second field is in parentheses and may hold blanks.
    return (entry / "stat").read_text().rpartition(")")[2].split()


def pin_to_one_core() -> int:
    """Keep this process, and every one it starts, on one core; return which."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def machine() -> str:
    """Processor and versions in one line."""
    from importlib.metadata import version

    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "pyarrow", "orjson", "lightgbm"))
    processor = names[0] if names else platform.machine()
    return f"{processor}; Python {platform.python_version()}, {packages}"
