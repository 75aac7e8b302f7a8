"""Signals of dcgm-exporter, per rank."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.lab.simulation.finished_run import FinishedRun
from rca.lab.simulation.machine_differences import gpu_attribute, machine_level, machines_have
from rca.lab.simulation.scraping import MetricsScraper

GPU_IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80
MIB_PER_GIB = 1024.0
# Errors that the driver remembers from before the job: of programs, and of memory that was remapped since.
EARLIER_XID_SHARE, EARLIER_XIDS = 0.12, (13.0, 31.0, 43.0, 45.0, 63.0, 94.0)


def _busy(run: FinishedRun) -> FloatArray:
    """Share of time in which the model's kernels run, without launch gaps and stalls."""
    lost = (run.state("gpu_stall") + run.state("host_stall")) / run.duration
    gap = run.scenario.workload.launch_seconds * run.gap_ratio / run.duration
    return np.clip(run.share("forward", "backward", "optimizer") - lost - gap, 0.01, 1.0)


def _idle_depth(run: FinishedRun) -> FloatArray:
    """Idle depth from 0 to 1: long waits lower clock, power and link generation."""
    wait_seconds = run.waiting * run.duration
    return np.asarray(run.waiting * (1 - np.exp(-wait_seconds / 4.0)))


def _harmless(run: FinishedRun, kind: str) -> FloatArray:
    marked = np.zeros((run.scenario.world_size, 1))
    for signal in run.scenario.benign.harmless:
        if signal.kind == kind:
            marked[signal.rank % run.scenario.world_size] = 1.0
    return marked


def health(run: FinishedRun, out: MetricsScraper) -> None:
    """Clocks, temperature, power, limits, memory errors, link state."""
    top, limit, memory = (
        gpu_attribute(run.scenario, name) for name in ("clock_mhz", "power_watts", "memory_gib")
    )
    busy, asleep = _busy(run), _idle_depth(run)
    foreign, clock = run.state("foreign_gpu"), run.state("clock")
    spinning = run.waiting + run.share("communication_transfer")
    load = np.clip(busy + foreign + 0.25 * spinning, 0, 1) * run.alive
    thermal, capped = np.clip(run.state("thermal"), 0, 1), np.clip(run.state("power_cap"), 0, 1)
    hot = _harmless(run, "hot_gpu")
    base = out.rng.normal(44, 3, (run.scenario.world_size, 1)) + gpu_attribute(run.scenario, "warmer")
    heat = base + 24 * load + 9 * hot + run.state("heat")
    at_limit = np.where(busy > 0.4, _harmless(run, "power_cap"), 0.0)
    limited = _power_limited(run, busy.shape)
    power = np.clip(0.16 + 0.72 * load * clock * (1 - 0.5 * asleep) + 0.1 * at_limit, 0.1, 1.0)
    power = limit * np.where((limited > 0) & (busy > 0.4), np.maximum(power, 0.97), power)
    out.gauge("DCGM_FI_DEV_SM_CLOCK", "rank", top * clock * (1 - 0.55 * asleep), quantum=15, noise=0.004)
    out.gauge("DCGM_FI_DEV_GPU_TEMP", "rank", heat, quantum=1, noise=0.01)
    out.gauge("DCGM_FI_DEV_MEMORY_TEMP", "rank", heat + 8, quantum=1, noise=0.01)
    out.gauge("DCGM_FI_DEV_POWER_USAGE", "rank", power, noise=0.03)
    used = np.clip(busy + foreign + 0.95 * spinning, 0, 1)
    out.gauge("DCGM_FI_DEV_GPU_UTIL", "rank", 100 * used, quantum=1, noise=0.02, dead=0.0)
    _device_memory(run, out, memory * MIB_PER_GIB)
    _limits(run, out, thermal, np.maximum(capped, 0.15 * at_limit), limited, asleep)
    _errors(run, out)
    _links(run, out, asleep)


def _device_memory(run: FinishedRun, out: MetricsScraper, size: FloatArray) -> None:
    usual = run.scenario.fleet.memory_share
    share = np.where(run.state("foreign_gpu") > 0, max(0.84, usual), usual)
    filled = run.state("memory_held")
    held = size * np.where(filled > 0, filled, share)
    out.gauge("DCGM_FI_DEV_FB_USED", "rank", held, quantum=1, noise=0.001, dead=0.0)
    if run.scenario.corpus > 1:
        out.gauge("DCGM_FI_DEV_FB_FREE", "rank", np.maximum(size - held, 1.0), quantum=1, noise=0.01)


def _limits(
    run: FinishedRun,
    out: MetricsScraper,
    thermal: FloatArray,
    capped: FloatArray,
    limited: FloatArray,
    asleep: FloatArray,
) -> None:
    # A ceiling on the clock is the board's brake; a limit on power is the driver's.
    cap_bits = np.where(run.state("clock_ceiling") < 1, POWER_BRAKE | HW_SLOWDOWN, POWER_CAP)
    # The hardware slows the clock as well only at high temperatures.
    thermal_bits = np.where(thermal > 0.85, SW_THERMAL | HW_THERMAL | HW_SLOWDOWN, SW_THERMAL)
    reasons = np.where(thermal > 0.2, thermal_bits, 0) | np.where(capped > 0.1, cap_bits, 0)
    reasons = reasons | np.where(limited > 0, POWER_CAP, 0)
    reasons = np.where((reasons == 0) & (asleep > 0.5), GPU_IDLE, reasons)
    old = run.scenario.telemetry.old_names
    name = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" if old else "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
    out.gauge(name, "rank", np.asarray(reasons, dtype=np.float64), noise=0.0)
    out.counter("DCGM_FI_DEV_THERMAL_VIOLATION", "rank", 1e9 * thermal, quantum=1, noise=0.1)
    held = np.maximum(capped, machine_level(run, "held by power", 1e-4, 1.0) * limited)
    out.counter("DCGM_FI_DEV_POWER_VIOLATION", "rank", 1e9 * held, quantum=1, noise=0.1)


