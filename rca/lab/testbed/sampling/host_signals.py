"""Counters of hosts: control groups of ranks and nodes, the whole machine, and single processes."""

from __future__ import annotations

from pathlib import Path

from rca.lab.testbed.cgroups import ControlGroups
from rca.lab.testbed.names import node_name
from rca.lab.testbed.sampling import parsers
from rca.lab.testbed.sampling.series import Series

RESOURCES = ("cpu", "memory", "io")
PROC = Path("/proc")
#: Time of guests is part of the user time.
CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def sample_rank_groups(series: Series, time: float, groups: ControlGroups, node: int, rank: int) -> None:
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


def sample_node_groups(series: Series, time: float, groups: ControlGroups, node: int) -> None:
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


def _reads(groups: ControlGroups, node: int, rank: int) -> dict[str, int]:
    folder = groups.path("blkio", node, rank)
    if folder is None:
        return {}
    v2 = groups.hierarchies.is_v2("blkio")
    return parsers.group_reads(
        (folder / ("io.stat" if v2 else "blkio.throttle.io_service_bytes")).read_text()
    )


def sample_machine(series: Series, time: float, disk: str | None) -> None:
    """Append the machine's CPU, memory, pressure and disk counters."""
    import psutil

    for cpu, times in enumerate(psutil.cpu_times(percpu=True)):
        for mode in CPU_MODES:
            series.add(time, {"node_cpu_seconds_total": getattr(times, mode)}, device=f"{cpu}/{mode}")
    memory = psutil.virtual_memory()
    events = parsers.keyed((PROC / "vmstat").read_text())
    values: dict[str, float] = {
        "node_load1": psutil.getloadavg()[0],
        "node_context_switches_total": psutil.cpu_stats().ctx_switches,
        "node_memory_MemTotal_bytes": memory.total,
        "node_memory_MemFree_bytes": memory.free,
        "node_memory_MemAvailable_bytes": memory.available,
    }
    for key in ("pgmajfault", "pgscan_direct", "pgsteal_direct"):
        if key in events:
            values[f"node_vmstat_{key}"] = float(events[key])
    series.add(time, values | pressures(PROC / "pressure", "node_pressure", suffix=""))
    disks = {} if disk is None else psutil.disk_io_counters(perdisk=True, nowrap=False)
    if disk in disks:
        held = disks[disk]
        reads = {
            "node_disk_reads_completed_total": held.read_count,
            "node_disk_read_bytes_total": held.read_bytes,
            "node_disk_read_time_seconds_total": held.read_time * 1e-3,
            "node_disk_io_time_seconds_total": held.busy_time * 1e-3,
        }
        series.add(time, reads, device=disk)


def sample_process(series: Series, time: float, pid: int, role: str, *, node: str, rank: int) -> None:
    """Append the counters of a process; nothing if it has ended."""
    import psutil

    folder = PROC / str(pid)
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            cpu, state = process.cpu_times(), process.status()
            resident, read = process.memory_info().rss, process.io_counters().read_bytes
        minor, major = parsers.page_faults((folder / "stat").read_text())
        running, waiting, slices, switches = _threads(folder)
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return
    values = {
        "process_schedstat_running_seconds_total": running,
        "process_schedstat_waiting_seconds_total": waiting,
        "process_schedstat_timeslices_total": slices,
        "process_minor_page_faults_total": minor,
        "process_major_page_faults_total": major,
        "process_resident_memory_bytes": resident,
        "process_io_read_bytes_total": read,
        "process_state_running": state == psutil.STATUS_RUNNING,
        "process_state_stopped": state in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP),
    }
    series.add(time, values, node=node, rank=rank, device=role)
    for mode, seconds in (("user", cpu.user), ("system", cpu.system)):
        used = {"process_cpu_seconds_total": seconds}
        series.add(time, used, node=node, rank=rank, device=f"{role}/{mode}")
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
