"""What sound machines count all the same: drops, replays, corrected bits, stalls that nobody feels.

A counter that stays at zero on every healthy machine of a simulation teaches that one count in an hour is a
fault. On real fleets hardly any counter is still; most differ from machine to machine, and mean nothing.

Constants that differ between machines, and mean nothing: how much a kernel counts when all is well.

GPU models of the simulated fleets, as their exporters see them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray
from rca.simulation.finished_run import World
from rca.simulation.scenario import Scenario


@dataclass(frozen=True)
class Background:
    """How often and how much a counter rises where nothing is wrong.

    Attributes
    ----------
    jobs, entities : float
        Share of the jobs on whose machines it rises at all, and of the ranks or nodes of such a job.
    low, high : float
        Rate of such a job, log-uniform, per second.
    spread : float
        Spread of the rate's logarithm between ranks or nodes.
    family : str
        Counters of one family rise together, on the same ranks or nodes; alone if empty.
    traffic : bool
        Whether it is the job's own traffic that it counts, so that it rests when the job does.
    """

    jobs: float
    entities: float
    low: float
    high: float
    spread: float = 0.8
    family: str = ""
    traffic: bool = False


#: By metric, with its device where only one of them is meant. Rates are engineering judgement: from what
#: outsiders' healthy windows showed up to what still costs nothing.
BACKGROUND: dict[str, Background] = {
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": Background(0.15, 0.1, 1e-4, 0.05),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": Background(0.25, 0.2, 1e-3, 1.0),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": Background(0.2, 0.2, 1e-3, 0.3, family="nvlink"),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": Background(0.2, 0.2, 1e-3, 0.3, family="nvlink"),
    "node_infiniband_symbol_error_total": Background(0.15, 0.3, 1e-4, 0.05, traffic=True),
    "node_infiniband_link_error_recovery_total": Background(0.1, 0.2, 1e-5, 0.005),
    "np_cnp_sent": Background(0.5, 1.0, 0.5, 400.0, 0.3, "cnp", True),
    "rp_cnp_handled": Background(0.5, 1.0, 0.5, 400.0, 0.3, "cnp", True),
    "out_of_sequence": Background(0.4, 0.8, 0.02, 2.0, traffic=True),
    "packet_seq_err": Background(0.3, 0.8, 0.01, 1.0, traffic=True),
    "local_ack_timeout_err": Background(0.15, 0.3, 1e-3, 0.1, traffic=True),
    "node_network_receive_drop_total": Background(0.5, 0.8, 0.003, 1.5),
    "node_qdisc_drops_total": Background(0.2, 0.3, 1e-3, 0.5, traffic=True),
    "node_netstat_Tcp_RetransSegs": Background(0.5, 1.0, 0.03, 20.0, 0.5, traffic=True),
    "node_nfs_rpc_retransmissions_total": Background(0.5, 0.7, 1e-3, 0.1),
    "node_cpu_seconds_total/steal": Background(0.3, 1.0, 5e-4, 0.1, 0.5),
    "node_cpu_seconds_total/iowait": Background(0.5, 1.0, 1e-3, 0.4, 0.6),
    "node_vmstat_pgmajfault": Background(0.5, 1.0, 0.05, 30.0),
    "node_pressure_memory_waiting_seconds_total": Background(0.5, 0.9, 1e-6, 2e-3, family="pressure"),
    "node_pressure_memory_stalled_seconds_total": Background(0.5, 0.9, 5e-7, 1e-3, family="pressure"),
    "container_pressure_memory_waiting_seconds_total": Background(0.4, 0.5, 1e-6, 2e-3),
    "process_major_page_faults_total": Background(0.3, 0.5, 1e-3, 2.0),
    "container_cpu_cfs_throttled_seconds_total": Background(0.4, 0.8, 1e-4, 0.02, 0.5, "quota"),
    "container_cpu_cfs_throttled_periods_total": Background(0.4, 0.8, 0.01, 2.0, 0.5, "quota"),
}


def background(world: World, name: str, device: str | None, scope: str, n: int) -> FloatArray | None:
    """What a counter of `n` ranks or nodes rises by without any fault; None if it does not.

    Drawn from the scenario's seed by the counter's name, so that one counter's rates do not depend on which
    others are exported.

    Returns
    -------
    ndarray of shape (n, n_segments), per second
        Nothing for processes that are gone.
    """
    known = BACKGROUND.get(f"{name}/{device}") or BACKGROUND.get(name)
    if known is None:
        return None
    drawn_by = known.family or f"{name}/{device}"
    rng = np.random.default_rng([world.scenario.seed, 7, zlib.crc32(drawn_by.encode())])
    if rng.random() >= known.jobs:
        return None
    usual = np.exp(rng.uniform(np.log(known.low), np.log(known.high)))
    own = usual * np.exp(rng.normal(0, known.spread, (n, 1)))
    rate = np.where(rng.random((n, 1)) < known.entities, own, 0.0)
    if scope == "rank":
        rate = rate * world.alive
    return rate * (1 - world.stands_still if known.traffic else np.ones(world.n_segments))


def level(world: World, name: str, low: float, high: float) -> float:
    """Draw one constant of a job's machines, log-uniform; the same name gives the same one."""
    rng = np.random.default_rng([world.scenario.seed, 4, zlib.crc32(name.encode())])
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def uneven(world: World, name: str, low: float, high: float, n: int) -> FloatArray:
    """Lasting factors by which n machines of a job differ, (n, 1): log-normal, their spread log-uniform."""
    rng = np.random.default_rng([world.scenario.seed, 13, zlib.crc32(name.encode())])
    return np.asarray(np.exp(rng.normal(0, level(world, f"uneven {name}", low, high), (n, 1))))


def is_so(world: World, name: str, probability: float) -> bool:
    """Whether a job's machines have a property that this share of all have."""
    rng = np.random.default_rng([world.scenario.seed, 5, zlib.crc32(name.encode())])
    return bool(rng.random() < probability)


@dataclass(frozen=True)
class GpuModel:
    """Top SM clock (MHz), power limit (W), framebuffer (GiB), degrees it usually runs above others."""

    clock_mhz: float
    power_watts: float
    memory_gib: float
    warmer: float


MODELS: tuple[GpuModel, ...] = (
    GpuModel(1980.0, 700.0, 80.0, 0.0),
    GpuModel(1410.0, 400.0, 80.0, -3.0),
    GpuModel(1980.0, 700.0, 141.0, 2.0),
    GpuModel(1755.0, 300.0, 40.0, -2.0),
)


def of_ranks(scenario: Scenario, attribute: str) -> FloatArray:
    """One attribute of every rank's GPU model, shape (n_ranks, 1); without a listed fleet all are alike."""
    nodes = scenario.fleet.models or (scenario.seed,) * scenario.n_nodes
    by_node = np.array([getattr(MODELS[model % len(MODELS)], attribute) for model in nodes])
    return np.asarray(by_node[np.arange(scenario.world_size) // scenario.ranks_per_node, None])
