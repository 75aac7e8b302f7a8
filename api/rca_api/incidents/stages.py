"""The stages of the recovery from an incident: detected, localised, explained, recovered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rca_api.incidents.schemas import Incident, IncidentEvent, IncidentWindow, Stage, StageName


def stages(
    incident: Incident, timeline: Sequence[IncidentEvent], windows: Sequence[IncidentWindow]
) -> list[Stage]:
    """When each stage was reached, and how long after the onset of the incident.

    Parameters
    ----------
    timeline : sequence of IncidentEvent
        In the order of their announcement.
    windows : sequence of IncidentWindow
        The newest ones, newest first.
    """
    reached: dict[StageName, datetime | None] = {
        "detected": next((each.window_end for each in timeline), None),
        "localised": next((each.window_end for each in timeline if each.place), None),
        "explained": next((each.window_end for each in timeline if each.cause is not None), None),
        "recovered": _recovered(incident, windows),
    }
    return [
        Stage(name=name, at=at, seconds=None if at is None else (at - incident.began).total_seconds())
        for name, at in reached.items()
    ]


def _recovered(incident: Incident, windows: Sequence[IncidentWindow]) -> datetime | None:
    """Begin of the first of the healthy windows at the end of an incident that healthy windows resolved."""
    if incident.resolution != "healthy":
        return None
    began = None
    for each in windows:
        if each.verdict in ("sick", "suspect"):
            # A healthy window may overlap the last faulty one.
            return None if began is None else max(began, each.window_end)
        if each.verdict == "healthy":
            began = each.window_start
    return began
