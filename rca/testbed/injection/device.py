"""A slow device or a crowded copy link.

Foreign work on a rank's GPU.
"""

from __future__ import annotations

import os
import select
import signal
import time
from functools import partial

from rca.testbed.injection.injector import Injector
from rca.testbed.process import Placement, Spawned, send
from rca.testbed.ranks.neighbour import Deed, instruct
from rca.testbed.ranks.shared import TOKEN
from rca.testbed.ranks.stand_in import copy_forever

DUTY_PERIOD_SECONDS = 0.04


def stop_and_go(pid: int, stopped_share: float) -> None:
    """Stop and continue a process on a fixed period, until killed."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(DUTY_PERIOD_SECONDS * stopped_share)
        os.kill(pid, signal.SIGCONT)
        time.sleep(DUTY_PERIOD_SECONDS * (1 - stopped_share))


class DutyCycle(Injector):
    """The device may work only part of the time."""

    _pacers: tuple[Spawned, ...] = ()

    def start(self) -> None:
        placement = Placement(real_time=self.bed.permitted.real_time)
        self._pacers = tuple(
            self.bed.family.spawn(
                "pacer", partial(stop_and_go, self._device(rank).pid, self.fault.level), placement
            )
            for rank in self.victims
        )

    def stop(self) -> None:
        self.bed.family.end(*self._pacers)
        for rank in self.victims:
            send(self._device(rank), signal.SIGCONT)

    def _device(self, rank: int) -> Spawned:
        return self.bed.ranks[rank].processes["device"]


class CopyCrowd(Injector):
    """Foreign copiers on the node's link."""

    _copiers: tuple[Spawned, ...] = ()

    def start(self) -> None:
        self._copiers = tuple(
            self.bed.family.spawn(
                "crowd",
                partial(copy_forever, self.bed.links[node], self.bed.job.scale),
                Placement(core=self.bed.nodes[node].core, real_time=self.bed.permitted.real_time),
            )
            for node in self.victim_nodes
            for _ in range(int(self.fault.level))
        )

    def stop(self) -> None:
        # One of them may die holding the token.
        self.bed.family.end(*self._copiers)
        for node in self.victim_nodes:
            restore_token(self.bed.links[node].reader, self.bed.links[node].writer)


def restore_token(reader: int, writer: int, patience_seconds: float = 0.05) -> None:
    """Make sure that exactly one token circulates, although a copier was killed."""
    readable, _, _ = select.select([reader], [], [], patience_seconds)
    if not readable:
        os.write(writer, TOKEN)


DEEDS = {
    "gpu_gemms": Deed.GEMMS,
    "gpu_memory_traffic": Deed.MEMORY_TRAFFIC,
    "pinned_copies": Deed.PINNED_COPIES,
}


class ForeignWork(Injector):
    """The processes that wait beside every GPU rank get to work."""

    def start(self) -> None:
        self._tell(DEEDS[self.fault.kind], self.fault.level)

    def stop(self) -> None:
        self._tell(Deed.NOTHING, 0.0)

    def _tell(self, deed: Deed, load: float) -> None:
        for rank in self.victims:
            instruct(self.bed.neighbours[rank], deed, load)
