"""What would be scraped, one function per exporter; each reads the `World` and writes to the `Collector`.

Names and units are the exporters' own. A new exporter is one function and one line in `EXPORTERS`.
"""

from __future__ import annotations

from collections.abc import Callable

from rca.simulation.exporters import dcgm, network, node, process
from rca.simulation.finished_run import World
from rca.simulation.scraping import Collector

__all__ = ["EXPORTERS", "export"]

EXPORTERS: dict[str, Callable[[World, Collector], None]] = {
    "dcgm": dcgm.health,
    "dcgm_profiling": dcgm.profiling,
    "cpu": node.cpu,
    "pressure": node.pressure,
    "memory": node.memory,
    "disk": node.disk,
    "network": network.interface,
    "infiniband": network.infiniband,
    "tcp": network.connections,
    "qdisc": network.queues,
    "process": process.process,
    "container": process.container,
    "python": process.python,
}


def export(world: World, collector: Collector) -> None:
    """Run the exporters the scenario has."""
    for name in world.scenario.telemetry.exporters:
        collector.begin(name)
        EXPORTERS[name](world, collector)
