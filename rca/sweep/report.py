"""What an archive lost, and to which causes and nodes: the answers of a sweep, summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from jinja2 import Template

from rca.runbook.html import page_environment
from rca.sweep.answers import Answers
from rca.sweep.data_set import REFUSED, Row
from rca.telemetry.causes import UNKNOWN

#: Two windows of a job with the same cause and place are one incident if so little time lies between them.
SAME_INCIDENT = timedelta(hours=1)
#: Verdicts about a fault.
FAULTY = ("fail_slow", "fail_stop")
NO_CAUSE = "no cause named"
_COLUMNS = (
    "url", "job_id", "window_start", "window_end", "verdict", "failure_mode", "cause", "ranks", "nodes",
    "seconds_per_step", "gpu_hours_lost", "error", "error_message",
)  # fmt: skip


@dataclass(frozen=True)
class Incident:
    """Windows of one job with the same fault at the same place, without a long gap.

    Attributes
    ----------
    cause : str
        `NO_CAUSE` if none is named.
    places : tuple of str
        Nodes, else ranks.
    gpu_hours : float
        Lost in its windows; windows that overlap count twice.
    urls : tuple of str
        Of its windows.
    """

    job_id: str
    verdict: str
    cause: str
    places: tuple[str, ...]
    nodes: tuple[str, ...]
    start: datetime | None
    end: datetime | None
    gpu_hours: float
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Total:
    """Incidents that share a cause, a node or a job."""

    name: str
    incidents: int
    jobs: int
    windows: int
    gpu_hours: float
    main: str


@dataclass(frozen=True)
class Report:
    """The sum of a data set of answers.

    Attributes
    ----------
    windows : int
    jobs : int
    verdicts : dict of str to int
        Windows by verdict; ``refused`` are those that could not be diagnosed.
    incidents : list of Incident
        The costliest first.
    causes, nodes, by_job : list of Total
        The costliest first; `main` is the most frequent node, cause or cause.
    refused : list of (str, str)
        URL and reason.
    start, end : datetime or None
        Of the windows.
    """

    windows: int
    jobs: int
    verdicts: dict[str, int]
    incidents: list[Incident]
    causes: list[Total]
    nodes: list[Total]
    by_job: list[Total]
    refused: list[tuple[str, str]]
    start: datetime | None
    end: datetime | None

    @property
    def gpu_hours(self) -> float:
        """Lost in all incidents."""
        return sum(each.gpu_hours for each in self.incidents)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "windows": self.windows,
            "jobs": self.jobs,
            "verdicts": self.verdicts,
            "gpu_hours_lost": self.gpu_hours,
            "start": _text(self.start),
            "end": _text(self.end),
            "causes": [vars(each) for each in self.causes],
            "nodes": [vars(each) for each in self.nodes],
            "by_job": [vars(each) for each in self.by_job],
            "incidents": [
                {**vars(each), "start": _text(each.start), "end": _text(each.end)} for each in self.incidents
            ],
            "refused": [{"url": url, "reason": reason} for url, reason in self.refused],
        }

    def to_html(self) -> str:
        """A page that needs no script, font or file from elsewhere."""
        return _template().render(report=self)


def report(answers: Answers) -> Report:
    """Sum up a data set of answers.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    rows: list[Row] = answers.read(_COLUMNS).to_pylist()
    answered = [row for row in rows if row["error"] is None]
    found = sorted(_incidents(answered), key=lambda each: (-each.gpu_hours, each.job_id, each.cause))
    times = [row["window_start"] for row in answered if row["window_start"] is not None]
    ends = [row["window_end"] for row in answered if row["window_end"] is not None]
    return Report(
        windows=len(rows),
        jobs=len({row["job_id"] for row in answered}),
        verdicts=dict(sorted(Counter(row["verdict"] or REFUSED for row in rows).items())),
        incidents=found,
        causes=_totals(found, lambda each: (each.cause,), lambda each: each.places),
        nodes=_totals(found, lambda each: each.nodes, lambda each: (each.cause,)),
        by_job=_totals(found, lambda each: (each.job_id,), lambda each: (each.cause,)),
        refused=[(row["url"], row["error_message"]) for row in rows if row["error"] is not None],
        start=min(times, default=None),
        end=max(ends, default=None),
    )


def _incidents(rows: Iterable[Row]) -> list[Incident]:
    groups: dict[tuple[str, ...], list[list[Row]]] = {}
    faulty = [row for row in rows if row["verdict"] in FAULTY]
    for row in sorted(faulty, key=lambda row: (row["window_start"] is not None, row["window_start"] or 0)):
        key = (row["job_id"], row["verdict"], _cause(row), *_places(row))
        runs = groups.setdefault(key, [])
        if runs and _continues(runs[-1], row):
            runs[-1].append(row)
        else:
            runs.append([row])
    return [_incident(run) for runs in groups.values() for run in runs]


def _continues(run: Sequence[Row], row: Row) -> bool:
    ends = [each["window_end"] for each in run if each["window_end"] is not None]
    return bool(ends and row["window_start"] is not None and row["window_start"] - max(ends) <= SAME_INCIDENT)


def _incident(run: Sequence[Row]) -> Incident:
    first = run[0]
    ends = [each["window_end"] for each in run if each["window_end"] is not None]
    return Incident(
        job_id=first["job_id"],
        verdict=first["verdict"],
        cause=_cause(first),
        places=_places(first),
        nodes=tuple(sorted(first["nodes"])),
        start=first["window_start"],
        end=max(ends, default=None),
        gpu_hours=sum(each["gpu_hours_lost"] or 0.0 for each in run),
        urls=tuple(each["url"] for each in run),
    )


def _cause(row: Row) -> str:
    return NO_CAUSE if row["cause"] in (None, UNKNOWN) else str(row["cause"])


def _places(row: Row) -> tuple[str, ...]:
    return tuple(sorted(row["nodes"])) or tuple(f"rank {rank}" for rank in sorted(row["ranks"])[:8])


def _totals(
    incidents: Sequence[Incident],
    names: Callable[[Incident], Iterable[str]],
    others: Callable[[Incident], Iterable[str]],
) -> list[Total]:
    groups: dict[str, list[Incident]] = {}
    for each in incidents:
        for name in names(each):
            groups.setdefault(name, []).append(each)
    found = []
    for name, held in groups.items():
        beside = Counter(other for each in held for other in others(each))
        most = min(beside, key=lambda other: (-beside[other], other), default="")
        found.append(
            Total(
                name=name,
                incidents=len(held),
                jobs=len({each.job_id for each in held}),
                windows=sum(len(each.urls) for each in held),
                gpu_hours=sum(each.gpu_hours for each in held),
                main=most,
            )
        )
    return sorted(found, key=lambda total: (-total.gpu_hours, -total.incidents, total.name))


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


@cache
def _template() -> Template:
    return page_environment("rca.sweep").get_template("report.html.j2")
