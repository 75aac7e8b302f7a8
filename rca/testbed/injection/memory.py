"""Too little memory for a rank: its file pages are reclaimed and fault in again from the disk."""

from __future__ import annotations

from rca.testbed.injection.injector import Injector
from rca.testbed.ranks.table import TABLE_BYTES

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
