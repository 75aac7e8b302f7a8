"""Harmless differences between machines: background rates of counters, signal levels, GPU models.

If a counter stayed at zero on every simulated healthy machine, one count per hour would look like a fault. On
real fleets most counters rise on healthy machines, and they differ from machine to machine.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray
from rca.lab.simulation.finished_run import FinishedRun
from rca.lab.simulation.scenario import SimulationScenario


@dataclass(frozen=True)
class BackgroundRate:
    """How often and how fast a counter rises on healthy machines.

    Attributes
    ----------
    jobs, entities : float
        Share of the jobs in which it rises, and share of the ranks or nodes of such a job.
    low, high : float
        Rate of such a job, log-uniform, per second.
    spread : float
        Spread of the rate's logarithm between ranks or nodes.
    family : str
        Counters of one family rise together, on the same ranks or nodes; alone if empty.
    traffic : bool
        Whether it counts the job's own traffic, so that it is still while the job is stalled.
    """

    jobs: float
    entities: float
    low: float
    high: float
    spread: float = 0.8
    family: str = ""
    traffic: bool = False


#: By metric, with a device where only that one rises. Rates are engineering judgement: from those in healthy
#: windows of other clusters up to those that still cost nothing.
BACKGROUND_RATES: dict[str, BackgroundRate] = {
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": BackgroundRate(0.15, 0.1, 1e-4, 0.05),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": BackgroundRate(0.25, 0.2, 1e-3, 1.0),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": BackgroundRate(0.2, 0.2, 1e-3, 0.3, family="nvlink"),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": BackgroundRate(0.2, 0.2, 1e-3, 0.3, family="nvlink"),
    "node_infiniband_symbol_error_total": BackgroundRate(0.15, 0.3, 1e-4, 0.05, traffic=True),
    "node_infiniband_link_error_recovery_total": BackgroundRate(0.1, 0.2, 1e-5, 0.005),
    "np_cnp_sent": BackgroundRate(0.5, 1.0, 0.5, 400.0, 0.3, "cnp", True),
    "rp_cnp_handled": BackgroundRate(0.5, 1.0, 0.5, 400.0, 0.3, "cnp", True),
    "out_of_sequence": BackgroundRate(0.4, 0.8, 0.02, 2.0, traffic=True),
    "packet_seq_err": BackgroundRate(0.3, 0.8, 0.01, 1.0, traffic=True),
    "local_ack_timeout_err": BackgroundRate(0.15, 0.3, 1e-3, 0.1, traffic=True),
    "node_network_receive_drop_total": BackgroundRate(0.5, 0.8, 0.003, 1.5),
    "node_qdisc_drops_total": BackgroundRate(0.2, 0.3, 1e-3, 0.5, traffic=True),
    "node_netstat_Tcp_RetransSegs": BackgroundRate(0.5, 1.0, 0.03, 20.0, 0.5, traffic=True),
    "node_nfs_rpc_retransmissions_total": BackgroundRate(0.5, 0.7, 1e-3, 0.1),
    "node_cpu_seconds_total/steal": BackgroundRate(0.3, 1.0, 5e-4, 0.1, 0.5),
    "node_cpu_seconds_total/iowait": BackgroundRate(0.5, 1.0, 1e-3, 0.4, 0.6),
    "node_vmstat_pgmajfault": BackgroundRate(0.5, 1.0, 0.05, 30.0),
    "node_pressure_memory_waiting_seconds_total": BackgroundRate(0.5, 0.9, 1e-6, 2e-3, family="pressure"),
    "node_pressure_memory_stalled_seconds_total": BackgroundRate(0.5, 0.9, 5e-7, 1e-3, family="pressure"),
    "container_pressure_memory_waiting_seconds_total": BackgroundRate(0.4, 0.5, 1e-6, 2e-3),
    "process_major_page_faults_total": BackgroundRate(0.3, 0.5, 1e-3, 2.0),
    "container_cpu_cfs_throttled_seconds_total": BackgroundRate(0.4, 0.8, 1e-4, 0.02, 0.5, "quota"),
    "container_cpu_cfs_throttled_periods_total": BackgroundRate(0.4, 0.8, 0.01, 2.0, 0.5, "quota"),
}


def background_rate(run: FinishedRun, name: str, device: str | None, scope: str, n: int) -> FloatArray | None:
    """Rate of a counter of `n` ranks or nodes without any fault; None if it does not rise.

    The draw depends on the scenario's seed and the counter's name, so that one counter's rates do not depend
    on the other exported counters.

    Returns
    -------
    ndarray of shape (n, n_segments), per second
        0 for processes that have ended.
    """
    known = BACKGROUND_RATES.get(f"{name}/{device}") or BACKGROUND_RATES.get(name)
    if known is None:
        return None
    drawn_by = known.family or f"{name}/{device}"
    rng = np.random.default_rng([run.scenario.seed, 7, zlib.crc32(drawn_by.encode())])
    if rng.random() >= known.jobs:
        return None
    usual = np.exp(rng.uniform(np.log(known.low), np.log(known.high)))
    own = usual * np.exp(rng.normal(0, known.spread, (n, 1)))
    rate = np.where(rng.random((n, 1)) < known.entities, own, 0.0)
    if scope == "rank":
        rate = rate * run.alive
    return rate * (1 - run.stalled if known.traffic else np.ones(run.n_segments))


def machine_level(run: FinishedRun, name: str, low: float, high: float) -> float:
    """Draw one constant of a job's machines, log-uniform; the same name gives the same constant."""
    rng = np.random.default_rng([run.scenario.seed, 4, zlib.crc32(name.encode())])
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def lasting_factors(run: FinishedRun, name: str, low: float, high: float, n: int) -> FloatArray:
    """Lasting log-normal factors by which n machines of a job differ, (n, 1); their spread is log-uniform."""
    rng = np.random.default_rng([run.scenario.seed, 13, zlib.crc32(name.encode())])
    return np.asarray(np.exp(rng.normal(0, machine_level(run, f"uneven {name}", low, high), (n, 1))))


def machines_have(run: FinishedRun, name: str, probability: float) -> bool:
    """Whether a job's machines have a property that this share of all jobs has."""
    rng = np.random.default_rng([run.scenario.seed, 5, zlib.crc32(name.encode())])
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


def gpu_attribute(scenario: SimulationScenario, attribute: str) -> FloatArray:
    """One attribute of every rank's GPU model, shape (n_ranks, 1); without a listed fleet all are alike."""
    nodes = scenario.fleet.models or (scenario.seed,) * scenario.n_nodes
    by_node = np.array([getattr(MODELS[model % len(MODELS)], attribute) for model in nodes])
    return np.asarray(by_node[np.arange(scenario.world_size) // scenario.ranks_per_node, None])
