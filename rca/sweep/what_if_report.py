"""What the jobs of an archive lost to their stragglers: its what-if results, summed up."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa

from rca.sweep.report import HeatMap, ReportTable, SweepReport, refusals
from rca.sweep.what_if import ANALYSED, LEFT_OUT, JobLosses

#: A job straggles above this slowdown, as in the study of what-if analysis (OSDI 2025).
STRAGGLES_ABOVE = 1.1
#: Patterns of a slow job, by the names of `rca.whatif.attribution.Pattern`.
PATTERNS = {
    "worker": "few slow workers",
    "stage": "slow last stage",
    "sequence_length": "uneven sequence lengths",
    "garbage_collection": "garbage collection",
}
_READ = [name for name in JobLosses.schema.names if name not in ("version", "analysis", "document")]
#: Rows of the heat map of all jobs, and jobs with a heat map of their workers.
MAX_HEAT_ROWS, MAX_HEAT_JOBS = 40, 6
_HEAT = ["step_slowdowns", "worker_slowdowns"]
#: Columns of a job that are those of its trace that lost most.
_OF_COSTLIEST = [
    "worst_rank", "worst_rank_slowdown", "worst_stage", "worst_stage_slowdown", "pattern", "worst_type",
    *_HEAT,
]  # fmt: skip
_JOB = {
    "job": "{job_id}",
    "time lost": "{waste:,.1%}",
    "slowdown": "{slowdown:,.3f}",
    "s/step": "{seconds_per_step:,.3g}",
    "GPU-hours": "{gpu_hours_lost:,.2f}",
    "pattern": "{pattern}",
    "costliest type": "{worst_type}",
    "worst rank": "{worst_rank} ({worst_rank_slowdown:.3f})",
    "worst stage": "{worst_stage} ({worst_stage_slowdown:.3f})",
}


def what_if_report(losses: JobLosses) -> SweepReport:
    """Sum up a data set of what-if results.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    held = losses.read(_READ)
    table = held.to_pandas().assign(**{name: _lists(held, name) for name in _HEAT})
    rows = table[table.outcome == ANALYSED].sort_values(["gpu_hours_lost", "url"], ascending=[False, True])
    left_out = refusals(table[table.outcome == LEFT_OUT])
    jobs = _jobs(rows)
    spent, lost = float(rows.gpu_hours.sum()), float(rows.gpu_hours_lost.sum())
    waste, straggling = lost / spent if spent else 0.0, int((jobs.slowdown > STRAGGLES_ABOVE).sum())
    quantiles = dict(zip(("p50", "p90", "p99"), jobs.waste.quantile([0.5, 0.9, 0.99]), strict=True))
    warnings = rows[["url", "warnings"]].explode("warnings").dropna()
    share = straggling / len(jobs) if len(jobs) else 0.0
    headline = [
        f"{lost:,.2f} of {spent:,.2f} GPU-hours lost to stragglers ({waste:.1%})",
        f"{len(rows):,} traces of {len(jobs):,} jobs; "
        f"{straggling:,} jobs have a slowdown above {STRAGGLES_ABOVE} ({share:.1%})",
    ]
    if len(jobs) > 1:
        shares = "median {p50:.1%}, p90 {p90:.1%}, p99 {p99:.1%}".format(**quantiles)
        headline.append(f"share of time lost, by job: {shares}")
    if len(warnings):
        headline.append(f"{len(warnings):,} warnings; --format json has them, with their traces")
    if len(left_out):
        headline.append(f"{len(left_out):,} files with nothing to replay are left out")
    tables: dict[str, ReportTable] = {}
    for name, title, hours, firsts in (
        ("patterns", "by pattern (patterns overlap)", "GPU-hours saved", jobs.pattern),
        ("types", "by type of operations (types do not add up)", "GPU-hours alone", jobs.worst_type),
    ):
        columns = {
            "name": "{name}",
            hours: "{gpu_hours:,.3f}",
            "share of the loss": "{share:,.1%}",
            "jobs where it is first": "{jobs:,}",
            "job where it costs most": "{main}",
        }
        tables[name] = ReportTable(title, _totals(rows, name, firsts, lost), columns)
    # Last, because there may be many.
    tables["jobs"] = ReportTable("by job; in brackets: slowdown by this alone", jobs, _JOB)
    return SweepReport(
        facts={
            "traces": len(rows),
            "straggling_jobs": straggling,
            "gpu_hours": spent,
            "gpu_hours_lost": lost,
            "waste": waste,
            "waste_quantiles": quantiles if len(jobs) > 1 else {},
            "left_out": left_out.to_dict("records"),
            "warnings": warnings.rename(columns={"warnings": "warning"}).to_dict("records"),
        },
        headline=headline,
        tables=tables,
        refused=refusals(table[table.error.notna()]),
        heat_maps=_heat_maps(jobs),
    )


