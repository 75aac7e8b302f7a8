"""What the exporters of DCGM, nodes and processes report of a job, under the names that they use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rca.arrays import FloatArray

if TYPE_CHECKING:
    from benchmarks.retold_incidents.jobs import ReportedJob


@dataclass(frozen=True)
class GpuSheet:
    """Data sheet of a GPU."""

    clock: float
    watts: float
    memory_clock: float
    pcie: int
    memory: float


GPUS = {
    "H100": GpuSheet(1980, 700, 2619, 5, 79_000),
    "H800": GpuSheet(1755, 700, 2619, 5, 79_000),
    "A100": GpuSheet(1410, 400, 1593, 4, 79_000),
    "V100": GpuSheet(1530, 300, 877, 3, 31_000),
    "L4": GpuSheet(2040, 72, 6251, 4, 22_000),
}
#: Counters: an incident sets their rate per second, and the exporter adds it up.
COUNTERS = (
    "_total", "_VIOLATION", "_COUNTER", "Tcp_RetransSegs", "Tcp_OutSegs", "pgmajfault", "pswpin", "pswpout",
    "oom_kill", "_ROWS", "np_cnp_sent", "rp_cnp_handled", "out_of_sequence", "packet_seq_err",
    "local_ack_timeout_err", "roce_slow_restart", "pause",
)  # fmt: skip
#: Rates that are no whole numbers when added up.
FRACTIONAL = ("seconds_total",)
#: Metrics of ranks; others are of nodes.
OF_RANKS = ("DCGM", "amd_", "container_", "process_", "python_")
#: All InfiniBand or RoCE ports of a node.
PORTS = tuple(f"mlx5_{port}/1" for port in range(8))
#: Metrics by name and device, arrays of shape (n_ranks or n_nodes, n_samples).
Samples = dict[tuple[str, str | None], FloatArray]


class Exporters:
    """Samples of every rank and node, which an incident changes before they are written.

    Attributes
    ----------
    times : ndarray of shape (n_samples,), seconds
    ranked : bool
        Whether samples of GPUs and processes name their rank.
    """

    def __init__(self, job: ReportedJob) -> None:
        self.job, self.rng, self.gpu = job, job.rng, GPUS[job.gpu]
        self.times = np.arange(job.start + job.every / 2, job.end, job.every)
        self.of_rank: Samples = {}
        self.of_node: Samples = {}
        self.ranked = True
        if job.timers.exporters:
            self.compute = self._share("forward", "backward", "optimizer")
            self.exchange = self._share("exchange")
            self._gpus()
            self._hosts()
            self._network()
            if job.processes:
                self._processes()

    def since(self, step: int) -> int:
        """Index of the first scrape after the step began."""
        return self.after(self.job.at(step))

    def after(self, time: float) -> int:
        """Index of the first scrape after a time."""
        return int(np.searchsorted(self.times, time))

    def shows(
        self,
        at: Any = slice(None),
        *,
        since: Any = None,
        until: Any = None,
        span: Any = None,
        device: Any = None,
        **metrics: Any,
    ) -> None:
        """Set gauges, or the rates per second of counters, of some ranks or nodes in some scrapes.

        Parameters
        ----------
        at : index
            Ranks of metrics that begin with one of `OF_RANKS`, otherwise nodes.
        since, until : int, optional
            Steps between which they are set.
        span : slice, optional
            Scrapes, instead of steps.
        device : str or tuple of str, optional
            One, or each of several.
        metrics : float, ndarray or (value, noise)
            By name; a name in capitals is a field of DCGM's devices. A metric that no other rank or node has
            is made for all of them, with zeros.
        """
        if not self.job.timers.exporters:
            return
        first, last = (None if step is None else self.since(step) for step in (since, until))
        for each in device if isinstance(device, tuple) else (device,):
            for name, value in metrics.items():
                self._set(name, value, at, slice(first, last) if span is None else span, each)

    def _set(self, name: str, value: Any, at: Any, span: slice, device: str | None) -> None:
        if name.isupper() and not name.startswith("DCGM"):
            name = f"DCGM_FI_DEV_{name}"
        if name.startswith(("DCGM", "amd_")):
            device = "gpu"
        ranked = name.startswith(OF_RANKS)
        held, units = (self.of_rank, self.job.ranks) if ranked else (self.of_node, self.job.n_nodes)
        values = held.setdefault((name, device), np.zeros((units, self.times.size)))
        rows = np.atleast_1d(np.arange(units)[at])
        level, noise = value if isinstance(value, tuple) else (value, 0.0)
        shape = values[rows, span].shape
        values[rows, span] = level * self.rng.lognormal(0, noise, shape) if noise else level

    def ended(self, ranks: Any, at: float) -> None:
        """Show GPUs without a process from a time on: idle, empty and cool."""
        idle = {"GPU_UTIL": 0.0, "FB_USED": 4.0, "POWER_USAGE": 0.12 * self.gpu.watts, "GPU_TEMP": 33.0}
        for name in ("SM_ACTIVE", "PCIE_RX_BYTES", "PCIE_TX_BYTES", "NVLINK_TX_BYTES", "NVLINK_RX_BYTES"):
            idle[f"DCGM_FI_PROF_{name}"] = 0.0
        self.shows(ranks, span=slice(self.after(at), None), **idle)

    def vanish(self, at: float, *, ranks: Any = (), nodes: Any = ()) -> None:
        """Let all metrics of some ranks or nodes end at a time."""
        for held, units in ((self.of_rank, list(ranks)), (self.of_node, list(nodes))):
            for values in held.values() if units else ():
                values[units, self.after(at) :] = np.nan

    def only(self, *names: str, others: bool = False) -> None:
        """Leave out all metrics but those whose names begin so; or these, with `others`."""
        for held in (self.of_rank, self.of_node):
            for key in [key for key in held if key[0].startswith(names) == others]:
                del held[key]

    def table(self) -> pa.Table | None:
        """All samples in long form; counters are cumulative, and one sample in a hundred is missing."""
        parts = [
            self._series(name, device, unit, row, ranked)
            for held, ranked in ((self.of_rank, True), (self.of_node, False))
            for (name, device), values in held.items()
            for unit, row in enumerate(values)
        ]
        if not parts:
            return None
        counts = [len(times) for times, *_ in parts]
        time, value, *labels = zip(*parts, strict=True)
        columns = {"time": np.concatenate(time), "value": np.concatenate(value)}
        kinds = {"node": pa.string(), "rank": pa.int32(), "device": pa.string(), "name": pa.string()}
        repeated = np.repeat(np.arange(len(parts)), counts)
        for (name, kind), held in zip(kinds.items(), labels, strict=True):
            columns[name] = pa.array(held, kind).take(pa.array(repeated))
        return pa.table(columns)

    def _series(
        self, name: str, device: str | None, unit: int, row: FloatArray, ranked: bool
    ) -> tuple[FloatArray, FloatArray, str, int | None, str | None, str]:
        """Times, values, and the labels node, rank, device and name."""
        times = self.times + self.rng.uniform(0, 0.2 * self.job.every)
        if name.endswith(COUNTERS):
            begin = float(self.rng.integers(0, 10_000 if np.nanmean(row) > 0.02 else 3))
            begin = 0.0 if "ECC" in name or "REMAP" in name else begin
            row = begin + np.cumsum(row * self.job.every)
            if not name.endswith(FRACTIONAL):
                row = np.floor(row + 1e-6)
        scraped = (self.rng.random(row.size) > 0.01) & ~np.isnan(row)
        node = self.job.node(unit // self.job.per_node if ranked else unit)
        if device == "gpu":
            device = f"nvidia{unit % self.job.per_node}"
        return times[scraped], row[scraped], node, unit if ranked and self.ranked else None, device, name

    def _share(self, *phases: str) -> FloatArray:
        """Share of each scrape interval that a rank spends in the phases, shape (n_ranks, n_samples)."""
        job, n = self.job, self.job.finished
        found = np.zeros((job.ranks, self.times.size))
        if not n:
            return found
        seconds = np.zeros((job.ranks, n))
        for name in phases:
            held = job.wait + job.transfer if name == "exchange" else job.phase.get(name)
            seconds += 0 if held is None else held[:, :n]
        edges = np.append(self.times, self.times[-1] + job.every)
        for rank in range(job.ranks):
            ends = np.append(job.begin[rank, 0], job.begin[rank, :n] + job.whole[rank, :n])
            spent = np.append(0.0, np.cumsum(seconds[rank]))
            found[rank] = np.diff(np.interp(edges, ends, spent)) / job.every
        return np.clip(found, 0, 1)

    def _gpus(self) -> None:
        size = (self.job.ranks, self.times.size)
        sheet, rng = self.gpu, self.rng
        # A collective that waits keeps a kernel running; a stopped job leaves it running until it is killed.
        after = self.times[None, :] > self.job.stopped
        busy = np.where(after, 1.0, np.clip(self.compute + self.exchange, 0, 1))
        power = 0.16 + 0.76 * self.compute + 0.22 * np.where(after, 1.0, self.exchange)
        power = np.clip(power, 0, 0.99) * sheet.watts * (1 + 0.01 * rng.standard_normal((size[0], 1)))
        heat = 30 + 34 * power / sheet.watts + rng.normal(0, 2.0, (size[0], 1))
        active = 0.78 * self.compute + 0.12 * self.exchange
        gauges: dict[str, Any] = {
            "DEV_SM_CLOCK": sheet.clock - 15 * rng.integers(0, 3, size),
            "DEV_MEM_CLOCK": sheet.memory_clock,
            "DEV_GPU_TEMP": np.round(heat + rng.normal(0, 0.7, size)),
            "DEV_MEMORY_TEMP": np.round(heat + 9 + rng.normal(0, 0.8, size)),
            "DEV_POWER_USAGE": power + rng.normal(0, 0.01 * sheet.watts, size),
            "DEV_CLOCKS_EVENT_REASONS": 0.0,
            "DEV_GPU_UTIL": np.round(np.clip(100 * busy - np.abs(rng.normal(0, 0.6, size)), 0, 100)),
            "PROF_SM_ACTIVE": np.clip(active + rng.normal(0, 0.01, size), 0, 1),
            "DEV_FB_USED": sheet.memory * (0.86 + 0.002 * rng.standard_normal((size[0], 1))),
            **dict.fromkeys(("DEV_PCIE_LINK_GEN", "DEV_PCIE_MAX_LINK_GEN"), sheet.pcie),
            **dict.fromkeys(("DEV_PCIE_LINK_WIDTH", "DEV_PCIE_MAX_LINK_WIDTH"), 16),
            "PROF_PCIE_RX_BYTES": (0.4e9 + 6e9 * self.exchange) * rng.lognormal(0, 0.05, size),
            "PROF_PCIE_TX_BYTES": (0.3e9 + 6e9 * self.exchange) * rng.lognormal(0, 0.05, size),
            "DEV_XID_ERRORS": 0.0,
            "DEV_ECC_SBE_VOL_TOTAL": 0.0,
            "DEV_ECC_DBE_VOL_TOTAL": 0.0,
            "DEV_UNCORRECTABLE_REMAPPED_ROWS": 0.0,
            "DEV_PCIE_REPLAY_COUNTER": 0.0006,
            "DEV_THERMAL_VIOLATION": 0.0,
            "DEV_POWER_VIOLATION": 0.0,
        }
        if self.job.per_node > 1 and sheet.watts > 100:
            traffic = (2e8 + 4e10 * self.exchange) * rng.lognormal(0, 0.05, size)
            gauges["PROF_NVLINK_TX_BYTES"] = traffic
            gauges["PROF_NVLINK_RX_BYTES"] = traffic * rng.lognormal(0, 0.02, size)
        for name, values in gauges.items():
            self.of_rank[f"DCGM_FI_{name}", "gpu"] = np.zeros(size) + values

    def _wavering(
        self, held: Samples, units: int, levels: dict[tuple[str, str | None], tuple[float, float]]
    ) -> None:
        """Metrics around a level with a relative noise, or constant ones."""
        size = (units, self.times.size)
        for key, (level, noise) in levels.items():
            held[key] = level * self.rng.lognormal(0, noise, size) if noise else np.full(size, level)

    def _hosts(self) -> None:
        rng, nodes = self.rng, self.job.n_nodes
        size, n_cpus, put = (nodes, self.times.size), 96.0, self.of_node
        used = np.minimum(0.6 * n_cpus, 1.4 * self.job.per_node) * rng.lognormal(0, 0.04, size)
        put["node_cpu_seconds_total", "user"] = used
        put["node_cpu_seconds_total", "system"] = 0.12 * used
        cpu, disk, net = "node_cpu_seconds_total", "node_disk_{}_total", "node_network_{}_total"
        self._wavering(put, nodes, {(cpu, "iowait"): (0.05, 0.3), (cpu, "steal"): (0.0, 0.0)})
        put["node_cpu_seconds_total", "idle"] = n_cpus - 1.13 * used
        put["node_load1", None] = used * rng.lognormal(0.1, 0.06, size)
        pressure = {"cpu": (0.008, 0.4), "io": (0.004, 0.4), "memory": (0.0, 0.0)}
        waiting: Any = {
            (f"node_pressure_{name}_waiting_seconds_total", None): v for name, v in pressure.items()
        }
        self._wavering(put, nodes, waiting)
        put["node_vmstat_pgmajfault", None] = rng.poisson(0.4, size).astype(float)
        idle = (("node_vmstat_pswpin", None), ("node_vmstat_oom_kill", None))
        self._wavering(put, nodes, dict.fromkeys(idle, (0.0, 0.0)))
        put["node_memory_MemAvailable_bytes", None] = 1.4e12 * (1 + rng.normal(0, 0.004, size))
        reads = {
            "read_bytes": 4e7,
            "reads_completed": 320,
            "read_time_seconds": 0.06,
            "io_time_seconds": 0.03,
        }
        self._wavering(put, nodes, {(disk.format(name), "nvme0n1"): (v, 0.3) for name, v in reads.items()})
        ways = ("receive_bytes", "transmit_bytes")
        self._wavering(put, nodes, {(net.format(way), "eth0"): (2.5e5, 0.3) for way in ways})
        put["node_network_receive_drop_total", "eth0"] = rng.poisson(0.02, size).astype(float)
        segments: Any = {"node_netstat_Tcp_RetransSegs": (0.2, 0.3), "node_netstat_Tcp_OutSegs": (900, 0.1)}
        self._wavering(put, nodes, {(name, None): level for name, level in segments.items()})

    def _network(self) -> None:
        job, rng, put = self.job, self.rng, self.of_node
        size = (job.n_nodes, self.times.size)
        share = np.array([self.exchange[job.of_node(node)].mean(axis=0) for node in range(job.n_nodes)])
        for device in PORTS[: job.ports if job.n_nodes > 1 else 0]:
            port = "node_infiniband_port_{}_total"
            sent = (1e6 + 9e9 * share) * rng.lognormal(0, 0.04, size)
            put[port.format("data_transmitted_bytes"), device] = sent
            put[port.format("data_received_bytes"), device] = sent * rng.lognormal(0, 0.01, size)
            for name in ("link_downed", "symbol_error", "link_error_recovery"):
                put[f"node_infiniband_{name}_total", device] = np.zeros(size)
            if job.roce:
                rates = {"np_cnp_sent": 6.0, "rp_cnp_handled": 6.0, "out_of_sequence": 0.01}
                self._wavering(put, size[0], {(name, device): (v, 0.3) for name, v in rates.items()})
                put["local_ack_timeout_err", device] = np.zeros(size)
            else:
                put[port.format("transmit_wait"), device] = 4e5 * share * rng.lognormal(0, 0.3, size)

    def _processes(self) -> None:
        cpu, waiting = "process_cpu_seconds_total", "process_schedstat_waiting_seconds_total"
        first = {(cpu, "host/user"): (0.9, 0.05), (cpu, "loader/user"): (0.8, 0.1)}
        first |= {(waiting, "host"): (0.004, 0.3), (waiting, "loader"): (0.01, 0.3)}
        self._wavering(self.of_rank, self.job.ranks, dict(first))
        faults = self.rng.poisson(0.02, (self.job.ranks, self.times.size)).astype(float)
        self.of_rank["process_major_page_faults_total", "host"] = faults
        then: dict[tuple[str, str | None], tuple[float, float]] = {
            ("process_context_switches_total", "host/nonvoluntary"): (4, 0.3),
            ("container_cpu_cfs_throttled_seconds_total", None): (0.0, 0.0),
            ("container_pressure_cpu_waiting_seconds_total", None): (0.01, 0.3),
            ("container_pressure_io_waiting_seconds_total", None): (0.004, 0.3),
        }
        self._wavering(self.of_rank, self.job.ranks, then)
