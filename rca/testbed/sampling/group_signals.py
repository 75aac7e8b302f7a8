"""Counters of control groups: a rank's container, a node's slice."""

from __future__ import annotations

from pathlib import Path

from rca.testbed.cgroups import Groups
from rca.testbed.names import node_name
from rca.testbed.sampling import parsers
from rca.testbed.sampling.series import Series

RESOURCES = ("cpu", "memory", "io")


def sample_rank_groups(series: Series, time: float, groups: Groups, node: int, rank: int) -> None:
    """Append what the rank's groups count, as cAdvisor names it."""
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
    """Append what the node's groups count, as the node exporter names it."""
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
