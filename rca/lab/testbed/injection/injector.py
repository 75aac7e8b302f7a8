"""The base class of injectors: built for one fault on one testbed, started once, stopped once."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rca.lab.testbed.bed import Bed
from rca.lab.testbed.scenario import TestbedFault


class Injector(ABC):
    """A fault that can be started and stopped."""

    def __init__(self, bed: Bed, fault: TestbedFault) -> None:
        self.bed = bed
        self.fault = fault
        self.affected_ranks = fault.affected_ranks(bed.job)

    @abstractmethod
    def start(self) -> None:
        """Start the fault."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the fault; called once, after `start`."""

    @property
    def affected_nodes(self) -> list[int]:
        """Nodes that host an affected rank."""
        return sorted({self.bed.job.node_of(rank) for rank in self.affected_ranks})
