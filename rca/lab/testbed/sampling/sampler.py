"""Rounds of samples over the whole testbed, and the CPU time of other processes."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rca.lab.testbed.bed import Bed
from rca.lab.testbed.names import address, node_name
from rca.lab.testbed.process import in_namespace
from rca.lab.testbed.ranks.shared import Gauge
from rca.lab.testbed.sampling.gpu_watch import GpuObservation, GpuWatch
from rca.lab.testbed.sampling.host_signals import (
    CPU_MODES,
    sample_machine,
    sample_node_groups,
    sample_process,
    sample_rank_groups,
)
from rca.lab.testbed.sampling.network_signals import NamespaceProbe, sample_namespace
from rca.lab.testbed.sampling.series import Series

SAMPLE_PERIOD_SECONDS = 0.2


class Sampler:
    """Samples a bed into `series`."""

    def __init__(self, bed: Bed) -> None:
        self.series = Series()
        self._bed = bed
        self._probes: list[NamespaceProbe] = []
        for node in bed.nodes if bed.permitted.namespaces else []:
            with in_namespace(node.namespace):
                self._probes.append(NamespaceProbe(node.interface))
        self._peers = {address(index): str(index) for index in range(bed.job.nodes)}
        self._gpus = (
            GpuWatch(bed.job, bed.gpus, bed.process_table, SAMPLE_PERIOD_SECONDS) if bed.gpus else None
        )
        self._began: float | None = None

    @property
    def gpus(self) -> list[GpuObservation]:
        """Observations of the GPUs."""
        return [] if self._gpus is None else self._gpus.seen

    def sample(self, time: float) -> None:
        """Take one round at `time`, monotonic seconds."""
        bed = self._bed
        self._began = time if self._began is None else self._began
        for held in bed.ranks:
            node = held.node.index
            name = node_name(node)
            for process in (held.processes["host"], held.processes["loader"]):
                if process.pid in bed.process_table.alive:
                    sample_process(self.series, time, process.pid, process.role, node=name, rank=held.rank)
            sample_rank_groups(self.series, time, bed.groups, node, held.rank)
            self._sample_collector(time, held.rank, name)
        for index, probe in enumerate(self._probes):
            folder = Path(f"/proc/{bed.holders[index].pid}/net")
            interface = bed.nodes[index].interface
            sample_namespace(self.series, time, index, folder, probe, interface, self._peers)
        for node in range(bed.job.nodes):
            sample_node_groups(self.series, time, bed.groups, node)
        sample_machine(self.series, time, None if bed.disk is None else bed.disk[0])
        if self._gpus is not None:
            self._gpus.take(self.series, self._began)

    def close(self) -> None:
        """Close the sockets that keep namespaces alive, and the GPUs' pipe."""
        if self._gpus is not None:
            self._gpus.close()
        for probe in self._probes:
            probe.close()

    def _sample_collector(self, time: float, rank: int, node: str) -> None:
        gauges = self._bed.ranks[rank].shared.gauges
        self.series.add(
            time,
            {
                "python_gc_pause_seconds_total": gauges[Gauge.GC_SECONDS],
                "python_gc_objects_collected_total": gauges[Gauge.GC_COLLECTED],
            },
            node=node,
            rank=rank,
        )
        counted = {"python_gc_collections_total": gauges[Gauge.GC_COLLECTIONS]}
        self.series.add(time, counted, node=node, rank=rank, device="2")


class CpuAccount:
    """CPU time of the machine, of the testbed's processes, and of all others by difference."""

    def __init__(self) -> None:
        self._own: dict[int, float] = {}
        self._first: tuple[float, float, float] | None = None
        self._last = (0.0, 0.0, 0.0)

    def observe(self, time: float, pids: list[int]) -> None:
        """Read the CPU time of the machine and of these processes; ended processes keep their last value."""
        import psutil

        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                used = psutil.Process(pid).cpu_times()
                self._own[pid] = used.user + used.system
        machine = psutil.cpu_times()
        busy = sum(getattr(machine, mode) for mode in CPU_MODES if mode not in ("idle", "iowait"))
        self._last = (time, busy, sum(self._own.values()))
        self._first = self._first or self._last

    def foreign_cpu_share(self, n_cores: int) -> float:
        """Share of the CPU time that other processes used since the first observation, from 0 to 1."""
        if self._first is None:
            return 0.0
        wall, machine, own = (last - first for last, first in zip(self._last, self._first, strict=True))
        if wall <= 0:
            return 0.0
        return min(1.0, max(0.0, (machine - own) / (wall * n_cores)))
