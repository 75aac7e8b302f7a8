"""Too little CPU for the host processes: busy neighbours, or a quota."""

from __future__ import annotations

from rca.testbed.injection.injector import Injector
from rca.testbed.process import Placement, Spawned

# The weight of a hog beside the ranks' own. At a half, twelve hogs lengthened an 8-rank step by only 28 %.
_RANKS_PER_HOG = 1.0


def burn() -> None:
    """Use a core until killed."""
    while True:
        sum(range(10_000))


class CpuHogs(Injector):
    """Busy loops beside one rank, or beside all ranks of a node."""

    _hogs: tuple[Spawned, ...] = ()

    def start(self) -> None:
        count = int(self.fault.level)
        if self.fault.scope == "rank":
            self._hogs = tuple(
                self._hog(self.bed.beside(rank)) for rank in self.victims for _ in range(count)
            )
            return
        hogs = []
        for node in self.fault.nodes:
            self.bed.groups.set_weight(node, count * _RANKS_PER_HOG)
            hogs += [self._hog(self.bed.foreign(node)) for _ in range(count)]
        self._hogs = tuple(hogs)

    def stop(self) -> None:
        self.bed.family.end(*self._hogs)

    def _hog(self, placement: Placement) -> Spawned:
        return self.bed.family.spawn("hog", burn, placement)


class CpuQuota(Injector):
    """A tight quota where the other ranks have a generous one."""

    def start(self) -> None:
        self._set(self.fault.level)

    def stop(self) -> None:
        self._set(None)

    def _set(self, milliseconds: float | None) -> None:
        for rank in self.victims:
            self.bed.groups.set_cpu_quota(self.bed.job.node_of(rank), rank, milliseconds)
