"""What every injector is: built for one fault on one bed, started once, stopped once."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rca.testbed.bed import Bed
from rca.testbed.scenario import Fault


class Injector(ABC):
    """A fault that can be started and stopped.

    Parameters
    ----------
    bed : Bed
    fault : Fault
    """

    def __init__(self, bed: Bed, fault: Fault) -> None:
        self.bed = bed
        self.fault = fault
        self.victims = fault.victims(bed.job)

    @abstractmethod
    def start(self) -> None:
        """Do the damage."""

    @abstractmethod
    def stop(self) -> None:
        """Undo it; called once, after `start`."""

    @property
    def victim_nodes(self) -> list[int]:
        """Nodes that host a victim."""
        return sorted({self.bed.job.node_of(rank) for rank in self.victims})
