"""A slow disk under some ranks."""

from __future__ import annotations

from rca.testbed.injection.injector import Injector

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
