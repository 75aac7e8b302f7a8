"""Text of /proc and of control groups to numbers. Pure functions, one per file format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
_MICROSECOND, _NANOSECOND = 1e-6, 1e-9
_SECTOR_BYTES = 512
_CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_INTERFACE_COUNTERS = {
    "receive_bytes": 0,
    "receive_packets": 1,
    "receive_errs": 2,
    "receive_drop": 3,
    "transmit_bytes": 8,
    "transmit_packets": 9,
    "transmit_errs": 10,
    "transmit_drop": 11,
}


@dataclass(frozen=True)
class ProcessStat:
    """What ``/proc/PID/stat`` says.

    Attributes
    ----------
    state : str
        ``R`` running, ``S`` sleeping, ``D`` waiting for a disk, ``T`` stopped, ``Z`` ended.
    """

    state: str
    minor_faults: int
    major_faults: int
    user_seconds: float
    system_seconds: float
    resident_pages: int


def process_stat(text: str) -> ProcessStat:
    """Parse ``/proc/PID/stat``; the command's name may hold spaces and parentheses."""
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(
        state=fields[0],
        minor_faults=int(fields[7]),
        major_faults=int(fields[9]),
        user_seconds=int(fields[11]) * _TICK,
        system_seconds=int(fields[12]) * _TICK,
        resident_pages=int(fields[21]),
    )


def schedstat(text: str) -> tuple[float, float, int]:
    """Seconds on a CPU, seconds runnable but waiting for one, and time slices of one thread."""
    running, waiting, slices = text.split()
    return int(running) * _NANOSECOND, int(waiting) * _NANOSECOND, int(slices)


def context_switches(text: str) -> tuple[int, int]:
    """Voluntary and forced switches from ``/proc/PID/status``."""
    values = keyed(text, ":")
    return int(values["voluntary_ctxt_switches"]), int(values["nonvoluntary_ctxt_switches"])


def pressure(text: str) -> dict[str, float]:
    """Seconds stalled, ``some`` and ``full``, from a pressure file."""
    totals = {}
    for line in text.splitlines():
        kind, *_, total = line.split()
        totals[kind] = int(total.removeprefix("total=")) * _MICROSECOND
    return totals


def keyed(text: str, separator: str | None = None) -> dict[str, str]:
    """Lines of ``name value``; what follows the first word of the value is dropped."""
    pairs = (line.split(separator, 1) for line in text.splitlines())
    return {pair[0].strip(): pair[1].split()[0] for pair in pairs if len(pair) == 2 and pair[1].split()}


def cpu_times(text: str) -> dict[str, dict[str, float]]:
    """Seconds per CPU (``0``, ``1``, ...; empty for all together) and mode, from ``/proc/stat``."""
    times = {}
    for line in text.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu"):
            held = {mode: int(ticks) * _TICK for mode, ticks in zip(_CPU_MODES, fields, strict=False)}
            times[name.removeprefix("cpu")] = held
    return times


def busy_seconds(modes: Mapping[str, float]) -> float:
    """Time that was neither idle nor waiting for a disk."""
    return sum(seconds for mode, seconds in modes.items() if mode not in ("idle", "iowait"))


def paired_counters(text: str) -> dict[str, int]:
    """``Tcp_RetransSegs`` and the like, from the two-line tables of ``/proc/net/snmp`` and ``netstat``."""
    counters: dict[str, int] = {}
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        prefix, *keys = names.split()
        held = values.split()[1:]
        counters |= {prefix.removesuffix(":") + "_" + k: int(v) for k, v in zip(keys, held, strict=True)}
    return counters


def interface_counters(text: str, interface: str) -> dict[str, int]:
    """Counters of one network interface from ``/proc/net/dev``; empty where it is not listed."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if rest and name.strip() == interface:
            fields = rest.split()
            return {key: int(fields[place]) for key, place in _INTERFACE_COUNTERS.items()}
    return {}


def disk_counters(text: str, disk: str) -> dict[str, float]:
    """Reads, bytes read, read seconds and busy seconds of one disk, from ``/proc/diskstats``."""
    for line in text.splitlines():
        fields = line.split()
        if fields[2] == disk:
            return {
                "reads_completed": float(fields[3]),
                "read_bytes": float(fields[5]) * _SECTOR_BYTES,
                "read_time_seconds": float(fields[6]) * 1e-3,
                "io_time_seconds": float(fields[12]) * 1e-3,
            }
    return {}


def group_cpu(text: str) -> dict[str, float]:
    """Seconds used (all, user, system) from a version 2 group's ``cpu.stat``."""
    values = keyed(text)
    return {
        name: int(values[f"{name}_usec"]) * _MICROSECOND
        for name in ("usage", "user", "system")
        if f"{name}_usec" in values
    }


def group_throttling(text: str) -> tuple[int, float] | None:
    """Throttled periods and seconds from ``cpu.stat`` of either version; None where it does not say."""
    values = keyed(text)
    if "nr_throttled" not in values:
        return None
    if "throttled_time" in values:
        return int(values["nr_throttled"]), int(values["throttled_time"]) * _NANOSECOND
    return int(values["nr_throttled"]), int(values["throttled_usec"]) * _MICROSECOND


def group_reads(text: str) -> dict[str, int]:
    """Bytes read per disk (``major:minor``) from ``io.stat`` or ``blkio.throttle.io_service_bytes``."""
    reads = {}
    for line in text.splitlines():
        device, *fields = line.split()
        if len(fields) == 2 and fields[0] == "Read":
            reads[device] = int(fields[1])
        for field in fields:
            if field.startswith("rbytes="):
                reads[device] = int(field.removeprefix("rbytes="))
    return reads
