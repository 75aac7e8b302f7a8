"""Faults of devices and copy links: slow devices, shared links, foreign work on a rank's GPU."""

from __future__ import annotations

import os
import select
import signal
import time
from functools import partial

from rca.lab.testbed.injection.injector import Injector
from rca.lab.testbed.process import ProcessPlacement, Spawned, send
from rca.lab.testbed.ranks.neighbour import GpuWork, set_gpu_load
from rca.lab.testbed.ranks.shared import TOKEN
from rca.lab.testbed.ranks.stand_in import copy_without_end

DUTY_PERIOD_SECONDS = 0.04
GPU_WORK = {
    "gpu_gemms": GpuWork.GEMMS,
    "gpu_memory_traffic": GpuWork.MEMORY_TRAFFIC,
    "pinned_copies": GpuWork.PINNED_COPIES,
}


def stop_and_go(pid: int, stopped_share: float) -> None:
    """Stop and continue a process on a fixed period, until killed."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(DUTY_PERIOD_SECONDS * stopped_share)
        os.kill(pid, signal.SIGCONT)
        time.sleep(DUTY_PERIOD_SECONDS * (1 - stopped_share))


class DutyCycle(Injector):
    """The device works only part of the time."""

    _pacers: tuple[Spawned, ...] = ()

    def start(self) -> None:
        placement = ProcessPlacement(real_time=self.bed.permitted.real_time)
        self._pacers = tuple(
            self.bed.process_table.spawn(
                "pacer", partial(stop_and_go, self._device(rank).pid, self.fault.level), placement
            )
            for rank in self.affected_ranks
        )

    def stop(self) -> None:
        self.bed.process_table.end(*self._pacers)
        for rank in self.affected_ranks:
            send(self._device(rank), signal.SIGCONT)

    def _device(self, rank: int) -> Spawned:
        return self.bed.ranks[rank].processes["device"]


class ForeignCopiers(Injector):
    """Foreign copiers on the node's link."""

    _copiers: tuple[Spawned, ...] = ()

    def start(self) -> None:
        self._copiers = tuple(
            self.bed.process_table.spawn(
                "crowd",
                partial(copy_without_end, self.bed.links[node], self.bed.job.scale),
                ProcessPlacement(core=self.bed.nodes[node].core, real_time=self.bed.permitted.real_time),
            )
            for node in self.affected_nodes
            for _ in range(int(self.fault.level))
        )

    def stop(self) -> None:
        # A copier may end while it holds the token.
        self.bed.process_table.end(*self._copiers)
        for node in self.affected_nodes:
            restore_token(self.bed.links[node].reader, self.bed.links[node].writer)


def restore_token(reader: int, writer: int, patience_seconds: float = 0.05) -> None:
    """Make sure that exactly one token circulates, although a copier was killed."""
    readable, _, _ = select.select([reader], [], [], patience_seconds)
    if not readable:
        os.write(writer, TOKEN)


class ForeignGpuWork(Injector):
    """The idle foreign processes on the rank's GPU start to work."""

    def start(self) -> None:
        self._set_load(GPU_WORK[self.fault.kind], self.fault.level)

    def stop(self) -> None:
        self._set_load(GpuWork.NOTHING, 0.0)

    def _set_load(self, work: GpuWork, load: float) -> None:
        for rank in self.affected_ranks:
            set_gpu_load(self.bed.neighbours[rank], work, load)
