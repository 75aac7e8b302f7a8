"""What an archive lost, and to which causes and nodes: the answers of a sweep, summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from jinja2 import Template

from rca.runbook.html import page_environment
from rca.sweep.answers import Answers
from rca.sweep.data_set import REFUSED, Row
from rca.window.causes import UNKNOWN

#: Two windows of a job with the same cause and place are one incident if so little time lies between them.
SAME_INCIDENT = timedelta(hours=1)
#: Verdicts about a fault.
FAULTY = ("fail_slow", "fail_stop")
UNDECIDED = "undecided"
#: A further cause of a window counts from this probability; the first one always.
NAMED = 0.5
NO_CAUSE = "no cause named"
_COLUMNS = (
    "url", "model_sha256", "job_id", "window_start", "window_end", "verdict", "failure_mode", "causes",
    "ranks", "nodes", "gpu_hours_lost", "error", "error_message",
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
        That the cause costs in its windows. Time that several windows of the job cover counts once.
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
    """Incidents that share a cause, a node or a job.

    The cost of an incident on several nodes is divided among them.
    """

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
    verdicts : dict of str to int
        Windows by verdict; ``refused`` are those that could not be diagnosed.
    models : dict of str to int
        Windows by the digest of the model that answered.
    gpu_hours : float
        Lost in windows with a fault: what the causes cost, and what no cause explains.
    incidents : list of Incident
        The costliest first.
    causes, nodes, by_job : list of Total
        The costliest first; `main` is the most frequent node, cause or cause.
    suspects : list of Total
        Nodes that undecided windows name; without a cost.
    refused : list of (str, str)
        URL and reason.
    start, end : datetime or None
        Of the windows.
    """

    windows: int
    jobs: int
    verdicts: dict[str, int]
    models: dict[str, int]
    gpu_hours: float
    incidents: list[Incident]
    causes: list[Total]
    nodes: list[Total]
    by_job: list[Total]
    suspects: list[Total]
    refused: list[tuple[str, str]]
    start: datetime | None
    end: datetime | None

    @property
    def unexplained(self) -> float:
        """GPU-hours that no named cause costs."""
        return self.gpu_hours - sum(each.gpu_hours for each in self.incidents if each.cause != NO_CAUSE)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "windows": self.windows,
            "jobs": self.jobs,
            "verdicts": self.verdicts,
            "models": self.models,
            "gpu_hours_lost": self.gpu_hours,
            "gpu_hours_unexplained": self.unexplained,
            "start": _text(self.start),
            "end": _text(self.end),
            "causes": [vars(each) for each in self.causes],
            "nodes": [vars(each) for each in self.nodes],
            "by_job": [vars(each) for each in self.by_job],
            "suspects": [vars(each) for each in self.suspects],
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
    faulty = [row for row in answered if row["verdict"] in FAULTY]
    shares = _new_shares(faulty)
    lost = sum(shares[row["url"]] * (row["gpu_hours_lost"] or 0.0) for row in faulty)
    found = sorted(_incidents(faulty, shares), key=lambda each: (-each.gpu_hours, each.job_id, each.cause))
    doubted = [row for row in answered if row["verdict"] == UNDECIDED and row["failure_mode"] != "healthy"]
    times = [row["window_start"] for row in answered if row["window_start"] is not None]
    ends = [row["window_end"] for row in answered if row["window_end"] is not None]
    return Report(
        windows=len(rows),
        jobs=len({row["job_id"] for row in answered}),
        verdicts=dict(sorted(Counter(row["verdict"] or REFUSED for row in rows).items())),
        models=dict(sorted(Counter(row["model_sha256"] for row in rows).items())),
        gpu_hours=lost,
        incidents=found,
        causes=_totals(found, lambda each: (each.cause,), lambda each: each.places),
        nodes=_totals(found, lambda each: each.nodes, lambda each: (each.cause,)),
        by_job=_by_job(found, faulty, shares),
        suspects=_totals(_incidents(doubted, {}), lambda each: each.nodes, lambda each: (each.cause,)),
        refused=[(row["url"], row["error_message"]) for row in rows if row["error"] is not None],
        start=min(times, default=None),
        end=max(ends, default=None),
    )


