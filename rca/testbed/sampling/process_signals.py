"""Counters of one process: CPU, run-queue wait, faults, reads, state."""

from __future__ import annotations

from pathlib import Path

from rca.testbed.sampling import parsers
from rca.testbed.sampling.series import Series

PROC = Path("/proc")
_PAGE_BYTES = 4096


def sample_process(
    series: Series, time: float, pid: int, role: str, *, node: str, rank: int, proc: Path = PROC
) -> None:
    """Append what the kernel says about a process; nothing if it has ended."""
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
    """Sums over the process's threads: the kernel keeps these two per thread only."""
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
