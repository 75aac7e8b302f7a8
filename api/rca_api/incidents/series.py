"""Open incidents as Prometheus series, for dashboards: which jobs are faulty, why, where, at which cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import select
from sqlalchemy.orm import Session

from rca_api.incidents.tables import IncidentRow

#: Most places of one incident that have a series.
MAX_PLACES = 4


class IncidentSeries(Collector):
    """Series of the newest open incidents.

    Parameters
    ----------
    max_incidents : int
        Incidents that have series. One job has at most one open incident.
    """

    def __init__(self, session: Session, max_incidents: int) -> None:
        newest = select(IncidentRow).where(IncidentRow.open_job_id.is_not(None))
        newest = newest.order_by(IncidentRow.opened_at.desc(), IncidentRow.id).limit(max_incidents)
        self._rows = list(session.scalars(newest))

    def collect(self) -> Iterator[Metric]:
        """The series of all these incidents."""
        named = ["job_id", "incident_id", "failure_mode", "cause", "confidence"]
        is_open = GaugeMetricFamily("rca_incident_open", "An open incident; always 1.", labels=named)
        places = GaugeMetricFamily(
            "rca_incident_place",
            "A node, else a rank, of an open incident; always 1.",
            labels=["job_id", "place"],
        )
        values: dict[str, tuple[str, Callable[[IncidentRow], float]]] = {
            "rca_incident_began_timestamp_seconds": ("Onset of an open incident.", _began),
            "rca_incident_lost_seconds": ("Time that it cost the job so far.", lambda row: row.seconds_lost),
            "rca_incident_lost_gpu_hours": ("GPU hours that it cost so far.", lambda row: row.gpu_hours_lost),
        }
        for row in self._rows:
            confidence = "suspected" if row.suspected else "confirmed"
            is_open.add_metric([row.job_id, row.id, row.failure_mode, row.cause or "unknown", confidence], 1)
            for place in (row.place or [])[:MAX_PLACES]:
                places.add_metric([row.job_id, place], 1)
        yield is_open
        yield places
        for name, (meaning, value) in values.items():
            family = GaugeMetricFamily(name, meaning, labels=["job_id"])
            for row in self._rows:
                family.add_metric([row.job_id], float(value(row)))
            yield family


def _began(row: IncidentRow) -> float:
    return row.began if row.onset is None else row.onset


def exposition(session: Session, max_incidents: int) -> bytes:
    """The series in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(IncidentSeries(session, max_incidents))
    return generate_latest(registry)
