"""Seeded windows of any size with one throttled GPU: every stage of a diagnosis has work to do.

The windows are not simulated: a benchmark needs an exact number of values, and ten thousand ranks must be
fast to make. Values keep all their digits, because JSON parsers are slower on long numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import FloatArray
from rca.window import Window

START = 1_700_000_000.0
RANKS_PER_NODE = 8
#: Seconds of each phase in an undisturbed step; waiting and transfer make up the rest.
PHASES = {
    "data_loading_seconds": 0.01,
    "host_to_device_seconds": 0.02,
    "forward_seconds": 0.40,
    "backward_seconds": 0.80,
    "optimizer_seconds": 0.08,
}
TRANSFER_SECONDS = 0.15
#: The throttled GPU computes this much slower from the middle of the window on.
THROTTLE_RATIO = 1.3
#: Metric -> (usual value, or rate per second of a counter; what throttling makes of it; is it a counter).
METRICS: dict[str, tuple[float, float, bool]] = {
    "DCGM_FI_DEV_SM_CLOCK": (1755.0, 1290.0, False),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": (0.0, 64.0, False),
    "DCGM_FI_DEV_GPU_TEMP": (62.0, 87.0, False),
    "DCGM_FI_DEV_MEMORY_TEMP": (70.0, 88.0, False),
    "DCGM_FI_DEV_GPU_UTIL": (97.0, 99.0, False),
    "DCGM_FI_PROF_SM_ACTIVE": (0.83, 0.85, False),
    "DCGM_FI_DEV_POWER_USAGE": (610.0, 480.0, False),
    "DCGM_FI_DEV_PCIE_LINK_GEN": (5.0, 5.0, False),
    "DCGM_FI_DEV_XID_ERRORS": (0.0, 0.0, False),
    "DCGM_FI_DEV_THERMAL_VIOLATION": (0.0, 6e8, True),
    "DCGM_FI_DEV_POWER_VIOLATION": (1e5, 1e5, True),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": (0.001, 0.001, True),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (0.01, 0.01, True),
    "process_cpu_seconds_total": (1.1, 1.1, True),
    "process_schedstat_waiting_seconds_total": (0.004, 0.004, True),
    "process_schedstat_running_seconds_total": (1.1, 1.1, True),
    "process_minor_page_faults_total": (90.0, 90.0, True),
    "process_major_page_faults_total": (0.05, 0.05, True),
    "process_io_read_bytes_total": (4e6, 4e6, True),
    "python_gc_pause_seconds_total": (0.001, 0.001, True),
}


@dataclass(frozen=True)
class WindowSize:
    """How large a window is; ``samples`` counts per metric and rank."""

    ranks: int
    steps: int = 100
    metrics: int = 20
    samples: int = 10

    @property
    def slow_rank(self) -> int:
        """The rank with the throttled GPU."""
        return self.ranks * 2 // 3


def make_window(shape: WindowSize, seed: int = 0) -> Window:
    """One job in which `WindowSize.slow_rank` is throttled in the second half; the same for the same seed."""
    if shape.metrics > len(METRICS):
        raise ValueError(f"at most {len(METRICS)} metrics")
    rng = np.random.default_rng(seed)
    steps, end = _steps(shape, rng)
    metrics = _metrics(shape, rng, end) if shape.metrics and shape.samples else None
    return Window.from_tables(_job(shape, end), steps, metrics)


def _job(shape: WindowSize, end: float) -> dict[str, Any]:
    return {
        "format": 1,
        "window_id": f"benchmark-{shape.ranks}",
        "job_id": "benchmark",
        "world_size": shape.ranks,
        "parallelism": {"data": shape.ranks},
        "ranks": [
            {"rank": rank, "node": f"node-{rank // RANKS_PER_NODE}", "gpu": rank % RANKS_PER_NODE}
            for rank in range(shape.ranks)
        ],
        "start": START,
        "end": end,
    }


def _steps(shape: WindowSize, rng: np.random.Generator) -> tuple[pa.Table, float]:
    """The steps table, rank by rank as collectors write it, and when the last step ends."""
    size = (shape.ranks, shape.steps)
    phases = {name: usual * rng.lognormal(0.0, 0.01, size) for name, usual in PHASES.items()}
    for name in ("forward_seconds", "backward_seconds"):
        phases[name][shape.slow_rank, shape.steps // 2 :] *= THROTTLE_RATIO
    columns = step_columns(phases, TRANSFER_SECONDS * rng.lognormal(0.0, 0.01, size))
    table = {
        "rank": np.repeat(np.arange(shape.ranks, dtype=np.int32), shape.steps),
        "step": np.tile(np.arange(1000, 1000 + shape.steps, dtype=np.int64), shape.ranks),
        **{name: held.ravel() for name, held in columns.items()},
    }
    return pa.table(table), float((columns["start_time"] + columns["step_seconds"]).max())


def step_columns(own: dict[str, FloatArray], transfer: FloatArray) -> dict[str, FloatArray]:
    """Columns of the steps table from the phases and the exchange; arrays of shape (n_ranks, n_steps)."""
    work: FloatArray = np.sum(list(own.values()), axis=0)
    wait = work.max(axis=0) - work
    whole = work + wait + transfer
    return {
        "start_time": START + np.cumsum(whole, axis=1) - whole,
        **own,
        "communication_wait_seconds": wait,
        "communication_transfer_seconds": transfer,
        "step_seconds": whole,
    }


def _metrics(shape: WindowSize, rng: np.random.Generator, end: float) -> pa.Table:
    """The metrics table, series by series as a Prometheus range query returns them."""
    names = list(METRICS)[: shape.metrics]
    n_series = shape.ranks * shape.metrics
    interval = (end - START) / shape.samples
    # Scrapes of different targets are spread over the interval.
    time = START + interval * (np.arange(shape.samples) + rng.random((n_series, 1)))
    value = np.concatenate([_samples(METRICS[name], shape, rng, interval) for name in names])
    rank = np.tile(np.arange(shape.ranks, dtype=np.int32), shape.metrics)
    gpu = np.array([name.startswith("DCGM") for name in names])
    n_devices = RANKS_PER_NODE
    device = np.where(np.repeat(gpu, shape.ranks), rank % n_devices, n_devices)
    nodes = [f"node-{node}" for node in range(-(-shape.ranks // RANKS_PER_NODE))]
    devices = [*(str(device) for device in range(n_devices)), "host"]
    repeat = shape.samples
    return pa.table(
        {
            "time": time.ravel(),
            "node": _labels(rank // RANKS_PER_NODE, nodes, repeat),
            "rank": np.repeat(rank, repeat),
            "device": _labels(device, devices, repeat),
            "name": _labels(np.repeat(np.arange(shape.metrics), shape.ranks), names, repeat),
            "value": value.ravel(),
        }
    )


def _samples(
    metric: tuple[float, float, bool], shape: WindowSize, rng: np.random.Generator, interval: float
) -> FloatArray:
    """One metric of every rank, shape (n_ranks, n_samples); counters are cumulative."""
    usual, throttled, counter = metric
    level = np.full((shape.ranks, shape.samples), usual)
    level[shape.slow_rank, shape.samples // 2 :] = throttled
    if not counter and usual in {0.0, 5.0}:
        return level  # Codes and link generations do not fluctuate.
    level = level * rng.lognormal(0.0, 0.01, level.shape)
    return np.cumsum(level * interval, axis=1) if counter else level


def _labels(code: npt.NDArray[np.signedinteger], texts: list[str], repeat: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(np.repeat(code.astype(np.int32), repeat), pa.array(texts))