def _power_limited(run: FinishedRun, shape: tuple[int, ...]) -> FloatArray:
    """1 where a healthy GPU is at its power limit: some fleets always are, at full speed."""
    if not machines_have(run, "power limited", 0.2):
        return np.zeros(shape)
    rng = np.random.default_rng([run.scenario.seed, 9])
    often = machine_level(run, "at the limit", 0.05, 3.0) * np.exp(rng.normal(0, 0.3, (shape[0], 1)))
    # Two jobs on one device reach its limit more often than one.
    often = np.clip(often * (1 + 2 * run.state("foreign_gpu")), 0, 1)
    return (rng.random(shape) < often) * (1 - run.stalled)


def _errors(run: FinishedRun, out: MetricsScraper) -> None:
    corrected = run.state("ecc") + 0.05 * _harmless(run, "ecc_sbe")
    out.counter("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "rank", corrected, quantum=1, noise=0.5)
    out.counter("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "rank", run.state("ecc") * 0.01, quantum=1)
    out.counter("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "rank", run.state("ecc") * 0.02, quantum=1)
    # 94 and 92 are contained and high-rate memory errors; 79 is a GPU lost from the bus.
    last = np.where(run.state("ecc") > 0, 94.0, _earlier_xid(run))
    stop = run.resources.stop
    if stop is not None and stop.variant == "device":
        last[list(stop.ranks), run.n_run :] = 79.0
    out.gauge("DCGM_FI_DEV_XID_ERRORS", "rank", last, noise=0.0)


def _earlier_xid(run: FinishedRun) -> FloatArray:
    """Code of an error from an earlier job, shape (n_ranks, 1); 0 without one."""
    n_ranks = run.scenario.world_size
    codes = np.zeros((n_ranks, 1))
    rng = np.random.default_rng([run.scenario.seed, 10])
    if rng.random() < EARLIER_XID_SHARE:
        found = rng.random((n_ranks, 1)) < 1.5 / n_ranks
        codes[found] = rng.choice(EARLIER_XIDS, int(found.sum()))
    return codes


def _links(run: FinishedRun, out: MetricsScraper, asleep: FloatArray) -> None:
    generation, width = 5.0 - (run.scenario.seed % 2), 16.0
    trained = np.maximum(generation - run.state("lost_generations"), 1.0)
    lanes = np.maximum(width / 2.0 ** run.state("lost_lanes"), 1.0)
    current = np.where(asleep > 0.6, 1.0, trained)
    out.gauge("DCGM_FI_DEV_PCIE_LINK_GEN", "rank", current, noise=0.0)
    out.gauge("DCGM_FI_DEV_PCIE_LINK_WIDTH", "rank", lanes, noise=0.0)
    out.gauge("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "rank", np.full(lanes.shape, generation), noise=0.0)
    out.gauge("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "rank", np.full(lanes.shape, width), noise=0.0)
    replays = run.state("pcie_replays") + 0.05 * _harmless(run, "pcie_replay")
    out.counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "rank", replays, quantum=1, noise=0.3)
    bad = run.state("nvlink_stretch")[run.node_of] - 1
    errors = np.where(bad > 0, 3 + 8 * bad, 0.0)
    out.counter("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "rank", errors, quantum=1, noise=0.4)
    out.counter("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "rank", errors * 0.3, quantum=1, noise=0.4)


def profiling(run: FinishedRun, out: MetricsScraper) -> None:
    """Utilisation by unit and bytes over the links."""
    busy, foreign = _busy(run), run.state("foreign_gpu")
    scenario, pace = run.scenario, run.pace
    # The other process runs in the time slices that this one does not get.
    # A collective kernel occupies a few multiprocessors while it waits.
    spinning = machine_level(run, "spinning", 0.01, 0.2) * (run.waiting + run.share("communication_transfer"))
    active = np.clip(0.85 * busy + spinning + 0.5 * foreign, 0.0, 1.0)
    out.gauge("DCGM_FI_PROF_SM_ACTIVE", "rank", active, noise=0.02, dead=0.0)
    out.gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "rank", np.clip(active * 1.1, 0, 1), noise=0.02, dead=0.0)
    tensor = 0.5 * busy / run.state("compute_stretch")
    out.gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "rank", tensor, noise=0.03, dead=0.0)
    out.gauge("DCGM_FI_PROF_DRAM_ACTIVE", "rank", 0.45 * busy + 0.1 * foreign, noise=0.03, dead=0.0)
    copied = 2e10 * scenario.workload.host_to_device_seconds * pace + np.zeros_like(busy)
    out.gauge("DCGM_FI_PROF_PCIE_RX_BYTES", "rank", copied, noise=0.05, dead=0.0)
    out.gauge("DCGM_FI_PROF_PCIE_TX_BYTES", "rank", 0.3 * copied, noise=0.05, dead=0.0)
    moved = scenario.workload.gradient_bytes * pace + np.zeros_like(busy)
    out.gauge("DCGM_FI_PROF_NVLINK_TX_BYTES", "rank", moved, noise=0.05, dead=0.0)
    out.gauge("DCGM_FI_PROF_NVLINK_RX_BYTES", "rank", moved, noise=0.05, dead=0.0)
