"""Faults of host resources: too little CPU, too little memory, a slow disk."""

from __future__ import annotations

from rca.lab.testbed.injection.injector import Injector
from rca.lab.testbed.process import ProcessPlacement, Spawned
from rca.lab.testbed.ranks.host import TABLE_BYTES

# CPU weight of a hog relative to a rank's. At 0.5, twelve hogs made an 8-rank step only 28 % longer.
_RANKS_PER_HOG = 1.0
_MIB = 1024 * 1024
_LIMIT_ATTEMPTS = 20
_MEGABYTE = 1_000_000


def burn() -> None:
    """Use a core until killed."""
    while True:
        sum(range(10_000))


class CpuHogs(Injector):
    """Busy loops on the core of one rank, or on those of all ranks of a node."""

    _hogs: tuple[Spawned, ...] = ()

    def start(self) -> None:
        count = int(self.fault.level)
        if self.fault.scope == "rank":
            self._hogs = tuple(
                self._hog(self.bed.placement_near(rank)) for rank in self.affected_ranks for _ in range(count)
            )
            return
        hogs = []
        for node in self.fault.nodes:
            self.bed.groups.set_weight(node, count * _RANKS_PER_HOG)
            hogs += [self._hog(self.bed.foreign_placement(node)) for _ in range(count)]
        self._hogs = tuple(hogs)

    def stop(self) -> None:
        self.bed.process_table.end(*self._hogs)

    def _hog(self, placement: ProcessPlacement) -> Spawned:
        return self.bed.process_table.spawn("hog", burn, placement)


class CpuQuota(Injector):
    """A tight CPU quota on some ranks; the others have a generous one."""

    def start(self) -> None:
        self._set(self.fault.level)

    def stop(self) -> None:
        self._set(None)

    def _set(self, milliseconds: float | None) -> None:
        for rank in self.affected_ranks:
            self.bed.groups.set_cpu_quota(self.bed.job.node_of(rank), rank, milliseconds)


class MemoryLimit(Injector):
    """A limit that leaves a few MiB of the lookup table in memory."""

    def start(self) -> None:
        for rank in self.affected_ranks:
            node = self.bed.job.node_of(rank)
            used = self.bed.groups.memory_used(node, rank)
            missing = TABLE_BYTES - int(self.fault.level * _MIB)
            self._tighten(node, rank, used - missing)

    def stop(self) -> None:
        for rank in self.affected_ranks:
            self.bed.groups.set_memory_limit(self.bed.job.node_of(rank), rank, None)

    def _tighten(self, node: int, rank: int, limit: int) -> None:
        """Set the limit from above: the kernel refuses a limit that it cannot reclaim down to."""
        for attempt in range(_LIMIT_ATTEMPTS):
            try:
                self.bed.groups.set_memory_limit(node, rank, limit + attempt * _MIB)
            except OSError:
                continue
            return
        raise OSError(f"rank {rank}: the kernel refuses a memory limit near {limit} bytes")


class ReadLimit(Injector):
    """The kernel's read limit on the affected ranks' groups."""

    def start(self) -> None:
        # Longer steps need fewer bytes per second for the same slowdown.
        self._set(int(self.fault.level * _MEGABYTE / self.bed.job.scale))

    def stop(self) -> None:
        self._set(0)

    def _set(self, bytes_per_second: int) -> None:
        if self.bed.disk is None:
            raise FileNotFoundError("reads of the temporary folder cannot be limited: it is not on a disk")
        for rank in self.affected_ranks:
            node = self.bed.job.node_of(rank)
            self.bed.groups.set_read_limit(node, rank, self.bed.disk[1], bytes_per_second)
