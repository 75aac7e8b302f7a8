"""Foreign work on a rank's GPU."""

from __future__ import annotations

from rca.testbed.injection.injector import Injector
from rca.testbed.ranks.neighbour import Deed, instruct

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
