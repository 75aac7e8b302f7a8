"""Per-rank counters: the process, its control group, its Python runtime."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.simulation.exporters.node import host_cores, thrashing
from rca.simulation.finished_run import World
from rca.simulation.machine_differences import is_so, level
from rca.simulation.scraping import Collector

# Bytes read back per major fault, on average: a page and what is read ahead of it.
PAGE = 6e3
# Share of the time in pauses from which on the collector does not keep up, and memory grows.
LEAKING = 0.05
# Of their waiting for a core, how much happens in the thread that a look at the state sees: host, loader.
SEEN_IN_LINE = (0.15, 0.8)


def _queueing(world: World) -> FloatArray:
    """Run-queue waiting per second, (n_ranks, n_segments); follows the work done unless strangers intrude."""
    share = world.scenario.workload.run_queue_share
    calm = np.clip(_calm(world), 0, 1.2) * _uneven(world)
    queue = world.state("run_queue")
    # Where strangers hold the core a host waits nearly always, however little it has to do.
    crowded = np.clip((queue - share) / 0.25, 0, 1) * (1 - world.stands_still)
    return np.clip((1 - crowded) * share * calm + crowded * queue + world.queued, 0, 1)


def _calm(world: World) -> FloatArray:
    """Work done per second, relative to an undisturbed job's, (n_segments,)."""
    return np.asarray(world.scenario.workload.step_seconds * world.pace)


def _uneven(world: World) -> FloatArray:
    """Factors on what ranks wait in run queues with threads that nobody waits for, (n_ranks, n_segments)."""
    spread = world.scenario.benign.queue_spread * np.sqrt(0.5)
    rng = np.random.default_rng([world.scenario.seed, 6])
    lasting = rng.normal(0, spread, (world.scenario.world_size, 1))
    return np.asarray(np.exp(lasting + rng.normal(0, spread, (world.scenario.world_size, world.n_segments))))


def process(world: World, out: Collector) -> None:
    """CPU time, run queue, switches, faults and state of host and loader processes."""
    user, system = host_cores(world)
    loader_cpu, calm = world.state("loader_cpu"), _calm(world)
    ones = np.ones_like(user)
    for mode, rate in (("user", user - loader_cpu), ("system", system)):
        out.counter("process_cpu_seconds_total", "rank", rate, device=f"host/{mode}", quantum=0.01)
    loader_user = _decoding(world) + loader_cpu
    out.counter("process_cpu_seconds_total", "rank", loader_user, device="loader/user", quantum=0.01)
    running = "process_schedstat_running_seconds_total"
    out.counter(running, "rank", user - loader_cpu + system, device="host", quantum=1e-6)
    out.counter(running, "rank", loader_user, device="loader", quantum=1e-6)
    queued = "process_schedstat_waiting_seconds_total"
    out.counter(queued, "rank", _queueing(world), device="host", quantum=1e-6, noise=0.1)
    out.counter(queued, "rank", _loader_queueing(world), device="loader", quantum=1e-6, noise=0.1)
    switches, read_back = "process_context_switches_total", world.state("major_faults")
    forced, asked = level(world, "forced", 250, 2500) * calm, level(world, "asked", 350, 3500) * calm
    out.counter(switches, "rank", forced * ones, device="host/nonvoluntary", quantum=1)
    out.counter(switches, "rank", asked + read_back, device="host/voluntary", quantum=1)
    reading = _wanted(world) * ones
    out.counter("process_io_read_bytes_total", "rank", reading, device="loader", quantum=512)
    out.counter("process_io_read_bytes_total", "rank", PAGE * read_back, device="host", quantum=512)
    _memory(world, out)
    _running(world, out, user - loader_cpu + system, loader_user)
    out.gauge("process_state_stopped", "rank", _stopped(world), device="host", noise=0.0, dead=0.0)


def _decoding(world: World) -> FloatArray:
    """Cores that loaders use without any fault, (n_ranks, n_segments): on clusters one feeds a whole GPU."""
    testbed = world.scenario.dialect == "cpu_testbed"
    usual = level(world, "loader", 0.002, 0.02 if testbed else 2.0)
    rng = np.random.default_rng([world.scenario.seed, 12])
    unequal = np.exp(rng.normal(0, 0.05 if testbed else 0.2, (world.scenario.world_size, 1)))
    return np.asarray(usual * unequal * _calm(world) * world.alive)


def _loader_queueing(world: World) -> FloatArray:
    """Run-queue waiting of loaders: a quota and strangers hold for them, too, sleepers wait for nothing."""
    share, decoding = world.scenario.workload.run_queue_share, np.minimum(world.state("loader_cpu"), 1)
    held = 0.15 * np.clip(world.state("quota"), 0, 1) + 0.1 * np.maximum(world.state("run_queue") - share, 0)
    awake = 1 - world.share("data_loading")
    usual = level(world, "loader wait", 0.012, 0.08) * _calm(world) * _uneven(world) ** 2
    return np.asarray(usual * awake**2 + 0.35 * decoding + held)


