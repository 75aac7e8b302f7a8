"""Clocks, gauges and tables: repeated timing, memory of processes, what the machine is."""

from __future__ import annotations

import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

MIB = 1024**2
MAX_RUNS = 300
Found = TypeVar("Found")


def repeated(call: Callable[[], Found], seconds: float, least: int) -> list[Found]:
    """What a call gives, again and again for so many seconds, and at least so often."""
    found: list[Found] = []
    end = time.perf_counter() + seconds
    while len(found) < least or (time.perf_counter() < end and len(found) < MAX_RUNS):
        found.append(call())
    return found


def summary(taken: list[float]) -> dict[str, float]:
    """Median, 99th percentile (the largest, below a hundred runs), least and number of runs; seconds."""
    p99 = np.quantile(taken, 0.99, method="higher")
    return {"p50": float(np.median(taken)), "p99": float(p99), "least": min(taken), "runs": len(taken)}


def peak_memory(process: int | str = "self") -> int:
    """Largest resident size that a process has had, bytes.

    From the kernel's own gauge: ``getrusage`` inherits the parent's peak across ``exec``.
    """
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(re.findall(r"VmHWM:\s*(\d+)", status)[0])


def memory() -> int:
    """Resident size of this process now, bytes."""
    return int(psutil.Process().memory_info().rss)


def child_processes(parent: int | None = None) -> list[int]:
    """Child processes of this process, or of the given one."""
    return [each.pid for each in psutil.Process(parent).children()]


class BusyCores:
    """How many cores were busy since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), *self._spent()

    def others(self) -> float:
        """Cores that processes which are no children of this one kept busy, on average."""
        at, busy, own = self._began
        seconds, (busy_now, own_now) = time.perf_counter() - at, self._spent()
        return max(0.0, (busy_now - busy - own_now + own) / seconds)

    @staticmethod
    def _spent() -> tuple[float, float]:
        """Processor seconds of the machine, and of this process with those of its children that run."""
        times, mine = psutil.cpu_times(), psutil.Process()
        each = [one.cpu_times() for one in (mine, *mine.children(recursive=True))]
        return sum(times) - times.idle - times.iowait, sum(one.user + one.system for one in each)


def machine() -> str:
    """Processor and versions in one line."""
    names = re.findall(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "pyarrow", "orjson", "lightgbm"))
    return f"{[*names, platform.machine()][0]}; Python {platform.python_version()}, {packages}"


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; the first column is text, the others are numbers."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(str, row))
    console = Console(width=None if sys.stdout.isatty() else 210)
    console.print(table, soft_wrap=True)
