"""Kernel counters of a rank's process, of its data loaders and of its container, with the exporters' names.

Each reading takes the whole process: all threads of it, or all children together. What a kernel does not have
is NaN.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from rca.collect.segments import Array
from rca.collect.timers import StepTimer

#: Name and device of each series; the device is the part of the rank, as in captures of the testbed.
SERIES: Final[tuple[tuple[str, str | None], ...]] = (
    ("process_cpu_seconds_total", "host/user"),
    ("process_cpu_seconds_total", "host/system"),
    ("process_context_switches_total", "host/voluntary"),
    ("process_context_switches_total", "host/nonvoluntary"),
    ("process_minor_page_faults_total", "host"),
    ("process_major_page_faults_total", "host"),
    ("process_schedstat_running_seconds_total", "host"),
    ("process_schedstat_waiting_seconds_total", "host"),
    ("process_resident_memory_bytes", "host"),
    ("process_io_read_bytes_total", "host"),
    ("python_gc_pause_seconds_total", None),
    ("python_gc_collections_total", None),
    ("process_cpu_seconds_total", "loader/user"),
    ("process_cpu_seconds_total", "loader/system"),
    ("process_major_page_faults_total", "loader"),
    ("process_schedstat_running_seconds_total", "loader"),
    ("process_schedstat_waiting_seconds_total", "loader"),
    ("process_io_read_bytes_total", "loader"),
    ("container_cpu_cfs_throttled_seconds_total", None),
    ("container_pressure_cpu_waiting_seconds_total", None),
    ("container_pressure_memory_waiting_seconds_total", None),
    ("container_pressure_io_waiting_seconds_total", None),
)
#: More threads and children are not read: a reading has to stay cheap.
MAX_THREADS, MAX_CHILDREN = 128, 16
_NAN: Final = float("nan")
_NANOSECOND: Final = 1e-9
_MICROSECOND: Final = 1e-6
_READ_BYTES: Final = 8192


class CollectorPauses:
    """Times Python's garbage collector; the pauses also go to a step timer.

    Attributes
    ----------
    collections : int
        Collections so far.
    """

    def __init__(self, timer: StepTimer, clock: Callable[[], float] = time.perf_counter) -> None:
        self._timer, self._clock = timer, clock
        self._began = 0.0
        self.collections = 0

    def start(self) -> None:
        gc.callbacks.append(self._observe)

    def stop(self) -> None:
        if self._observe in gc.callbacks:
            gc.callbacks.remove(self._observe)

    def _observe(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = self._clock()
        elif self._began:
            self._timer.collected += self._clock() - self._began
            self._began = 0.0
            self.collections += 1


class Counters:
    """Reads the counters of this process.

    Parameters
    ----------
    proc, groups : Path
        Where the kernel shows processes and control groups.
    """

    def __init__(
        self,
        timer: StepTimer,
        pauses: CollectorPauses,
        proc: Path = Path("/proc"),
        groups: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._timer, self._pauses = timer, pauses
        self._process = f"{proc}/self"
        self._proc = str(proc)
        self._group = _own_group(proc, groups)
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")

    def read(self) -> Array:
        """The values of `SERIES` now; NaN where the kernel has none."""
        return np.array([*self._own(), *self._loaders(), *self._container()])

    def _own(self) -> Iterator[float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield from (
            used.ru_utime,
            used.ru_stime,
            used.ru_nvcsw,
            used.ru_nivcsw,
            used.ru_minflt,
            used.ru_majflt,
        )
        yield from self._scheduled(self._process)
        pages = _text(f"{self._process}/statm").split()
        yield float(pages[1]) * self._page if len(pages) > 1 else _NAN
        yield _after(_text(f"{self._process}/io"), "\nread_bytes:")
        yield self._timer.collected
        yield float(self._pauses.collections)

    def _loaders(self) -> list[float]:
        """Sums over the direct children, which mostly are data loaders."""
        total = np.full(6, _NAN)
        for child in self._children():
            process = f"{self._proc}/{child}"
            stat = _text(f"{process}/stat").rpartition(")")[2].split()
            if len(stat) < 13:
                continue
            running, waiting = self._scheduled(process)
            read = _after(_text(f"{process}/io"), "\nread_bytes:")
            user, system, faults = int(stat[11]) * self._tick, int(stat[12]) * self._tick, float(stat[9])
            held = np.array([user, system, faults, running, waiting, read])
            total = np.where(np.isnan(total), held, total + np.nan_to_num(held))
        return [float(value) for value in total]

    def _children(self) -> list[str]:
        found: list[str] = []
        for thread in _entries(f"{self._process}/task")[:MAX_THREADS]:
            found += _text(f"{self._process}/task/{thread}/children").split()
        return found[:MAX_CHILDREN]

    def _scheduled(self, process: str) -> tuple[float, float]:
        """Seconds on a CPU and seconds waiting for one, over all threads: the kernel has them per thread."""
        running = waiting = 0
        known = False
        for thread in _entries(f"{process}/task")[:MAX_THREADS]:
            values = _text(f"{process}/task/{thread}/schedstat").split()
            if len(values) >= 2:
                running, waiting, known = running + int(values[0]), waiting + int(values[1]), True
        return (running * _NANOSECOND, waiting * _NANOSECOND) if known else (_NAN, _NAN)

    def _container(self) -> Iterator[float]:
        if self._group is None:
            yield from [_NAN] * 4
            return
        yield _after("\n" + _text(f"{self._group}/cpu.stat"), "\nthrottled_usec ") * _MICROSECOND
        for kind in ("cpu", "memory", "io"):
            some = _text(f"{self._group}/{kind}.pressure").partition("\n")[0]
            yield _after(some, "total=") * _MICROSECOND


def _own_group(proc: Path, groups: Path) -> str | None:
    """The process's group of version 2; None without one, and in the root group: that is the machine."""
    for line in _text(f"{proc}/self/cgroup").splitlines():
        if line.startswith("0::"):
            path = f"{groups}/{line[3:].strip('/')}".rstrip("/")
            return path if _text(f"{path}/cgroup.type") else None
    return None


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 -- called often
    except OSError:
        return []


def _text(path: str) -> str:
    """The begin of a file of the kernel; empty if it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(handle, _READ_BYTES).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(handle)


def _after(text: str, name: str) -> float:
    """The number that follows a name; NaN without it."""
    words = text.partition(name)[2].split(None, 1)
    try:
        return float(words[0]) if words else _NAN
    except ValueError:
        return _NAN
