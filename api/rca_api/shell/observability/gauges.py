"""Gauges: some are read at each scrape, those of the database are counted every 15 seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.pool import QueuePool

from rca_api.diagnoses.tables import WindowRow
from rca_api.models.current import CurrentModels
from rca_api.shell.observability.metrics import ROW_STATES, Metrics
from rca_api.shell.processes.pool import ComputePool
from rca_api.shell.requests.admission import Admission
from rca_api.shell.store.base import Base, now
from rca_api.shell.store.database import Database
from rca_api.training_runs.repository import last_heartbeat

_log = structlog.stdlib.get_logger("rca_api")
COUNT_SECONDS = 15.0


@dataclass(eq=False)
class LiveGauges(Collector):
    """Gauges of the pool, the bundles and the connections, read at each scrape."""

    pool: ComputePool
    models: CurrentModels
    admission: Admission
    database: Database

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        yield self._bundles()
        load = self.pool.load()
        yield _gauge("rca_pool_size", "Processes that the pool should have.", load.size)
        yield _gauge("rca_pool_warm", "Processes of the pool that are ready or working.", load.warm)
        yield _gauge("rca_pool_busy", "Processes of the pool that are working.", load.busy)
        yield _gauge("rca_pool_waiting", "Tasks that wait for a process.", load.waiting)
        yield _gauge("rca_pool_memory_bytes", "Resident memory of all processes of the pool.", self._memory())
        yield _gauge(
            "rca_held_bytes", "Bytes of bodies that are being received or wait.", self.admission.held_bytes
        )
        connections = self.database.engine.pool
        if isinstance(connections, QueuePool):
            family = GaugeMetricFamily(
                "rca_database_connections", "Connections to the database.", labels=["state"]
            )
            family.add_metric(["in_use"], connections.checkedout())
            family.add_metric(["idle"], connections.checkedin())
            yield family

    def _bundles(self) -> GaugeMetricFamily:
        """The bundles chosen now; the last answer may come from a bundle that was replaced since."""
        family = GaugeMetricFamily(
            "rca_bundle_info",
            "The model bundles in use, champion and challenger; always 1.",
            labels=["name", "version", "sha256", "registry_version", "role"],
        )
        for role, ref in (("champion", self.models.champion), ("challenger", self.models.challenger)):
            model = None if ref is None else self.pool.model_of(ref)
            if model is not None:
                number = "" if model.registry_version is None else str(model.registry_version)
                family.add_metric([model.name, model.version, model.sha256, number, role], 1)
        return family

    def _memory(self) -> int:
        return sum(resident_bytes(pid) for pid in self.pool.processes())


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone, or where there is no /proc."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def count(database: Database, metrics: Metrics) -> None:
    """Count waiting rows and the size of the window store.

    Not at each scrape: a database that hangs must not take away the metrics that show it.
    """
    with database.reading() as session:
        windows, n_bytes = session.execute(
            select(func.count(), func.coalesce(func.sum(WindowRow.n_bytes), 0)).select_from(WindowRow)
        ).one()
        rows: dict[str, dict[str, int]] = {}
        for name, states in ROW_STATES.items():
            column = Base.metadata.tables[name].c.state
            wanted = select(column, func.count()).where(column.in_(states)).group_by(column)
            rows[name] = {str(state): int(n) for state, n in session.execute(wanted)}
        heartbeat = last_heartbeat(session)
    metrics.windows_stored.set(windows)
    metrics.window_bytes.set(float(n_bytes))
    metrics.training_heartbeat_age.set(0 if heartbeat is None else (now() - heartbeat).total_seconds())
    for name, found in rows.items():
        for state in ROW_STATES[name]:
            metrics.rows[name].labels(state).set(found.get(state, 0))


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value=value)
