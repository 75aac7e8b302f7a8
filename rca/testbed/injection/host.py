"""Too little CPU for the host processes: busy neighbours, or a quota.

Too little memory for a rank: its file pages are reclaimed and fault in again from the disk.

A slow disk under some ranks.
"""

from __future__ import annotations

from rca.testbed.injection.injector import Injector
from rca.testbed.process import Placement, Spawned
from rca.testbed.ranks.host import TABLE_BYTES

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


_MIB = 1024 * 1024
_ATTEMPTS = 20


class MemoryLimit(Injector):
    """A limit that leaves a few MiB of the lookup table in memory."""

    def start(self) -> None:
        for rank in self.victims:
            node = self.bed.job.node_of(rank)
            used = self.bed.groups.memory_used(node, rank)
            missing = TABLE_BYTES - int(self.fault.level * _MIB)
            self._tighten(node, rank, used - missing)

    def stop(self) -> None:
        for rank in self.victims:
            self.bed.groups.set_memory_limit(self.bed.job.node_of(rank), rank, None)

    def _tighten(self, node: int, rank: int, limit: int) -> None:
        """Set the limit; the kernel refuses one that it cannot reclaim down to, so come from above."""
        for attempt in range(_ATTEMPTS):
            try:
                self.bed.groups.set_memory_limit(node, rank, limit + attempt * _MIB)
            except OSError:
                continue
            return
        raise OSError(f"rank {rank}: the kernel refuses a memory limit near {limit} bytes")


_MEGABYTE = 1_000_000


class ReadLimit(Injector):
    """The kernel's read limit on the victims' groups."""

    def start(self) -> None:
        # Longer steps need fewer bytes per second for the same slowdown.
        self._set(int(self.fault.level * _MEGABYTE / self.bed.job.scale))

    def stop(self) -> None:
        self._set(0)

    def _set(self, bytes_per_second: int) -> None:
        if self.bed.disk is None:
            raise FileNotFoundError("the temporary folder is on no disk whose reads can be limited")
        for rank in self.victims:
            node = self.bed.job.node_of(rank)
            self.bed.groups.set_read_limit(node, rank, self.bed.disk[1], bytes_per_second)
