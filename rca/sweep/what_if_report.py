"""What the jobs of an archive lost to their stragglers: its what-if results, summed up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import pyarrow.compute as pc

from rca.sweep.data_set import REFUSED
from rca.sweep.losses import ANALYSED, LEFT_OUT, Losses
from rca.sweep.report import Reason, Summary, reasons

#: A job straggles above this slowdown, as in the study of what-if analysis (OSDI 2025).
STRAGGLES_ABOVE = 1.1
#: Patterns of a slow job, by the names of `rca.whatif.attribution.Pattern`.
PATTERNS = {
    "worker": "few slow workers",
    "stage": "slow last stage",
    "sequence_length": "uneven sequence lengths",
    "garbage_collection": "garbage collection",
}
NO_PATTERN = "no pattern"
_COLUMNS = [name for name in Losses.schema.names if name not in ("version", "analysis", "document")]


@dataclass(frozen=True)
class JobLoss:
    """The traces of one job.

    Attributes
    ----------
    waste : float
        Share of its GPU-hours that was lost.
    slowdown : float
        Replayed time / ideal time, over all its traces.
    seconds_per_step : float
        Mean loss of a step.
    gpu_hours, gpu_hours_lost : float
        Of all replayed steps.
    pattern, worst_type : str
        Of the trace that lost most; the costliest pattern and the costliest type of operations.
    worst_rank, worst_stage : int
        Of the same trace, with their slowdowns if everything else were ideal.
    warnings : int
        Traces whose figures are doubtful.
    urls : tuple of str
        Of its traces; the costliest first.
    """

    job_id: str
    waste: float
    slowdown: float
    seconds_per_step: float
    gpu_hours: float
    gpu_hours_lost: float
    pattern: str
    worst_type: str
    worst_rank: int
    worst_rank_slowdown: float | None
    worst_stage: int
    worst_stage_slowdown: float | None
    warnings: int
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """What a pattern or a type of operations costs in all traces.

    Attributes
    ----------
    gpu_hours : float
        Of a pattern: saved without it. Of a type: lost if everything else were ideal. They do not add up.
    jobs : int
        Jobs in which it is the costliest.
    main : str
        Job in which it costs most.
    """

    name: str
    gpu_hours: float
    jobs: int
    main: str


@dataclass(frozen=True)
class Doubt:
    """A warning about a result."""

    url: str
    warning: str


@dataclass(frozen=True)
class WhatIfReport(Summary):
    """The sum of a data set of what-if results.

    Attributes
    ----------
    traces : int
        Analysed ones.
    straggling_jobs : int
        Jobs with a slowdown above `STRAGGLES_ABOVE`.
    gpu_hours, gpu_hours_lost : float
        Of all replayed steps.
    waste : float
        Share of all GPU-hours that was lost.
    waste_quantiles : dict of str to float
        Share of lost time: median, and the 90th and 99th percentile of the jobs; empty below two jobs.
    jobs : list of JobLoss
        The largest share of lost time first.
    patterns, types : list of Part
        The costliest first.
    left_out : list of Reason
        Files without operations.
    """

    page: ClassVar[str] = "what_if_report.html.j2"

    traces: int
    straggling_jobs: int
    gpu_hours: float
    gpu_hours_lost: float
    waste: float
    waste_quantiles: dict[str, float]
    jobs: list[JobLoss]
    patterns: list[Part]
    types: list[Part]
    refused: list[Reason]
    left_out: list[Reason]
    warnings: list[Doubt]


def what_if_report(losses: Losses) -> WhatIfReport:
    """Sum up a data set of what-if results.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    table = losses.read(_COLUMNS)
    rows = table.filter(pc.field("outcome") == ANALYSED).to_pandas()
    others = table.filter(pc.field("outcome") != ANALYSED).to_pandas().sort_values(["url", "error_message"])
    rows = rows.sort_values(["gpu_hours_lost", "url"], ascending=[False, True])
    jobs = sorted(
        (_job(str(name), held) for name, held in rows.groupby("job_id", sort=False)),
        key=lambda each: (-each.waste, -each.gpu_hours_lost, each.job_id),
    )
    spent, lost = float(rows.gpu_hours.sum()), float(rows.gpu_hours_lost.sum())
    shares = pd.Series([each.waste for each in jobs]).quantile([0.5, 0.9, 0.99])
    return WhatIfReport(
        traces=len(rows),
        straggling_jobs=sum(each.slowdown > STRAGGLES_ABOVE for each in jobs),
        gpu_hours=spent,
        gpu_hours_lost=lost,
        waste=lost / spent if spent else 0.0,
        waste_quantiles=dict(zip(("p50", "p90", "p99"), shares, strict=True)) if len(jobs) > 1 else {},
        jobs=jobs,
        patterns=_totals(rows, "patterns", [job.pattern for job in jobs]),
        types=_totals(rows, "types", [job.worst_type for job in jobs]),
        refused=reasons(others[others.outcome == REFUSED]),
        left_out=reasons(others[others.outcome == LEFT_OUT]),
        warnings=[Doubt(row.url, text) for row in rows.sort_index().itertuples() for text in row.warnings],
    )


def _job(job_id: str, rows: pd.DataFrame) -> JobLoss:
    """A job from its rows, the costliest first."""
    first, spent, lost = rows.iloc[0], float(rows.gpu_hours.sum()), float(rows.gpu_hours_lost.sum())
    pattern = first.patterns[0]["name"] if len(first.patterns) else NO_PATTERN
    rank_slowdown, stage_slowdown = (
        None if pd.isna(first[name]) else float(first[name])
        for name in ("worst_rank_slowdown", "worst_stage_slowdown")
    )
    return JobLoss(
        job_id=job_id,
        waste=lost / spent,
        slowdown=spent / (spent - lost),
        seconds_per_step=float((rows.seconds_per_step * rows.steps).sum() / rows.steps.sum()),
        gpu_hours=spent,
        gpu_hours_lost=lost,
        pattern=PATTERNS.get(pattern, pattern),
        worst_type="" if pd.isna(first.worst_type) else first.worst_type,
        worst_rank=int(first.worst_rank),
        worst_rank_slowdown=rank_slowdown,
        worst_stage=int(first.worst_stage),
        worst_stage_slowdown=stage_slowdown,
        warnings=int((rows.warnings.str.len() > 0).sum()),
        urls=tuple(rows.url),
    )


def _totals(rows: pd.DataFrame, column: str, firsts: list[str]) -> list[Part]:
    """What each pattern or type costs in all traces, with the jobs whose first one it is."""
    parts = rows[["job_id", "steps", "world_size", column]].explode(column).dropna(subset=[column])
    if parts.empty:
        return []
    seconds = parts[column].map(lambda part: part["seconds_per_step"]).astype(float).fillna(0.0)
    parts["name"] = parts[column].map(lambda part: PATTERNS.get(part["name"], part["name"]))
    parts["gpu_hours"] = seconds * parts.steps * parts.world_size / 3600
    hours = parts.groupby(["name", "job_id"], as_index=False).gpu_hours.sum()
    found = [
        Part(
            name=str(name),
            gpu_hours=float(held.gpu_hours.sum()),
            jobs=firsts.count(str(name)),
            main=str(held.job_id[held.gpu_hours.idxmax()]),
        )
        for name, held in hours.groupby("name")
    ]
    return sorted(found, key=lambda part: (-part.gpu_hours, part.name))
