"""Exporters, one function each: it reads the `FinishedRun` and writes to the `MetricsScraper`.

Names and units are the exporters' own. A new exporter is one function and one line in `EXPORTERS`.
"""

from __future__ import annotations

from collections.abc import Callable

from rca.lab.simulation.exporters import dcgm, network, node, process
from rca.lab.simulation.finished_run import FinishedRun
from rca.lab.simulation.scraping import MetricsScraper

__all__ = ["EXPORTERS", "export"]

EXPORTERS: dict[str, Callable[[FinishedRun, MetricsScraper], None]] = {
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


def export(run: FinishedRun, collector: MetricsScraper) -> None:
    """Run the exporters the scenario has."""
    for name in run.scenario.telemetry.exporters:
        collector.begin(name)
        EXPORTERS[name](run, collector)
