"""What the jobs of an archive lost to their stragglers: its what-if results, summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import quantiles
from typing import Any

from jinja2 import Template

from rca.runbook.html import page_environment
from rca.sweep.data_set import REFUSED, Row
from rca.sweep.losses import ANALYSED, LEFT_OUT, Losses

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
    worst_rank_slowdown: float
    worst_stage: int
    worst_stage_slowdown: float
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
class WhatIfReport:
    """The sum of a data set of what-if results.

    Attributes
    ----------
    traces : int
        Analysed ones.
    jobs : list of JobLoss
        The largest share of lost time first.
    straggling : int
        Jobs with a slowdown above `STRAGGLES_ABOVE`.
    gpu_hours, gpu_hours_lost : float
        Of all replayed steps.
    waste_quantiles : dict of str to float
        Share of lost time: median, and the 90th and 99th percentile of the jobs; empty below two jobs.
    patterns, types : list of Part
        The costliest first.
    refused, left_out : list of (str, str)
        URL and reason: traces that cannot be replayed, and files without operations.
    doubtful : list of (str, str)
        URL and warning.
    """

    traces: int
    jobs: list[JobLoss]
    straggling: int
    gpu_hours: float
    gpu_hours_lost: float
    waste_quantiles: dict[str, float]
    patterns: list[Part]
    types: list[Part]
    refused: list[tuple[str, str]]
    left_out: list[tuple[str, str]]
    doubtful: list[tuple[str, str]]

    @property
    def waste(self) -> float:
        """Share of all GPU-hours that was lost."""
        return self.gpu_hours_lost / self.gpu_hours if self.gpu_hours else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "traces": self.traces,
            "straggling_jobs": self.straggling,
            "gpu_hours": self.gpu_hours,
            "gpu_hours_lost": self.gpu_hours_lost,
            "waste": self.waste,
            "waste_quantiles": self.waste_quantiles,
            "jobs": [vars(each) for each in self.jobs],
            "patterns": [vars(each) for each in self.patterns],
            "types": [vars(each) for each in self.types],
            "refused": [{"url": url, "reason": reason} for url, reason in self.refused],
            "left_out": [{"url": url, "reason": reason} for url, reason in self.left_out],
            "warnings": [{"url": url, "warning": text} for url, text in self.doubtful],
        }

    def to_html(self) -> str:
        """A page that needs no script, font or file from elsewhere."""
        return _template().render(report=self)


def what_if_report(losses: Losses) -> WhatIfReport:
    """Sum up a data set of what-if results.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    rows: list[Row] = losses.read(_COLUMNS).to_pylist()
    analysed = [row for row in rows if row["outcome"] == ANALYSED]
    groups: dict[str, list[Row]] = {}
    for row in sorted(analysed, key=lambda row: (-row["gpu_hours_lost"], row["url"])):
        groups.setdefault(row["job_id"], []).append(row)
    jobs = sorted(
        (_job(name, held) for name, held in groups.items()),
        key=lambda each: (-each.waste, -each.gpu_hours_lost, each.job_id),
    )
    return WhatIfReport(
        traces=len(analysed),
        jobs=jobs,
        straggling=sum(each.slowdown > STRAGGLES_ABOVE for each in jobs),
        gpu_hours=sum(each.gpu_hours for each in jobs),
        gpu_hours_lost=sum(each.gpu_hours_lost for each in jobs),
        waste_quantiles=_quantiles([each.waste for each in jobs]),
        patterns=_totals(analysed, "patterns", jobs, lambda job: job.pattern, PATTERNS),
        types=_totals(analysed, "types", jobs, lambda job: job.worst_type, {}),
        refused=_reasons(rows, REFUSED),
        left_out=_reasons(rows, LEFT_OUT),
        doubtful=[(row["url"], text) for row in analysed for text in row["warnings"]],
    )


def _job(job_id: str, rows: Sequence[Row]) -> JobLoss:
    """A job from its rows, the costliest first."""
    first, steps = rows[0], sum(row["steps"] for row in rows)
    spent, lost = (sum(row[name] for row in rows) for name in ("gpu_hours", "gpu_hours_lost"))
    patterns = [each["name"] for each in first["patterns"]]
    return JobLoss(
        job_id=job_id,
        waste=lost / spent,
        slowdown=spent / (spent - lost),
        seconds_per_step=sum(row["seconds_per_step"] * row["steps"] for row in rows) / steps,
        gpu_hours=spent,
        gpu_hours_lost=lost,
        pattern=PATTERNS.get(patterns[0], patterns[0]) if patterns else NO_PATTERN,
        worst_type=first["worst_type"] or "",
        worst_rank=first["worst_rank"],
        worst_rank_slowdown=first["worst_rank_slowdown"],
        worst_stage=first["worst_stage"],
        worst_stage_slowdown=first["worst_stage_slowdown"],
        warnings=sum(bool(row["warnings"]) for row in rows),
        urls=tuple(row["url"] for row in rows),
    )


def _totals(
    rows: Iterable[Row],
    column: str,
    jobs: Iterable[JobLoss],
    first_of: Callable[[JobLoss], str],
    shown: dict[str, str],
) -> list[Part]:
    hours: dict[str, Counter[str]] = {}
    for row in rows:
        per_second = row["steps"] * row["world_size"] / 3600
        for part in row[column]:
            name = shown.get(part["name"], part["name"])
            held = hours.setdefault(name, Counter())
            held[row["job_id"]] += (part["seconds_per_step"] or 0.0) * per_second
    firsts = Counter(first_of(job) for job in jobs)
    found = [
        Part(name, sum(held.values()), firsts[name], min(held, key=lambda job: (-held[job], job)))
        for name, held in hours.items()
    ]
    return sorted(found, key=lambda part: (-part.gpu_hours, part.name))


def _quantiles(values: list[float]) -> dict[str, float]:
    if len(values) < 2:
        return {}
    cuts = quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}


def _reasons(rows: Iterable[Row], outcome: str) -> list[tuple[str, str]]:
    return sorted((row["url"], row["error_message"]) for row in rows if row["outcome"] == outcome)


@cache
def _template() -> Template:
    return page_environment("rca.sweep").get_template("what_if_report.html.j2")
