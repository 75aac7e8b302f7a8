"""Counters of hosts: control groups of ranks and nodes, the whole machine, and single processes."""

from __future__ import annotations

from pathlib import Path

from rca.lab.testbed.cgroups import Groups
from rca.lab.testbed.names import node_name
from rca.lab.testbed.sampling import parsers
from rca.lab.testbed.sampling.series import Series

RESOURCES = ("cpu", "memory", "io")
PROC = Path("/proc")
_PAGE_BYTES = 4096


def sample_rank_groups(series: Series, time: float, groups: Groups, node: int, rank: int) -> None:
    """Append the counters of the rank's groups, with cAdvisor's names."""
    name = node_name(node)
    unified = groups.path("unified", node, rank)
    values = {} if unified is None else pressures(unified, "container_pressure")
    if unified is not None:
        used = parsers.group_cpu((unified / "cpu.stat").read_text())
        values |= {"container_cpu_usage_seconds_total": used["usage"]} if used else {}
    limited = groups.path("cpu", node, rank)
    held = None if limited is None else parsers.group_throttling((limited / "cpu.stat").read_text())
    if held is not None:
        values["container_cpu_cfs_throttled_periods_total"] = held[0]
        values["container_cpu_cfs_throttled_seconds_total"] = held[1]
    series.add(time, values, node=name, rank=rank)
    for device, count in _reads(groups, node, rank).items():
        reads = {"container_fs_reads_bytes_total": float(count)}
        series.add(time, reads, node=name, rank=rank, device=device)


def sample_node_groups(series: Series, time: float, groups: Groups, node: int) -> None:
    """Append the counters of the node's groups, with the node exporter's names."""
    unified = groups.path("unified", node)
    if unified is None:
        return
    series.add(time, pressures(unified, "node_pressure"), node=node_name(node))
    used = parsers.group_cpu((unified / "cpu.stat").read_text())
    for mode in ("user", "system"):
        if mode in used:
            cpu = {"node_cpu_seconds_total": used[mode]}
            series.add(time, cpu, node=node_name(node), device=mode)


def pressures(folder: Path, prefix: str, suffix: str = ".pressure") -> dict[str, float]:
    """Stall times of a group (or of the machine, with ``/proc/pressure`` and no suffix)."""
    values = {}
    for resource in RESOURCES:
        file = folder / f"{resource}{suffix}"
        if not file.exists():
            continue
        totals = parsers.pressure(file.read_text())
        values[f"{prefix}_{resource}_waiting_seconds_total"] = totals.get("some", 0.0)
        values[f"{prefix}_{resource}_stalled_seconds_total"] = totals.get("full", 0.0)
    return values


def _reads(groups: Groups, node: int, rank: int) -> dict[str, int]:
    folder = groups.path("blkio", node, rank)
    if folder is None:
        return {}
    v2 = groups.hierarchies.is_v2("blkio")
    return parsers.group_reads(
        (folder / ("io.stat" if v2 else "blkio.throttle.io_service_bytes")).read_text()
    )


def sample_machine(series: Series, time: float, disk: str | None, proc: Path = PROC) -> None:
    """Append the machine's CPU, memory, pressure and disk counters."""
    stat = (proc / "stat").read_text()
    for cpu, modes in parsers.cpu_times(stat).items():
        for mode, seconds in modes.items() if cpu else ():
            series.add(time, {"node_cpu_seconds_total": seconds}, device=f"{cpu}/{mode}")
    memory = parsers.keyed((proc / "meminfo").read_text(), ":")
    virtual = parsers.keyed((proc / "vmstat").read_text())
    values: dict[str, float] = {
        "node_load1": float((proc / "loadavg").read_text().split()[0]),
        "node_context_switches_total": float(parsers.keyed(stat)["ctxt"]),
    }
    for key in ("MemTotal", "MemFree", "MemAvailable"):
        values[f"node_memory_{key}_bytes"] = 1024.0 * int(memory[key])
    for key in ("pgmajfault", "pgscan_direct", "pgsteal_direct"):
        if key in virtual:
            values[f"node_vmstat_{key}"] = float(virtual[key])
    series.add(time, values | pressures(proc / "pressure", "node_pressure", suffix=""))
    if disk is not None:
        held = parsers.disk_counters((proc / "diskstats").read_text(), disk)
        series.add(time, {f"node_disk_{key}_total": value for key, value in held.items()}, device=disk)


def sample_process(
    series: Series, time: float, pid: int, role: str, *, node: str, rank: int, proc: Path = PROC
) -> None:
    """Append the counters of a process; nothing if it has ended."""
    folder = proc / str(pid)
    try:
        stat = parsers.process_stat((folder / "stat").read_text())
        running, waiting, slices, switches = _threads(folder)
        reads = parsers.keyed((folder / "io").read_text(), ":")
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return
    series.add(
        time,
        {
            "process_schedstat_running_seconds_total": running,
            "process_schedstat_waiting_seconds_total": waiting,
            "process_schedstat_timeslices_total": slices,
            "process_minor_page_faults_total": stat.minor_faults,
            "process_major_page_faults_total": stat.major_faults,
            "process_resident_memory_bytes": stat.resident_pages * _PAGE_BYTES,
            "process_io_read_bytes_total": int(reads["read_bytes"]),
            "process_state_running": stat.state == "R",
            "process_state_stopped": stat.state in "Tt",
        },
        node=node,
        rank=rank,
        device=role,
    )
    for mode, seconds in (("user", stat.user_seconds), ("system", stat.system_seconds)):
        cpu = {"process_cpu_seconds_total": seconds}
        series.add(time, cpu, node=node, rank=rank, device=f"{role}/{mode}")
    for kind, count in zip(("voluntary", "nonvoluntary"), switches, strict=True):
        counted = {"process_context_switches_total": count}
        series.add(time, counted, node=node, rank=rank, device=f"{role}/{kind}")


def _threads(folder: Path) -> tuple[float, float, int, tuple[int, int]]:
    """Sums over the process's threads: the kernel has these values per thread only."""
    running = waiting = 0.0
    slices = voluntary = forced = 0
    for task in (folder / "task").iterdir():
        try:
            held = parsers.schedstat((task / "schedstat").read_text())
            switches = parsers.context_switches((task / "status").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
        running, waiting, slices = running + held[0], waiting + held[1], slices + held[2]
        voluntary, forced = voluntary + switches[0], forced + switches[1]
    return running, waiting, slices, (voluntary, forced)
