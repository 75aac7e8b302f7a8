"""Signals of one rank's processes and container: process exporters, cAdvisor, Python's collector."""

from __future__ import annotations

from functools import partial

from rca.telemetry.catalogue.signal import Signal, unused

_count = partial(Signal, kind="counter", combine="sum")
_worse = partial(_count, worse="higher")
_pressure = partial(Signal, unit="s", kind="counter", combine="max", worse="higher")
_GROUP = "namedprocess_namegroup_"

SIGNALS: tuple[Signal, ...] = (
    _count(
        "process_cpu_seconds_total",
        "process_cpu",
        "CPU time used",
        "s",
        split="cpu",
        aliases=(_GROUP + "cpu_seconds_total",),
    ),
    _worse(
        "process_schedstat_waiting_seconds_total",
        "runqueue_wait",
        "time runnable but not running",
        "s",
        split="runqueue_wait",
        aliases=(_GROUP + "schedstat_waiting_seconds_total",),
    ),
    _count(
        "process_schedstat_running_seconds_total",
        "process_running_time",
        "time on a CPU",
        "s",
        split="running_time",
        aliases=(_GROUP + "schedstat_running_seconds_total",),
    ),
    Signal(
        "process_context_switches_total",
        None,
        "context switches, forced or by waiting",
        "switches",
        "counter",
        "sum",
        "either",
        aliases=(_GROUP + "context_switches_total",),
        modes={
            "voluntary": "ctx_voluntary",
            "nonvoluntary": "ctx_involuntary",
            "involuntary": "ctx_involuntary",
        },
    ),
    _worse(
        "process_major_page_faults_total",
        "major_faults",
        "page faults that read from disk",
        "faults",
        split="major_faults",
        aliases=(_GROUP + "major_page_faults_total",),
    ),
    _count(
        "process_minor_page_faults_total",
        "minor_faults",
        "page faults served from memory",
        "faults",
        split="minor_faults",
        aliases=(_GROUP + "minor_page_faults_total",),
    ),
    Signal("process_resident_memory_bytes", "resident_memory", "memory held", "B", combine="sum"),
    _count(
        "process_io_read_bytes_total",
        "process_reads",
        "bytes read from storage",
        "B",
        split="reads",
        aliases=(_GROUP + "read_bytes_total",),
    ),
    Signal(
        "process_state_running",
        "process_running",
        "share of looks that found it runnable",
        "ratio",
        combine="max",
        split="running",
    ),
    Signal(
        "process_state_stopped",
        "process_stopped",
        "share of looks that found it stopped",
        "ratio",
        combine="max",
        worse="higher",
        split="stopped",
    ),
    _worse("python_gc_pause_seconds_total", "gc_pause", "time in the garbage collector", "s"),
    Signal(
        "python_gc_collections_total",
        "gc_collections",
        "collections; generations overlap their total",
        "collections",
        "counter",
        "max",
        "higher",
    ),
    _count("container_cpu_usage_seconds_total", "container_cpu", "CPU time used", "s", split="container_cpu"),
    _worse(
        "container_cpu_cfs_throttled_seconds_total", "cpu_throttled", "time held back by a CPU quota", "s"
    ),
    _count(
        "container_fs_reads_bytes_total",
        "container_reads",
        "bytes read from storage",
        "B",
        split="container_reads",
    ),
    _pressure(
        "container_pressure_cpu_waiting_seconds_total",
        "container_psi_cpu",
        "time some task waited for a CPU",
        split="psi_cpu",
    ),
    _pressure(
        "container_pressure_memory_waiting_seconds_total",
        "container_psi_mem",
        "time some task waited for memory",
        split="psi_mem",
    ),
    _pressure(
        "container_pressure_io_waiting_seconds_total",
        "container_psi_io",
        "time some task waited for I/O",
        split="psi_io",
    ),
    *unused(
        "container_cpu_cfs_throttled_periods_total",
        "container_cpu_cfs_periods_total",
        "container_cpu_system_seconds_total",
        "container_cpu_user_seconds_total",
        "container_pressure_cpu_stalled_seconds_total",
        "container_pressure_memory_stalled_seconds_total",
        "container_pressure_io_stalled_seconds_total",
        "container_memory_working_set_bytes",
        "container_memory_usage_bytes",
        "container_memory_rss",
        "container_fs_writes_bytes_total",
        "container_fs_reads_total",
        "container_network_receive_bytes_total",
        "container_network_transmit_bytes_total",
        "container_last_seen",
        meaning="a part or a copy of the container channels",
    ),
    *unused(
        "process_schedstat_timeslices_total",
        "process_io_syscr_total",
        "process_io_write_bytes_total",
        "process_virtual_memory_bytes",
        "process_start_time_seconds",
        "process_open_fds",
        "process_max_fds",
        "process_threads",
        "python_gc_objects_collected_total",
        "python_gc_objects_uncollectable_total",
        "python_info",
        meaning="does not tell a slow process from a busy one",
    ),
)