def _by_job(incidents: Sequence[Incident], rows: Iterable[Row], shares: Mapping[str, float]) -> list[Total]:
    """Totals of jobs, with what no cause explains."""
    lost: Counter[str] = Counter()
    for row in rows:
        lost[row["job_id"]] += shares[row["url"]] * (row["gpu_hours_lost"] or 0.0)  # type: ignore[assignment]
    named = _totals(incidents, lambda each: (each.job_id,), lambda each: (each.cause,))
    whole = [replace(each, gpu_hours=float(lost[each.name])) for each in named]
    return sorted(whole, key=lambda total: (-total.gpu_hours, -total.incidents, total.name))


def _in_time(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["window_start"] is not None, row["window_start"] or 0))


def _new_shares(rows: Iterable[Row]) -> dict[str, float]:
    """Share of the time of each window, by URL, that no earlier window of its job covers."""
    ends: dict[str, datetime] = {}
    shares = {}
    for row in _in_time(rows):
        start, end = row["window_start"], row["window_end"]
        if start is None or end is None or end <= start:
            shares[row["url"]] = 1.0
            continue
        covered = max(start, ends.get(row["job_id"], start))
        shares[row["url"]] = max(0.0, (end - covered) / (end - start))
        ends[row["job_id"]] = max(covered, end)
    return shares


@dataclass(frozen=True)
class _Fault:
    """One fault in one window."""

    row: Row
    cause: str
    nodes: tuple[str, ...]
    places: tuple[str, ...]
    gpu_hours: float


def _faults(row: Row, share: float) -> Iterator[_Fault]:
    """The faults of a window: its causes, or what it lost without one."""
    nameless = {
        "cause": UNKNOWN,
        "nodes": row["nodes"],
        "ranks": row["ranks"],
        "gpu_hours_lost": row["gpu_hours_lost"],
    }
    likely = [
        each for number, each in enumerate(row["causes"]) if number == 0 or each["probability"] >= NAMED
    ]
    for each in likely or [nameless]:
        nodes = tuple(sorted(each["nodes"]))
        places = nodes or tuple(f"rank {rank}" for rank in sorted(each["ranks"])[:8])
        cause = NO_CAUSE if each["cause"] == UNKNOWN else str(each["cause"])
        yield _Fault(row, cause, nodes, places, share * (each["gpu_hours_lost"] or 0.0))


def _incidents(rows: Iterable[Row], shares: Mapping[str, float]) -> list[Incident]:
    groups: dict[tuple[str, ...], list[list[_Fault]]] = {}
    for row in _in_time(rows):
        for fault in _faults(row, shares.get(row["url"], 0.0)):
            runs = groups.setdefault((row["job_id"], row["verdict"], fault.cause, *fault.places), [])
            if runs and _continues(runs[-1], row):
                runs[-1].append(fault)
            else:
                runs.append([fault])
    return [_incident(run) for runs in groups.values() for run in runs]


def _continues(run: Sequence[_Fault], row: Row) -> bool:
    ends = [each.row["window_end"] for each in run if each.row["window_end"] is not None]
    return bool(ends and row["window_start"] is not None and row["window_start"] - max(ends) <= SAME_INCIDENT)


def _incident(run: Sequence[_Fault]) -> Incident:
    first = run[0]
    ends = [each.row["window_end"] for each in run if each.row["window_end"] is not None]
    return Incident(
        job_id=first.row["job_id"],
        verdict=first.row["verdict"],
        cause=first.cause,
        places=first.places,
        nodes=first.nodes,
        start=first.row["window_start"],
        end=max(ends, default=None),
        gpu_hours=sum(each.gpu_hours for each in run),
        urls=tuple(each.row["url"] for each in run),
    )


def _totals(
    incidents: Sequence[Incident],
    names: Callable[[Incident], Sequence[str]],
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
                windows=len({url for each in held for url in each.urls}),
                gpu_hours=sum(each.gpu_hours / len(names(each)) for each in held),
                main=most,
            )
        )
    return sorted(found, key=lambda total: (-total.gpu_hours, -total.incidents, total.name))


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


@cache
def _template() -> Template:
    return page_environment("rca.sweep").get_template("report.html.j2")
