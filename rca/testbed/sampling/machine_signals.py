"""Counters of the whole machine, which belong to no single node."""

from __future__ import annotations

from pathlib import Path

from rca.testbed.sampling import parsers
from rca.testbed.sampling.group_signals import pressures
from rca.testbed.sampling.series import Series

PROC = Path("/proc")


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
