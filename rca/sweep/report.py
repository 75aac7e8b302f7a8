"""What an archive lost, and to which causes and nodes: the answers of a sweep, summed up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pandas as pd

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
class Reason:
    """Why a window or a trace has no result."""

    url: str
    reason: str


class Summary:
    """The sum of a data set; its fields are the names in JSON."""

    page: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def to_html(self) -> str:
        """A page that needs no script, font or file from elsewhere."""
        return page_environment("rca.sweep").get_template(self.page).render(report=self)


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
class Report(Summary):
    """The sum of a data set of answers.

    Attributes
    ----------
    verdicts : dict of str to int
        Windows by verdict; ``refused`` are those that could not be diagnosed.
    models : dict of str to int
        Windows by the digest of the model that answered.
    gpu_hours_lost : float
        In windows with a fault: what the causes cost, and what no cause explains.
    gpu_hours_unexplained : float
        What no named cause costs.
    start, end : datetime or None
        Of the windows.
    causes, nodes, by_job : list of Total
        The costliest first; `main` is the most frequent place, cause or cause.
    suspects : list of Total
        Nodes that undecided windows name; without a cost.
    incidents : list of Incident
        The costliest first.
    """

    page: ClassVar[str] = "report.html.j2"

    windows: int
    jobs: int
    verdicts: dict[str, int]
    models: dict[str, int]
    gpu_hours_lost: float
    gpu_hours_unexplained: float
    start: datetime | None
    end: datetime | None
    causes: list[Total]
    nodes: list[Total]
    by_job: list[Total]
    suspects: list[Total]
    incidents: list[Incident]
    refused: list[Reason]


def report(answers: Answers) -> Report:
    """Sum up a data set of answers.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    rows = answers.read(_COLUMNS).to_pandas().sort_values("window_start", na_position="first", kind="stable")
    answered = rows[rows.error.isna()]
    faulty = answered[answered.verdict.isin(FAULTY)]
    faulty = faulty.assign(share=_new_shares(faulty))
    lost = (faulty.share * faulty.gpu_hours_lost.astype(float).fillna(0.0)).groupby(faulty.job_id).sum()
    doubted = answered[(answered.verdict == UNDECIDED) & (answered.failure_mode != "healthy")]
    found = sorted(_incidents(faulty), key=lambda each: (-each.gpu_hours, each.job_id, each.cause))
    by_job = [replace(each, gpu_hours=float(lost[each.name])) for each in _totals(found, "job_id", "cause")]
    named = sum(each.gpu_hours for each in found if each.cause != NO_CAUSE)
    return Report(
        windows=len(rows),
        jobs=answered.job_id.nunique(),
        verdicts=rows.verdict.fillna(REFUSED).value_counts().sort_index().to_dict(),
        models=rows.model_sha256.value_counts().sort_index().to_dict(),
        gpu_hours_lost=float(lost.sum()),
        gpu_hours_unexplained=float(lost.sum()) - named,
        start=_time(answered.window_start.min()),
        end=_time(answered.window_end.max()),
        causes=_totals(found, "cause", "places"),
        nodes=_totals(found, "nodes", "cause"),
        by_job=_costliest(by_job),
        suspects=_totals(_incidents(doubted.assign(share=0.0)), "nodes", "cause"),
        incidents=found,
        refused=reasons(rows[rows.error.notna()].sort_index()),
    )


def reasons(rows: pd.DataFrame) -> list[Reason]:
    """Why rows have no result."""
    return [Reason(*each) for each in zip(rows.url, rows.error_message, strict=True)]


def _time(time: pd.Timestamp) -> datetime | None:
    return None if pd.isna(time) else time.to_pydatetime()


def _new_shares(rows: pd.DataFrame) -> pd.Series[float]:
    """Share of the time of each window that no earlier window of its job covers; 1 without times."""
    timed = rows[rows.window_end > rows.window_start]
    before = timed.groupby("job_id").window_end.cummax().groupby(timed.job_id).shift()
    begin = timed.window_start.where(~(before > timed.window_start), before)
    shares = (timed.window_end - begin) / (timed.window_end - timed.window_start)
    return shares.clip(lower=0.0).reindex(rows.index, fill_value=1.0)


def _faults(row: Mapping[Any, Any]) -> Iterator[Row]:
    """The faults of a window: its causes, or what it lost without one."""
    causes = [] if row["causes"] is None else row["causes"]
    likely = [each for number, each in enumerate(causes) if number == 0 or each["probability"] >= NAMED]
    for each in likely or [{**row, "cause": UNKNOWN}]:
        nodes = tuple(sorted(each["nodes"]))
        yield {
            "job_id": row["job_id"],
            "verdict": row["verdict"],
            "cause": NO_CAUSE if each["cause"] == UNKNOWN else each["cause"],
            "places": nodes or tuple(f"rank {rank}" for rank in sorted(each["ranks"])[:8]),
            "nodes": nodes,
            "start": row["window_start"],
            "end": row["window_end"],
            "gpu_hours": 0.0 if pd.isna(each["gpu_hours_lost"]) else row["share"] * each["gpu_hours_lost"],
            "url": row["url"],
        }


def _incidents(rows: pd.DataFrame) -> list[Incident]:
    found = [fault for row in rows.to_dict("records") for fault in _faults(row)]
    if not found:
        return []
    faults = pd.DataFrame(found)
    fault = faults.groupby(["job_id", "verdict", "cause", "places"], sort=False).ngroup()
    before = faults.end.groupby(fault).transform(lambda ends: ends.cummax().ffill().shift())
    run = (~(faults.start - before <= SAME_INCIDENT)).groupby(fault).cumsum()
    return [
        Incident(
            **held.iloc[0][["job_id", "verdict", "cause", "places", "nodes"]],
            start=_time(held.start.iloc[0]),
            end=_time(held.end.max()),
            gpu_hours=float(held.gpu_hours.sum()),
            urls=tuple(held.url),
        )
        for _, held in faults.groupby([fault, run])
    ]


def _totals(incidents: list[Incident], name: str, main: str) -> list[Total]:
    """Totals by a field of incidents, and what they most frequently have in another field."""
    if not incidents:
        return []
    held = pd.DataFrame([vars(each) for each in incidents])
    number = held[name].map(lambda names: 1 if isinstance(names, str) else len(names))
    parts = held.assign(name=held[name], gpu_hours=held.gpu_hours / number.where(number > 0, 1))
    found = [
        Total(
            name=str(each),
            incidents=len(part),
            jobs=part.job_id.nunique(),
            windows=part.urls.explode().nunique(),
            gpu_hours=float(part.gpu_hours.sum()),
            main=next(iter(part[main].explode().mode()), ""),
        )
        for each, part in parts.explode("name").groupby("name")
    ]
    return _costliest(found)


def _costliest(totals: list[Total]) -> list[Total]:
    return sorted(totals, key=lambda total: (-total.gpu_hours, -total.incidents, total.name))
