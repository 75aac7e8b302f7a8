"""Signals of dcgm-exporter, per rank."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.simulation.finished_run import World
from rca.simulation.machine_differences import is_so, level, of_ranks
from rca.simulation.scraping import Collector

IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80
MIB_PER_GIB = 1024.0
# Errors that the driver remembers from before the job: of programs, and of memory that was mended since.
OLD_XID_SHARE, OLD_XIDS = 0.12, (13.0, 31.0, 43.0, 45.0, 63.0, 94.0)


def _busy(world: World) -> FloatArray:
    """Share of time kernels of the model run; launch gaps and stalls are not busy."""
    lost = (world.state("gpu_stall") + world.state("host_stall")) / world.duration
    gap = world.scenario.workload.launch_seconds * world.gap_ratio / world.duration
    return np.clip(world.share("forward", "backward", "optimizer") - lost - gap, 0.01, 1.0)


def _asleep(world: World) -> FloatArray:
    """How far a GPU has gone to rest: long waits let clock, power and link generation fall."""
    wait_seconds = world.waiting * world.duration
    return np.asarray(world.waiting * (1 - np.exp(-wait_seconds / 4.0)))


def _harmless(world: World, kind: str) -> FloatArray:
    marked = np.zeros((world.scenario.world_size, 1))
    for signal in world.scenario.benign.harmless:
        if signal.kind == kind:
            marked[signal.rank % world.scenario.world_size] = 1.0
    return marked


def health(world: World, out: Collector) -> None:
    """Clocks, temperature, power, limits, memory errors, link state."""
    top, limit, memory = (
        of_ranks(world.scenario, name) for name in ("clock_mhz", "power_watts", "memory_gib")
    )
    busy, asleep = _busy(world), _asleep(world)
    foreign, clock = world.state("foreign_gpu"), world.state("clock")
    spinning = world.waiting + world.share("communication_transfer")
    load = np.clip(busy + foreign + 0.25 * spinning, 0, 1) * world.alive
    thermal, capped = np.clip(world.state("thermal"), 0, 1), np.clip(world.state("power_cap"), 0, 1)
    hot = _harmless(world, "hot_gpu")
    base = out.rng.normal(44, 3, (world.scenario.world_size, 1)) + of_ranks(world.scenario, "warmer")
    heat = base + 24 * load + 9 * hot + world.state("heat")
    at_limit = np.where(busy > 0.4, _harmless(world, "power_cap"), 0.0)
    limited = _power_limited(world, busy.shape)
    power = np.clip(0.16 + 0.72 * load * clock * (1 - 0.5 * asleep) + 0.1 * at_limit, 0.1, 1.0)
    power = limit * np.where((limited > 0) & (busy > 0.4), np.maximum(power, 0.97), power)
    out.gauge("DCGM_FI_DEV_SM_CLOCK", "rank", top * clock * (1 - 0.55 * asleep), quantum=15, noise=0.004)
    out.gauge("DCGM_FI_DEV_GPU_TEMP", "rank", heat, quantum=1, noise=0.01)
    out.gauge("DCGM_FI_DEV_MEMORY_TEMP", "rank", heat + 8, quantum=1, noise=0.01)
    out.gauge("DCGM_FI_DEV_POWER_USAGE", "rank", power, noise=0.03)
    used = np.clip(busy + foreign + 0.95 * spinning, 0, 1)
    out.gauge("DCGM_FI_DEV_GPU_UTIL", "rank", 100 * used, quantum=1, noise=0.02, dead=0.0)
    held = memory * MIB_PER_GIB * np.where(foreign > 0, 0.84, 0.72)
    out.gauge("DCGM_FI_DEV_FB_USED", "rank", held, quantum=1, noise=0.001, dead=0.0)
    _limits(world, out, thermal, np.maximum(capped, 0.15 * at_limit), limited, asleep)
    _errors(world, out)
    _links(world, out, asleep)


def _limits(
    world: World,
    out: Collector,
    thermal: FloatArray,
    capped: FloatArray,
    limited: FloatArray,
    asleep: FloatArray,
) -> None:
    # A ceiling on the clock is the board's brake; a limit on power is the driver's.
    cap_bits = np.where(world.state("clock_ceiling") < 1, POWER_BRAKE | HW_SLOWDOWN, POWER_CAP)
    # Hardware steps in beside the driver only when it gets really hot.
    thermal_bits = np.where(thermal > 0.85, SW_THERMAL | HW_THERMAL | HW_SLOWDOWN, SW_THERMAL)
    reasons = np.where(thermal > 0.2, thermal_bits, 0) | np.where(capped > 0.1, cap_bits, 0)
    reasons = reasons | np.where(limited > 0, POWER_CAP, 0)
    reasons = np.where((reasons == 0) & (asleep > 0.5), IDLE, reasons)
    old = world.scenario.telemetry.old_names
    name = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" if old else "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
    out.gauge(name, "rank", np.asarray(reasons, dtype=np.float64), noise=0.0)
    out.counter("DCGM_FI_DEV_THERMAL_VIOLATION", "rank", 1e9 * thermal, quantum=1, noise=0.1)
    held = np.maximum(capped, level(world, "held by power", 1e-4, 1.0) * limited)
    out.counter("DCGM_FI_DEV_POWER_VIOLATION", "rank", 1e9 * held, quantum=1, noise=0.1)


def _power_limited(world: World, shape: tuple[int, ...]) -> FloatArray:
    """1 where a sound GPU is at its power limit: some fleets always are, and run as fast as they can."""
    if not is_so(world, "power limited", 0.2):
        return np.zeros(shape)
    rng = np.random.default_rng([world.scenario.seed, 9])
    often = level(world, "at the limit", 0.05, 3.0) * np.exp(rng.normal(0, 0.3, (shape[0], 1)))
    # Two jobs on one device meet its limit more often than one.
    often = np.clip(often * (1 + 2 * world.state("foreign_gpu")), 0, 1)
    return (rng.random(shape) < often) * (1 - world.stands_still)


def _errors(world: World, out: Collector) -> None:
    corrected = world.state("ecc") + 0.05 * _harmless(world, "ecc_sbe")
    out.counter("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "rank", corrected, quantum=1, noise=0.5)
    out.counter("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "rank", world.state("ecc") * 0.01, quantum=1)
    out.counter("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "rank", world.state("ecc") * 0.02, quantum=1)
    # 94 and 92 are contained and high-rate memory errors; 79 is a GPU lost from the bus.
    last = np.where(world.state("ecc") > 0, 94.0, _old_xid(world))
    stop = world.resources.stop
    if stop is not None and stop.variant == "device":
        last[list(stop.ranks), world.n_run :] = 79.0
    out.gauge("DCGM_FI_DEV_XID_ERRORS", "rank", last, noise=0.0)


def _old_xid(world: World) -> FloatArray:
    """The last error of somebody else's job, long ago, (n_ranks, 1): mostly a program's, not the device's."""
    n_ranks = world.scenario.world_size
    codes = np.zeros((n_ranks, 1))
    rng = np.random.default_rng([world.scenario.seed, 10])
    if rng.random() < OLD_XID_SHARE:
        found = rng.random((n_ranks, 1)) < 1.5 / n_ranks
        codes[found] = rng.choice(OLD_XIDS, int(found.sum()))
    return codes


