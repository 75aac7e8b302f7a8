"""Hardware topology of a job: GPU, PCIe switch, network adapter, leaf switch and rail of each rank."""

from rca.telemetry.topology.attach import with_topology
from rca.telemetry.topology.hardware import HardwareTopology, merged
from rca.telemetry.topology.read import read_topology

__all__ = ["HardwareTopology", "merged", "read_topology", "with_topology"]
