"""What the exporters of DCGM, nodes and processes report of a job, under the names that they use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.retold_incidents.jobs import Played
from rca.arrays import FloatArray


@dataclass(frozen=True)
class Gpu:
    """Data sheet of a GPU."""

    clock: float
    watts: float
    memory_clock: float
    pcie: int
    memory: float


GPUS = {
    "H100": Gpu(1980, 700, 2619, 5, 79_000),
    "H800": Gpu(1755, 700, 2619, 5, 79_000),
    "A100": Gpu(1410, 400, 1593, 4, 79_000),
    "V100": Gpu(1530, 300, 877, 3, 31_000),
    "L4": Gpu(2040, 72, 6251, 4, 22_000),
}
#: Counters: an incident sets their rate per second, and the exporter adds it up.
COUNTERS = (
    "_total",
    "_VIOLATION",
    "_COUNTER",
    "Tcp_RetransSegs",
    "Tcp_OutSegs",
    "pgmajfault",
    "pswpin",
    "pswpout",
    "oom_kill",
    "_ROWS",
    "np_cnp_sent",
    "rp_cnp_handled",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "roce_slow_restart",
    "pause",
)
#: Rates that are no whole numbers when added up.
FRACTIONAL = ("seconds_total",)


class Exporters:
    """Samples of every rank and node, which an incident changes before they are written.

    Parameters
    ----------
    played : Played
    gpu : str
        A key of `GPUS`.
    every : float, seconds
        Interval of the scrapes.
    ports : int
        InfiniBand or RoCE ports of a node.
    """

    def __init__(
        self,
        played: Played,
        *,
        gpu: str = "H100",
        every: float = 15.0,
        ports: int = 8,
        roce: bool = False,
        processes: bool = False,
    ) -> None:
        self.played, self.job, self.rng = played, played.job, played.job.rng
        self.gpu = GPUS[gpu]
        self.every = every
        self.times = np.arange(self.job.start + every / 2, played.end, every)
        self.of_rank: dict[tuple[str, str | None], FloatArray] = {}
        self.of_node: dict[tuple[str, str | None], FloatArray] = {}
        self.compute = self._share("forward", "backward", "optimizer")
        self.loading = self._share("data_loading")
        self.exchange = self._share("exchange")
        self._gpus()
        self._hosts(played.job.n_nodes)
        self._network(played.job.n_nodes, ports, roce)
        if processes:
            self._processes()

    def since(self, step: int) -> int:
        """Index of the first scrape after the step began."""
        return int(np.searchsorted(self.times, self.played.at(step)))

    def set(
        self,
        name: str,
        value: float | FloatArray,
        *,
        rank: Any = None,
        node: Any = None,
        device: str | None = None,
        span: slice = slice(None),
        noise: float = 0.0,
    ) -> None:
        """Set a gauge, or the rate per second of a counter, of some ranks or nodes in some scrapes.

        A metric that no other rank or node has is made for all of them, with zeros.
        """
        held = self.of_rank if rank is not None else self.of_node
        units = self.job.ranks if rank is not None else self.job.n_nodes
        if rank is not None and device is None and name.startswith("DCGM"):
            device = "gpu"
        values = held.setdefault((name, device), np.zeros((units, self.times.size)))
        rows = np.atleast_1d(np.arange(units)[rank if rank is not None else node])
        shape = values[rows, span].shape
        values[rows, span] = value * self.rng.lognormal(0, noise, shape) if noise else value

    def ended(self, ranks: Any, at: float) -> None:
        """Show GPUs without a process from a time on: idle, empty and cool."""
        span = slice(int(np.searchsorted(self.times, at)), None)
        idle = {"GPU_UTIL": 0.0, "FB_USED": 4.0, "POWER_USAGE": 0.12 * self.gpu.watts, "GPU_TEMP": 33.0}
        for name, value in idle.items():
            self.set(f"DCGM_FI_DEV_{name}", value, rank=ranks, span=span)
        for name in ("SM_ACTIVE", "PCIE_RX_BYTES", "PCIE_TX_BYTES", "NVLINK_TX_BYTES", "NVLINK_RX_BYTES"):
            self.set(f"DCGM_FI_PROF_{name}", 0.0, rank=ranks, span=span)

    def vanish(self, at: float, *, ranks: Any = (), nodes: Any = ()) -> None:
        """Let all metrics of some ranks or nodes end at a time."""
        since = int(np.searchsorted(self.times, at))
        for held, units in ((self.of_rank, list(ranks)), (self.of_node, list(nodes))):
            for values in held.values() if units else ():
                values[units, since:] = np.nan

    def drop(self, *names: str) -> None:
        """Leave metrics out, as an exporter without that collector does."""
        for held in (self.of_rank, self.of_node):
            for key in [key for key in held if key[0].startswith(names)]:
                del held[key]

    def only(self, *names: str) -> None:
        """Leave out all metrics but those whose names begin so."""
        for held in (self.of_rank, self.of_node):
            for key in [key for key in held if not key[0].startswith(names)]:
                del held[key]

    def table(self) -> pa.Table:
        """All samples in long form; counters are cumulative, and one sample in a hundred is missing."""
        parts: list[dict[str, Any]] = []
        for held, ranked in ((self.of_rank, True), (self.of_node, False)):
            for (name, device), values in held.items():
                parts += [self._series(name, device, unit, row, ranked) for unit, row in enumerate(values)]
        columns: dict[str, list[Any]] = {
            key: [] for key in ("time", "node", "rank", "device", "name", "value")
        }
        for part in parts:
            count = len(part["time"])
            columns["time"].append(part["time"])
            columns["value"].append(part["value"])
            for key in ("node", "rank", "device", "name"):
                columns[key] += [part[key]] * count
        return pa.table(
            {
                "time": np.concatenate(columns["time"]),
                "node": pa.array(columns["node"], pa.string()),
                "rank": pa.array(columns["rank"], pa.int32()),
                "device": pa.array(columns["device"], pa.string()),
                "name": pa.array(columns["name"], pa.string()),
                "value": np.concatenate(columns["value"]),
            }
        )

    def _series(
        self, name: str, device: str | None, unit: int, row: FloatArray, ranked: bool
    ) -> dict[str, Any]:
        times = self.times + self.rng.uniform(0, 0.2 * self.every)
        if name.endswith(COUNTERS):
            usual = np.nanmean(row)
            begin = float(self.rng.integers(0, 10_000)) if usual > 0.02 else float(self.rng.integers(0, 3))
            begin = 0.0 if "ECC" in name or "REMAP" in name else begin
            row = begin + np.cumsum(row * self.every)
            if not name.endswith(FRACTIONAL):
                row = np.floor(row + 1e-6)
        scraped = (self.rng.random(row.size) > 0.01) & ~np.isnan(row)
        node = unit // self.job.per_node if ranked else unit
        if device == "gpu":
            device = f"nvidia{unit % self.job.per_node}"
        return {
            "time": times[scraped],
            "value": row[scraped],
            "node": self.job.node(node),
            "rank": unit if ranked else None,
            "device": device,
            "name": name,
        }

    def _share(self, *phases: str) -> FloatArray:
        """Share of each scrape interval that a rank spends in the phases, shape (n_ranks, n_samples)."""
        played, job, n = self.played, self.job, self.played.finished
        found = np.zeros((job.ranks, self.times.size))
        if not n:
            return found
        seconds = np.zeros((job.ranks, n))
        for name in phases:
            held = played.wait + job.transfer if name == "exchange" else job.phase.get(name)
            seconds += 0 if held is None else held[:, :n]
        edges = np.append(self.times, self.times[-1] + self.every)
        for rank in range(job.ranks):
            ends = np.append(played.begin[rank, 0], played.begin[rank, :n] + played.whole[rank, :n])
            spent = np.append(0.0, np.cumsum(seconds[rank]))
            found[rank] = np.diff(np.interp(edges, ends, spent)) / self.every
        return np.clip(found, 0, 1)

    def _shaky(self, size: tuple[int, int], scale: float) -> FloatArray:
        return self.rng.normal(0, scale, size)

    def _gpus(self) -> None:
        size = (self.job.ranks, self.times.size)
        sheet, rng = self.gpu, self.rng
        busy = np.clip(self.compute + self.exchange, 0, 1)
        # A collective that waits keeps a kernel running; a stopped job leaves it running until it is killed.
        after = self.times[None, :] > self.played.stopped
        busy = np.where(after, 1.0, busy)
        power = 0.16 + 0.76 * self.compute + 0.22 * np.where(after, 1.0, self.exchange)
        power = np.clip(power, 0, 0.99) * sheet.watts * (1 + 0.01 * rng.standard_normal((size[0], 1)))
        heat = 30 + 34 * power / sheet.watts + rng.normal(0, 2.0, (size[0], 1))
        put = self.of_rank
        gauges: dict[str, FloatArray] = {
            "DCGM_FI_DEV_SM_CLOCK": sheet.clock - 15 * rng.integers(0, 3, size),
            "DCGM_FI_DEV_MEM_CLOCK": np.full(size, sheet.memory_clock),
            "DCGM_FI_DEV_GPU_TEMP": np.round(heat + self._shaky(size, 0.7)),
            "DCGM_FI_DEV_MEMORY_TEMP": np.round(heat + 9 + self._shaky(size, 0.8)),
            "DCGM_FI_DEV_POWER_USAGE": power + self._shaky(size, 0.01 * sheet.watts),
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": np.zeros(size),
            "DCGM_FI_DEV_GPU_UTIL": np.round(np.clip(100 * busy - np.abs(self._shaky(size, 0.6)), 0, 100)),
            "DCGM_FI_PROF_SM_ACTIVE": np.clip(
                0.78 * self.compute + 0.12 * self.exchange + self._shaky(size, 0.01), 0, 1
            ),
            "DCGM_FI_DEV_FB_USED": sheet.memory * (0.86 + 0.002 * rng.standard_normal((size[0], 1)))
            + np.zeros(size),
            "DCGM_FI_DEV_PCIE_LINK_GEN": np.full(size, float(sheet.pcie)),
            "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": np.full(size, float(sheet.pcie)),
            "DCGM_FI_DEV_PCIE_LINK_WIDTH": np.full(size, 16.0),
            "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": np.full(size, 16.0),
            "DCGM_FI_PROF_PCIE_RX_BYTES": (0.4e9 + 6e9 * self.exchange) * rng.lognormal(0, 0.05, size),
            "DCGM_FI_PROF_PCIE_TX_BYTES": (0.3e9 + 6e9 * self.exchange) * rng.lognormal(0, 0.05, size),
            "DCGM_FI_DEV_XID_ERRORS": np.zeros(size),
            "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": np.zeros(size),
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": np.zeros(size),
            "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": np.zeros(size),
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": np.full(size, 0.0006),
            "DCGM_FI_DEV_THERMAL_VIOLATION": np.zeros(size),
            "DCGM_FI_DEV_POWER_VIOLATION": np.zeros(size),
        }
        if self.job.per_node > 1 and sheet.watts > 100:
            traffic = (2e8 + 4e10 * self.exchange) * rng.lognormal(0, 0.05, size)
            gauges["DCGM_FI_PROF_NVLINK_TX_BYTES"] = traffic
            gauges["DCGM_FI_PROF_NVLINK_RX_BYTES"] = traffic * rng.lognormal(0, 0.02, size)
        put.update({(name, "gpu"): values.astype(np.float64) for name, values in gauges.items()})

    def _hosts(self, nodes: int) -> None:
        rng, size = self.rng, (nodes, self.times.size)
        n_cpus = 96.0
        used = np.minimum(0.6 * n_cpus, 1.4 * self.job.per_node) * rng.lognormal(0, 0.04, size)
        put = self.of_node
        put["node_cpu_seconds_total", "user"] = used
        put["node_cpu_seconds_total", "system"] = 0.12 * used
        put["node_cpu_seconds_total", "iowait"] = 0.05 * rng.lognormal(0, 0.3, size)
        put["node_cpu_seconds_total", "steal"] = np.zeros(size)
        put["node_cpu_seconds_total", "idle"] = n_cpus - 1.13 * used
        put["node_load1", None] = used * rng.lognormal(0.1, 0.06, size)
        put["node_pressure_cpu_waiting_seconds_total", None] = 0.008 * rng.lognormal(0, 0.4, size)
        put["node_pressure_io_waiting_seconds_total", None] = 0.004 * rng.lognormal(0, 0.4, size)
        put["node_pressure_memory_waiting_seconds_total", None] = np.zeros(size)
        put["node_vmstat_pgmajfault", None] = rng.poisson(0.4, size).astype(float)
        put["node_vmstat_pswpin", None] = np.zeros(size)
        put["node_vmstat_oom_kill", None] = np.zeros(size)
        put["node_memory_MemAvailable_bytes", None] = 1.4e12 * (1 + self._shaky(size, 0.004))
        put["node_disk_read_bytes_total", "nvme0n1"] = 4e7 * rng.lognormal(0, 0.3, size)
        put["node_disk_reads_completed_total", "nvme0n1"] = 320 * rng.lognormal(0, 0.3, size)
        put["node_disk_read_time_seconds_total", "nvme0n1"] = 0.06 * rng.lognormal(0, 0.3, size)
        put["node_disk_io_time_seconds_total", "nvme0n1"] = 0.03 * rng.lognormal(0, 0.3, size)
        put["node_network_receive_bytes_total", "eth0"] = 2.5e5 * rng.lognormal(0, 0.3, size)
        put["node_network_transmit_bytes_total", "eth0"] = 2.5e5 * rng.lognormal(0, 0.3, size)
        put["node_network_receive_drop_total", "eth0"] = rng.poisson(0.02, size).astype(float)
        put["node_netstat_Tcp_RetransSegs", None] = 0.2 * rng.lognormal(0, 0.3, size)
        put["node_netstat_Tcp_OutSegs", None] = 900 * rng.lognormal(0, 0.1, size)

    def _network(self, nodes: int, ports: int, roce: bool) -> None:
        rng, size = self.rng, (nodes, self.times.size)
        share = np.array([self.exchange[self.job.of_node(node)].mean(axis=0) for node in range(nodes)])
        put = self.of_node
        for port in range(ports if nodes > 1 else 0):
            device = f"mlx5_{port}/1"
            sent = (1e6 + 9e9 * share) * rng.lognormal(0, 0.04, size)
            put["node_infiniband_port_data_transmitted_bytes_total", device] = sent
            put["node_infiniband_port_data_received_bytes_total", device] = sent * rng.lognormal(
                0, 0.01, size
            )
            put["node_infiniband_link_downed_total", device] = np.zeros(size)
            put["node_infiniband_symbol_error_total", device] = np.zeros(size)
            put["node_infiniband_link_error_recovery_total", device] = np.zeros(size)
            if roce:
                for name, rate in (("np_cnp_sent", 6.0), ("rp_cnp_handled", 6.0), ("out_of_sequence", 0.01)):
                    put[name, device] = rate * rng.lognormal(0, 0.3, size)
                put["local_ack_timeout_err", device] = np.zeros(size)
            else:
                put["node_infiniband_port_transmit_wait_total", device] = (
                    4e5 * share * rng.lognormal(0, 0.3, size)
                )

    def _processes(self) -> None:
        rng, size = self.rng, (self.job.ranks, self.times.size)
        put = self.of_rank
        put["process_cpu_seconds_total", "host/user"] = 0.9 * rng.lognormal(0, 0.05, size)
        put["process_cpu_seconds_total", "loader/user"] = 0.8 * rng.lognormal(0, 0.1, size)
        put["process_schedstat_waiting_seconds_total", "host"] = 0.004 * rng.lognormal(0, 0.3, size)
        put["process_schedstat_waiting_seconds_total", "loader"] = 0.01 * rng.lognormal(0, 0.3, size)
        put["process_major_page_faults_total", "host"] = rng.poisson(0.02, size).astype(float)
        put["process_context_switches_total", "host/nonvoluntary"] = 4 * rng.lognormal(0, 0.3, size)
        put["container_cpu_cfs_throttled_seconds_total", None] = np.zeros(size)
        put["container_pressure_cpu_waiting_seconds_total", None] = 0.01 * rng.lognormal(0, 0.3, size)
        put["container_pressure_io_waiting_seconds_total", None] = 0.004 * rng.lognormal(0, 0.3, size)
