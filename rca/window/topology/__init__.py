"""Hardware topology of a job: GPU, PCIe switch, network adapter, leaf switch and rail of each rank."""

from rca.window.topology.attach import with_topology
from rca.window.topology.hardware import HardwareTopology, merged
from rca.window.topology.read import read_topology

__all__ = ["HardwareTopology", "merged", "read_topology", "with_topology"]
