"""Per-rank counters: the process, its control group, its Python runtime."""

from __future__ import annotations

import numpy as np

from rca.simulation.collector import Collector
from rca.simulation.exporters.node import host_cores
from rca.simulation.resources import FloatArray
from rca.simulation.world import World


def _queueing(world: World) -> FloatArray:
    """Run-queue waiting per second, (n_ranks, n_segments); follows the work done unless strangers intrude."""
    share = world.scenario.workload.run_queue_share
    calm = np.clip(world.scenario.workload.step_seconds * world.pace, 0, 1.2)
    queue = world.state("run_queue")
    # Where strangers hold the core a host waits nearly always, however little it has to do.
    crowded = np.clip((queue - share) / 0.25, 0, 1) * (1 - world.stands_still)
    return np.clip((1 - crowded) * share * calm + crowded * queue, 0, 1)


def process(world: World, out: Collector) -> None:
    """CPU time, run queue, switches, faults and state of host and loader processes."""
    user, system = host_cores(world)
    loader_cpu, share = world.state("loader_cpu"), world.scenario.workload.run_queue_share
    waiting, calm = _queueing(world), world.scenario.workload.step_seconds * world.pace
    ones = np.ones_like(waiting)
    pauses = world.state("gc") / world.duration
    for mode, rate in (("user", user - loader_cpu), ("system", system)):
        out.counter("process_cpu_seconds_total", "rank", rate, device=f"host/{mode}", quantum=0.01)
    loader_user = 0.004 * calm + loader_cpu
    out.counter("process_cpu_seconds_total", "rank", loader_user, device="loader/user", quantum=0.01)
    running = "process_schedstat_running_seconds_total"
    out.counter(running, "rank", user - loader_cpu + system, device="host", quantum=1e-6)
    out.counter(running, "rank", loader_user, device="loader", quantum=1e-6)
    queued = "process_schedstat_waiting_seconds_total"
    out.counter(queued, "rank", waiting, device="host", quantum=1e-6, noise=0.1)
    # A quota, and strangers on the core, hold for the loader as well.
    held = 0.15 * np.clip(world.state("quota"), 0, 1) + 0.1 * np.maximum(world.state("run_queue") - share, 0)
    fought = 0.02 * calm + 0.35 * np.minimum(loader_cpu, 1) + held
    out.counter(queued, "rank", fought, device="loader", quantum=1e-6, noise=0.1)
    switches = "process_context_switches_total"
    out.counter(switches, "rank", 1220 * calm * ones, device="host/nonvoluntary", quantum=1)
    out.counter(switches, "rank", 1730 * calm * ones, device="host/voluntary", quantum=1)
    reading = 4.5e6 * calm * ones
    out.counter("process_io_read_bytes_total", "rank", reading, device="loader", quantum=512)
    collecting = np.where(pauses > 0.01, 1.0, 0.0)
    minor = 35 * calm + 15000 * pauses
    out.counter("process_minor_page_faults_total", "rank", minor, device="host", quantum=1, noise=0.3)
    major = 40 * np.clip(world.state("memory_stall"), 0, 1)[world.node_of] + world.state("major_faults")
    out.counter("process_major_page_faults_total", "rank", major, device="host", quantum=1, noise=0.4)
    grown = 1.935e8 * (1 + 0.3 * np.cumsum(collecting, axis=1) / max(1, world.n_segments))
    out.gauge(
        "process_resident_memory_bytes", "rank", grown, device="host", quantum=4096, noise=2e-4, dead=0.0
    )
    _running(world, out, calm * ones)
    out.gauge("process_state_stopped", "rank", _stopped(world), device="host", noise=0.0, dead=0.0)


def _running(world: World, out: Collector, calm: FloatArray) -> None:
    """Whether processes are there, or how often a look finds them on a core: mostly they sleep."""
    sampled = world.scenario.telemetry.states_sampled
    level, noise = (0.08 * calm, 0.4) if sampled else (np.ones_like(calm), 0.0)
    for process in ("host", "loader"):
        out.gauge("process_state_running", "rank", level, device=process, noise=noise, dead=0.0)


def _stopped(world: World) -> FloatArray:
    """Mark hung processes that a signal stopped; a deadlock shows nothing here."""
    stopped = np.zeros_like(world.waiting)
    stop = world.resources.stop
    if stop is not None and stop.kind == "hang" and stop.variant == "stopped":
        stopped[list(stop.ranks), world.n_run :] = 1.0
    return stopped


def container(world: World, out: Collector) -> None:
    """Record the control group: quota, pressure, reads."""
    user, system = host_cores(world)
    waiting, calm = _queueing(world), world.scenario.workload.step_seconds * world.pace
    quota = np.clip(world.state("quota"), 0, 1)
    out.counter("container_cpu_usage_seconds_total", "rank", user + system, quantum=1e-6)
    out.counter("container_cpu_cfs_throttled_seconds_total", "rank", quota, quantum=1e-6, noise=0.1)
    periods = 50 * (quota > 0) * np.ones_like(quota)
    out.counter("container_cpu_cfs_throttled_periods_total", "rank", periods, quantum=1, noise=0.05)
    pressed = np.clip(0.78 * waiting + quota, 0, 1)
    out.counter("container_pressure_cpu_waiting_seconds_total", "rank", pressed, quantum=1e-6, noise=0.1)
    out.counter("container_pressure_cpu_stalled_seconds_total", "rank", 0.85 * pressed, quantum=1e-6)
    stalled = np.clip(world.state("disk_stall"), 0, 1)[world.node_of]
    # A throttled reader is under pressure all the time it wants data, which is nearly always.
    thrashing = np.clip((world.state("table_stall") + world.state("host_stall")) / world.duration, 0, 1)
    thrashing = np.where(world.state("major_faults") > 0, thrashing, 0.0)
    io = np.clip(0.008 * calm + stalled + 0.5 * thrashing, 0, 1)
    out.counter("container_pressure_io_waiting_seconds_total", "rank", io, quantum=1e-6, noise=0.2)
    short = np.clip(np.clip(world.state("memory_stall"), 0, 1)[world.node_of] + 0.03 * thrashing, 0, 1)
    out.counter("container_pressure_memory_waiting_seconds_total", "rank", short, quantum=1e-6, noise=0.2)
    reading = 4.5e6 * calm * np.ones_like(waiting) + 3e4 * world.state("major_faults")
    out.counter("container_fs_reads_bytes_total", "rank", reading, device="254:0", quantum=512)


def python(world: World, out: Collector) -> None:
    """Record the collector's own account."""
    pauses = world.state("gc") / world.duration
    calm = world.scenario.workload.step_seconds * world.pace
    out.counter("python_gc_pause_seconds_total", "rank", 1e-4 * calm + pauses, quantum=1e-6, noise=0.1)
    runs = 0.65 * calm + np.where(pauses > 0, 8 + 600 * pauses, 0.0)
    out.counter("python_gc_collections_total", "rank", runs, quantum=1, noise=0.1)
    out.counter("python_gc_objects_collected_total", "rank", 480 * calm * np.ones_like(pauses), quantum=1)
