"""What an archive lost, and to which causes and nodes: the answers of a sweep, summed up.

Windows of one job with the same cause and place are one incident, unless a long gap lies between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pandas as pd

from rca.sweep.answers import Answers
from rca.sweep.data_set import REFUSED, Row
from rca.sweep.report import ReportTable, SweepReport, refusals
from rca.window.causes import UNKNOWN

#: Two windows of a job with the same cause and place are one incident if so little time lies between them.
SAME_INCIDENT = timedelta(hours=1)
#: Verdicts about a fault.
FAULTY = ("fail_slow", "fail_stop")
UNDECIDED = "undecided"
#: A further cause of a window counts from this probability; the first one always.
NAMED = 0.5
NO_CAUSE = "no cause named"
_READ = (
    "url", "model_sha256", "job_id", "window_start", "window_end", "verdict", "failure_mode", "causes",
    "ranks", "nodes", "gpu_hours_lost", "error", "error_message",
)  # fmt: skip
_TIME = "datetime64[us, UTC]"
_FAULTS: dict[str, Any] = {
    "job_id": object, "verdict": object, "cause": object, "places": object, "nodes": object,
    "start": _TIME, "end": _TIME, "gpu_hours": float, "url": object,
}  # fmt: skip
_INCIDENT = {
    "begin (UTC)": "{begin}",
    "job": "{job_id}",
    "verdict": "{verdict}",
    "cause": "{cause}",
    "where": "{where}",
    "GPU-hours": "{gpu_hours:,.3f}",
    "windows": "{windows:,}",
    "first window": "{urls[0]}",
}


def incident_report(answers: Answers) -> SweepReport:
    """Sum up a data set of answers.

    The cost of an incident on several nodes is divided among them. Time that several windows of a job cover
    counts once.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    rows = answers.read(_READ).to_pandas().sort_values("window_start", na_position="first", kind="stable")
    answered = rows[rows.error.isna()]
    faulty = answered[answered.verdict.isin(FAULTY)]
    faulty = faulty.assign(share=_new_shares(faulty))
    lost = (faulty.share * faulty.gpu_hours_lost.astype(float).fillna(0.0)).groupby(faulty.job_id).sum()
    doubted = answered[(answered.verdict == UNDECIDED) & (answered.failure_mode != "healthy")]
    incidents = _incidents(faulty)
    total = float(lost.sum())
    unexplained = total - float(incidents.gpu_hours[incidents.cause != NO_CAUSE].sum())
    by_job = _totals(incidents, "job_id", "cause")
    by_job = _costliest(by_job.assign(gpu_hours=by_job.name.map(lost)))
    verdicts = rows.verdict.fillna(REFUSED).value_counts().sort_index().to_dict()
    models = rows.model_sha256.value_counts().sort_index().to_dict()
    n_jobs = answered.job_id.nunique()
    counts = ", ".join(f"{n:,} {name.replace('_', '-')}" for name, n in verdicts.items())
    headline = [
        f"{total:,.2f} GPU-hours lost in {len(incidents):,} incident{'s' if len(incidents) != 1 else ''}, "
        f"{unexplained:,.2f} of them without a named cause",
        f"{len(rows):,} windows of {n_jobs:,} jobs: {counts}",
    ]
    if len(models) > 1:
        named = ", ".join(f"{name[:12]} ({n:,} windows)" for name, n in models.items())
        headline.append(f"answers of {len(models)} models: {named}; repeat the sweep for those of one")
    shown = incidents.assign(
        begin=incidents.start.dt.strftime("%Y-%m-%d %H:%M").fillna("unknown"),
        where=incidents.places.map(", ".join),
        windows=incidents.urls.map(len),
    )
    tables = {
        "causes": _table("by cause", "cause", "most frequent place", _totals(incidents, "cause", "places")),
        "nodes": _table("by node", "node", "most frequent cause", _totals(incidents, "nodes", "cause")),
        "by_job": _table("by job", "job", "most frequent cause", by_job),
        "suspects": _table(
            "named by undecided windows",
            "node",
            "most frequent cause",
            _totals(_incidents(doubted.assign(share=0.0)), "nodes", "cause"),
        ),
        "incidents": ReportTable("incidents", shown, _INCIDENT),
    }
    return SweepReport(
        facts={
            "windows": len(rows),
            "jobs": n_jobs,
            "verdicts": verdicts,
            "models": models,
            "gpu_hours_lost": total,
            "gpu_hours_unexplained": unexplained,
            "start": answered.window_start.min(),
            "end": answered.window_end.max(),
        },
        headline=headline,
        tables=tables,
        refused=refusals(rows[rows.error.notna()]),
    )


def _table(title: str, name: str, main: str, totals: pd.DataFrame) -> ReportTable:
    counts = {"GPU-hours": "{gpu_hours:,.3f}"} | {
        each: f"{{{each}:,}}" for each in ("incidents", "jobs", "windows")
    }
    return ReportTable(title, totals, {name: "{name}", **counts, main: "{main}"})


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


def _incidents(rows: pd.DataFrame) -> pd.DataFrame:
    """Columns of `_FAULTS`, with ``urls`` of the windows; the costliest first. A place is a node or rank."""
    held = [each for row in rows.to_dict("records") for each in _faults(row)]
    faults = pd.DataFrame(held, columns=[*_FAULTS]).astype(_FAULTS)
    fault = faults.groupby(["job_id", "verdict", "cause", "places"], sort=False).ngroup()
    before = faults.end.groupby(fault).transform(lambda ends: ends.cummax().ffill().shift())
    run = (~(faults.start - before <= SAME_INCIDENT)).groupby(fault).cumsum()
    first = {name: (name, "first") for name in ("job_id", "verdict", "cause", "places", "nodes", "start")}
    found: pd.DataFrame = faults.groupby([fault, run]).agg(
        **first, end=("end", "max"), gpu_hours=("gpu_hours", "sum"), urls=("url", tuple)
    )
    return found.sort_values(["gpu_hours", "job_id", "cause"], ascending=[False, True, True], kind="stable")


def _totals(incidents: pd.DataFrame, name: str, main: str) -> pd.DataFrame:
    """Totals by a column of incidents, and what they most frequently have in another column."""
    number = incidents[name].map(lambda held: 1 if isinstance(held, str) else max(len(held), 1))
    parts = incidents.assign(name=incidents[name], gpu_hours=incidents.gpu_hours / number).explode("name")
    totals = parts.groupby("name", as_index=False).agg(
        incidents=("cause", "size"),
        jobs=("job_id", "nunique"),
        windows=("urls", lambda urls: urls.explode().nunique()),
        gpu_hours=("gpu_hours", "sum"),
        main=(main, lambda held: next(iter(held.explode().mode()), "")),
    )
    return _costliest(totals)


def _costliest(totals: pd.DataFrame) -> pd.DataFrame:
    return totals.sort_values(["gpu_hours", "incidents", "name"], ascending=[False, False, True])