def _wanted(world: World) -> FloatArray:
    """Bytes per second that loaders read, (n_segments,)."""
    return np.asarray(level(world, "read", 2e6, 2e7) * _calm(world))


def _memory(world: World, out: Collector) -> None:
    """Page faults, which are many while a job begins, and what is resident."""
    pauses = world.state("gc") / world.duration
    fading = level(world, "new pages", 30, 1500) * np.exp(-np.arange(world.n_segments) / 8)
    minor = level(world, "minor", 8, 80) * _calm(world) + 15000 * pauses
    if world.scenario.first_step_number == 0:
        minor = minor + fading
    out.counter("process_minor_page_faults_total", "rank", minor, device="host", quantum=1, noise=0.3)
    major = 40 * np.clip(world.state("memory_stall"), 0, 1)[world.node_of] + world.state("major_faults")
    out.counter("process_major_page_faults_total", "rank", major, device="host", quantum=1, noise=0.4)
    collecting = np.where(pauses > LEAKING, 1.0, 0.0)
    grown = 1 + 0.3 * np.cumsum(collecting, axis=1) / max(1, world.n_segments)
    grown *= level(world, "resident", 1.5e8, 3e9)
    out.gauge(
        "process_resident_memory_bytes", "rank", grown, device="host", quantum=4096, noise=2e-4, dead=0.0
    )


def _running(world: World, out: Collector, host: FloatArray, loader: FloatArray) -> None:
    """Whether processes are there, or how often a look finds them on a core or in line for one."""
    sampled = world.scenario.telemetry.states_sampled
    seen = {
        "host": host + SEEN_IN_LINE[0] * _queueing(world),
        "loader": loader + SEEN_IN_LINE[1] * _loader_queueing(world),
    }
    for process, share in seen.items():
        found, noise = (np.clip(share, 0, 1), 0.4) if sampled else (np.ones_like(share), 0.0)
        out.gauge("process_state_running", "rank", found, device=process, noise=noise, dead=0.0)


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
    waiting, calm = _queueing(world), _calm(world)
    quota, strangers = np.clip(world.state("quota"), 0, 1), world.state("group_cpu")
    used = user + system + strangers
    out.counter("container_cpu_usage_seconds_total", "rank", used, quantum=1e-6)
    out.counter("container_cpu_cfs_throttled_seconds_total", "rank", quota, quantum=1e-6, noise=0.1)
    periods = 50 * (quota > 0) * np.ones_like(quota)
    out.counter("container_cpu_cfs_throttled_periods_total", "rank", periods, quantum=1, noise=0.05)
    pressed = np.clip(0.78 * waiting + quota + 0.5 * np.minimum(strangers, 1), 0, 1)
    out.counter("container_pressure_cpu_waiting_seconds_total", "rank", pressed, quantum=1e-6, noise=0.1)
    out.counter("container_pressure_cpu_stalled_seconds_total", "rank", 0.85 * pressed, quantum=1e-6)
    slow_disk = np.clip(world.state("disk_stall") + world.state("remote_stall"), 0, 1)[world.node_of]
    # A throttled reader is under pressure all the time it wants data, which is nearly always.
    held, waited = world.state("read_held"), thrashing(world)
    writing = level(world, "writing", 0.05, 0.8) * world.share("checkpoint")
    io = np.clip(level(world, "io", 0.003, 0.02) * calm + slow_disk + held + 0.5 * waited + writing, 0, 1)
    out.counter("container_pressure_io_waiting_seconds_total", "rank", io, quantum=1e-6, noise=0.2)
    short = np.clip(np.clip(world.state("memory_stall"), 0, 1)[world.node_of] + 0.03 * waited, 0, 1)
    out.counter("container_pressure_memory_waiting_seconds_total", "rank", short, quantum=1e-6, noise=0.2)
    reading = _wanted(world) + PAGE * world.state("major_faults")
    out.counter("container_fs_reads_bytes_total", "rank", reading, device="254:0", quantum=512)


def python(world: World, out: Collector) -> None:
    """Record the collector's own account; trainers often keep it off between steps."""
    pauses, calm = world.state("gc") / world.duration, _calm(world)
    usual = 0.0 if is_so(world, "collector off", 0.6) else level(world, "collections", 0.1, 1.5) * calm
    out.counter("python_gc_pause_seconds_total", "rank", 1.5e-4 * usual + pauses, quantum=1e-6, noise=0.1)
    runs = usual + level(world, "collections per second of pause", 8, 600) * pauses
    out.counter("python_gc_collections_total", "rank", runs, quantum=1, noise=0.1)
    out.counter("python_gc_objects_collected_total", "rank", 740 * usual + 0 * pauses, quantum=1)