def _heat_maps(jobs: pd.DataFrame) -> list[HeatMap]:
    """Slowdown by step of the jobs that lose the largest share of time, and by worker of the first ones.

    Rows of an earlier version have none.
    """
    known = jobs[jobs.step_slowdowns.map(len) > 0].head(MAX_HEAT_ROWS)
    if known.empty:
        return []
    steps = list(zip(known.job_id, known.step_slowdowns, strict=True))
    found = [HeatMap("slowdown by step, from the first to the last; full colour from 2 on", steps)]
    for job, stages in zip(known.job_id.head(MAX_HEAT_JOBS), known.worker_slowdowns, strict=False):
        rows = [(f"stage {number}", cells) for number, cells in enumerate(stages)]
        found.append(HeatMap(f"{job}: slowdown by this worker alone, data ranks from left to right", rows))
    return found


def _jobs(rows: pd.DataFrame) -> pd.DataFrame:
    """The traces of each job together; the largest share of lost time first.

    Parameters
    ----------
    rows : DataFrame
        The costliest trace first: it gives rank, stage, pattern and type.
    """
    rows = rows.assign(
        pattern=_first_names(rows.patterns, "no pattern"),
        worst_type=_first_names(rows.types, ""),
        seconds=rows.seconds_per_step * rows.steps,
    )
    summed = {name: (name, "sum") for name in ("gpu_hours", "gpu_hours_lost", "seconds", "steps")}
    jobs = rows.groupby("job_id").agg(**summed, urls=("url", tuple))
    jobs = jobs.join(rows.drop_duplicates("job_id").set_index("job_id")[_OF_COSTLIEST]).reset_index()
    jobs = jobs.astype({"worst_rank": int, "worst_stage": int}).assign(
        waste=jobs.gpu_hours_lost / jobs.gpu_hours,
        slowdown=jobs.gpu_hours / (jobs.gpu_hours - jobs.gpu_hours_lost),
        seconds_per_step=jobs.seconds / jobs.steps,
    )
    order = {"waste": False, "gpu_hours_lost": False, "job_id": True}
    return jobs.drop(columns="seconds").sort_values([*order], ascending=[*order.values()])


def _lists(held: pa.Table, name: str) -> list[list[Any]]:
    """Plain lists; empty in rows of an earlier version."""
    return [each or [] for each in held.column(name).to_pylist()]


def _first_names(parts: pd.Series[Any], without: str) -> pd.Series[Any]:
    return parts.map(lambda held: held[0]["name"] if len(held) else without).replace(PATTERNS)


def _totals(rows: pd.DataFrame, column: str, firsts: pd.Series[Any], lost: float) -> pd.DataFrame:
    """What each pattern or type costs in all traces, and in which job it costs most.

    Parameters
    ----------
    firsts : Series of str
        The costliest one of each job.
    lost : float
        GPU-hours lost in all.
    """
    parts = rows[["job_id", "steps", "world_size", column]].explode(column).dropna(subset=[column])
    seconds = parts[column].map(lambda part: part["seconds_per_step"]).astype(float).fillna(0.0)
    parts["name"] = parts[column].map(lambda part: part["name"]).replace(PATTERNS)
    parts["gpu_hours"] = seconds * parts.steps * parts.world_size / 3600
    hours = parts.groupby(["name", "job_id"])["gpu_hours"].sum().reset_index()
    hours = hours.sort_values("gpu_hours", ascending=False)
    totals: pd.DataFrame = hours.groupby("name", as_index=False).agg(
        gpu_hours=("gpu_hours", "sum"), main=("job_id", "first")
    )
    totals["share"] = totals.gpu_hours / lost if lost > 0 else 0.0
    totals["jobs"] = totals.name.map(firsts.value_counts()).fillna(0).astype(int)
    return totals.sort_values(["gpu_hours", "name"], ascending=[False, True])