def _links(world: World, out: Collector, asleep: FloatArray) -> None:
    generation, width = 5.0 - (world.scenario.seed % 2), 16.0
    trained = np.maximum(generation - world.state("lost_generations"), 1.0)
    lanes = np.maximum(width / 2.0 ** world.state("lost_lanes"), 1.0)
    current = np.where(asleep > 0.6, 1.0, trained)
    out.gauge("DCGM_FI_DEV_PCIE_LINK_GEN", "rank", current, noise=0.0)
    out.gauge("DCGM_FI_DEV_PCIE_LINK_WIDTH", "rank", lanes, noise=0.0)
    out.gauge("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "rank", np.full(lanes.shape, generation), noise=0.0)
    out.gauge("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "rank", np.full(lanes.shape, width), noise=0.0)
    replays = world.state("pcie_replays") + 0.05 * _harmless(world, "pcie_replay")
    out.counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "rank", replays, quantum=1, noise=0.3)
    bad = world.state("nvlink_stretch")[world.node_of] - 1
    errors = np.where(bad > 0, 3 + 8 * bad, 0.0)
    out.counter("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "rank", errors, quantum=1, noise=0.4)
    out.counter("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "rank", errors * 0.3, quantum=1, noise=0.4)


def profiling(world: World, out: Collector) -> None:
    """Utilisation by unit and bytes over the links."""
    busy, foreign = _busy(world), world.state("foreign_gpu")
    scenario, pace = world.scenario, world.pace
    # The other process runs in the slices this one does not get.
    # A collective spins on a few multiprocessors while it waits.
    spinning = level(world, "spinning", 0.01, 0.2) * (world.waiting + world.share("communication_transfer"))
    active = np.clip(0.85 * busy + spinning + 0.5 * foreign, 0.0, 1.0)
    out.gauge("DCGM_FI_PROF_SM_ACTIVE", "rank", active, noise=0.02, dead=0.0)
    out.gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "rank", np.clip(active * 1.1, 0, 1), noise=0.02, dead=0.0)
    tensor = 0.5 * busy / world.state("compute_stretch")
    out.gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "rank", tensor, noise=0.03, dead=0.0)
    out.gauge("DCGM_FI_PROF_DRAM_ACTIVE", "rank", 0.45 * busy + 0.1 * foreign, noise=0.03, dead=0.0)
    copied = 2e10 * scenario.workload.host_to_device_seconds * pace + np.zeros_like(busy)
    out.gauge("DCGM_FI_PROF_PCIE_RX_BYTES", "rank", copied, noise=0.05, dead=0.0)
    out.gauge("DCGM_FI_PROF_PCIE_TX_BYTES", "rank", 0.3 * copied, noise=0.05, dead=0.0)
    moved = scenario.workload.gradient_bytes * pace + np.zeros_like(busy)
    out.gauge("DCGM_FI_PROF_NVLINK_TX_BYTES", "rank", moved, noise=0.05, dead=0.0)
    out.gauge("DCGM_FI_PROF_NVLINK_RX_BYTES", "rank", moved, noise=0.05, dead=0.0)
