"""Windows of NVRx reports: phases where a section is a whole step, else slowdowns without a cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.files import open_file
from rca.sources.logs.text_lines import lines_of, unpacked
from rca.sources.nvrx.reports import (
    KINDS,
    LINES,
    MARKS,
    Kind,
    NvrxReport,
    ReportLog,
    by_turn,
    is_report,
    read_json,
)
from rca.sources.source import HEAD_BYTES, Source
from rca.sources.watchdog import window as watchdog
from rca.sources.watchdog.messages import WANTED as WATCHDOG_LINES
from rca.sources.watchdog.messages import JobLog, events_of
from rca.window.rows.row_errors import listed
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.schema import METRICS, OPS, STEPS
from rca.window.window import Window

#: Metric of each kind of score, as a slowdown: 1 / score.
SLOWDOWNS: Mapping[Kind, str] = {
    "gpu_relative": "nvrx_gpu_relative_slowdown",
    "gpu_individual": "nvrx_gpu_individual_slowdown",
    "section_relative": "nvrx_section_relative_slowdown",
    "section_individual": "nvrx_section_individual_slowdown",
}
#: Metric of ranks that a report calls stragglers, without a score: 1; 0 for the others.
FLAGGED = "nvrx_straggler"
#: So many reports with a section for the whole step are steps; of fewer, the slowdowns are compared.
MIN_STEPS = 20
#: NVRx calls a rank slow from this score down.
_SLOW_SCORE = 0.75
#: Reports with fewer scores compare the slow ranks with so many of the ranks that they leave out.
_MIN_SCORES, _MAX_PEERS = 3, 64
#: No whole step is shorter, seconds. Steps between two reports take at most this many times as long.
_MIN_STEP, _MAX_SHARE = 1e-3, 10.0
#: Seconds between two reports without times: the default of NVRx.
_USUAL_INTERVAL = 60.0
#: Reports so long after the last exit are of a job that was started again, seconds.
_LATE_REPORT = 60.0
_STEP = re.compile(r"(?:train(?:ing)?_)?(?:step|iteration|iter)$", re.IGNORECASE)
#: Lightning's ``Strategy.training_step`` is the forward pass.
_PHASES: Mapping[str, re.Pattern[str]] = {
    "data_loading_seconds": re.compile(
        r"(?:data|data_?load(?:er|ing)?|(?:get_|next_)?batch)$", re.IGNORECASE
    ),
    "forward_seconds": re.compile(r"(?:fwd|forward(?:_pass)?|.*\.training_step)$", re.IGNORECASE),
    "backward_seconds": re.compile(r"(?:bwd|backward(?:_pass)?|.*\.backward)$", re.IGNORECASE),
    "optimizer_seconds": re.compile(r"(?:opt(?:im(?:izer)?)?(?:_step)?|.*\.optimizer_step)$", re.IGNORECASE),
}
_WANTED = re.compile(LINES + rb"|" + WATCHDOG_LINES.pattern, re.MULTILINE)
_OWN = re.compile(LINES.decode())
_STOPPED = "reports of NVRx in the same logs are left out: the NCCL watchdog or torchrun reports a stop"


class _Sample(NamedTuple):
    time: float
    rank: int
    section: str | None
    name: str
    value: float


def is_json_report(head: bytes, _: str) -> bool:
    """Whether a file is a report as JSON, by its first bytes."""
    return is_report(unpacked(head))


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the reports of one job: logs, or JSON of `dataclasses.asdict(report)` with one file per rank.

    Parameters
    ----------
    job_id : str
        Of the window; reports hold none.

    Returns
    -------
    Window
        With ``steps`` if at least `MIN_STEPS` reports time a section that is the whole step. Else with
        slowdowns of ranks as metrics: they name who is slow, and no cost. Failures in the logs are events.

    Raises
    ------
    InvalidInput
        If no report has a score or a median of a rank.
    """
    latest = max(path.stat().st_mtime for path in paths)
    texts = [path for path in paths if not is_json_report(_head(path), path.name)]
    job_log = JobLog(latest_file=latest)
    logs = list(_logs(texts, job_log))
    placed: list[str] = []
    job_log.place(placed)
    newest = max((each.time for log in logs for each in log.reports if each.time > 0), default=-np.inf)
    if job_log.messages or newest < job_log.events.tables.last_exit + _LATE_REPORT:
        stopped = watchdog.read(texts, job_id)
        return replace(stopped, notes=(*stopped.notes, _STOPPED))
    reports = by_turn(
        [*(read_json(path) for path in paths if path not in texts), *(log.reports for log in logs)]
    )
    damaged = sum(log.damaged for log in logs)
    held = [report for report in reports if report.ranks]
    if not held:
        names = ", ".join(path.name for path in paths[:3])
        raise InvalidInput(
            f"{names}: {len(reports)} reports of NVRx and {damaged} lines of an unknown form, "
            "none with the score of a rank",
            hint="scores are NaN where nothing was compared; print the scores, or write "
            "dataclasses.asdict(report) as JSON",
        )
    notes = [
        *placed,
        "NVRx compares kernels and sections of ranks: the wait for other ranks is not in its reports",
    ]
    if damaged:
        notes.append(f"{damaged} lines of reports have an unknown form")
    without_score = sorted(set[int]().union(*(report.without_score for report in reports)))
    if without_score:
        ranks = listed([str(rank) for rank in without_score])
        notes.append(f"scores of 0 or below are left out: ranks {ranks}")
    _refuse_wrong_unit(held)
    times = _times(held, latest, notes)
    highest = max(max(report.ranks | report.nodes.keys()) for report in held)
    world_size = max(highest + 1, *(report.n_ranks for report in held))
    if world_size > MAX_WORLD_SIZE:
        raise InvalidInput(f"a report names rank {world_size - 1:,}, above {MAX_WORLD_SIZE - 1:,}")
    steps = _steps(held, times)
    nodes = {rank: node for report in held for rank, node in report.nodes.items() if rank < world_size}
    end = max(float(times.max()), *(each.time for each in job_log.events.rows if each.time > 0), -np.inf)
    start = float(times.min())
    if steps is None:
        notes.append(
            "no section is a whole step in enough reports: who is slow is known, what it costs is not"
        )
    else:
        notes.append("a step is the median of the steps since the report before, by the host's clock")
        start = min(start, float(np.min(steps["start_time"].to_numpy())))
    job: dict[str, Any] = {
        "job_id": job_id,
        "framework": "pytorch",
        "world_size": world_size,
        "start": start,
        "end": max(end, start) + 1.0,
    }
    if len(nodes) == world_size:
        job["ranks"] = [{"rank": rank, "node": node} for rank, node in sorted(nodes.items())]
    window = Window.from_tables(
        job,
        STEPS.empty() if steps is None else steps,
        _metrics(held, times, nodes),
        events_of(job_log, world_size, job["end"] - 1e-3),
        OPS.empty(),
    )
    return replace(window, notes=(*window.notes, *notes))


def _head(path: Path) -> bytes:
    with open_file(path) as file:
        return file.read(HEAD_BYTES)


def _logs(paths: Sequence[Path], job_log: JobLog) -> Iterator[ReportLog]:
    """Reports of each log; failures of all logs go to `job_log`."""
    for path in paths:
        log = ReportLog()
        for line in lines_of(path, _WANTED):
            if _OWN.search(line.text) is not None:
                job_log.clock.stamp(line)
                log.add(line)
            else:
                job_log.add(line)
        yield log


def _times(reports: Sequence[NvrxReport], latest: float, notes: list[str]) -> FloatArray:
    """Unix seconds of each report, shape (n_reports,), in order."""
    times = np.array([report.time for report in reports])
    if np.isfinite(times).all():
        return np.maximum.accumulate(times)
    if len(reports) > 1:
        notes.append("the reports have no time: they are taken to end when the file does, in their order")
    spans = [
        median * count
        for report in reports
        for section, medians in report.sections.items()
        for median, count in medians.values()
        if _STEP.match(section)
    ]
    interval = float(np.median(spans)) if spans else _USUAL_INTERVAL
    return latest - interval * np.arange(len(reports) - 1, -1, -1.0)


def _refuse_wrong_unit(reports: Sequence[NvrxReport]) -> None:
    """Refuse steps that do not fit between two reports, or are too short for a step."""
    steps, shares = [], []
    for before, report in zip([NvrxReport(), *reports], reports, strict=False):
        apart = report.time - before.time
        for section, medians in report.sections.items():
            if _STEP.match(section):
                steps += [median for median, _ in medians.values()]
                if apart > 0:
                    shares += [median * count / apart for median, count in medians.values()]
    hint = "sections of NVRx are timed in milliseconds"
    if shares and (share := float(np.median(shares))) > _MAX_SHARE:
        raise InvalidInput(
            f"steps in the reports of NVRx take {share:.3g} times the time between two reports", hint=hint
        )
    if steps and (step := float(np.median(steps))) < _MIN_STEP:
        raise InvalidInput(f"a step in the reports of NVRx takes {step * 1e3:.3g} ms", hint=hint)


def _steps(reports: Sequence[NvrxReport], times: FloatArray) -> pa.Table | None:
    """One row per rank and report with a section for the whole step; None if there are too few."""
    rows: list[dict[str, float]] = []
    turns = 0
    for turn, (report, time) in enumerate(zip(reports, times.tolist(), strict=True)):
        whole = next((medians for name, medians in report.sections.items() if _STEP.match(name)), {})
        turns += len(whole) > 1
        for rank, (seconds, _) in whole.items():
            row = {"rank": rank, "step": turn, "start_time": time - seconds, "step_seconds": seconds}
            for phase, pattern in _PHASES.items():
                parts = [
                    medians[rank][0]
                    for name, medians in report.sections.items()
                    if rank in medians and pattern.match(name)
                ]
                if parts:
                    row[phase] = sum(parts)
            rows.append(row)
    if turns < MIN_STEPS:
        return None
    names = ["rank", "step", "start_time", "step_seconds", *_PHASES]
    columns = {name: [row.get(name, np.nan) for row in rows] for name in names}
    return pa.table(
        {
            name: pa.array(values, pa.int64() if name in ("rank", "step") else pa.float64())
            for name, values in columns.items()
            if not np.isnan(values).all()
        }
    )


def _metrics(reports: Sequence[NvrxReport], times: FloatArray, nodes: Mapping[int, str]) -> pa.Table:
    samples = [
        sample
        for report, time in zip(reports, times.tolist(), strict=True)
        for sample in _samples(report, time)
    ]
    if not samples:
        return METRICS.empty()
    return pa.table(
        {
            "time": [sample.time for sample in samples],
            "node": pa.array([nodes.get(sample.rank) for sample in samples], pa.string()),
            "rank": pa.array([sample.rank for sample in samples], pa.int32()),
            "device": pa.array([sample.section for sample in samples], pa.string()),
            "name": [sample.name for sample in samples],
            "value": [sample.value for sample in samples],
        }
    )


def _samples(report: NvrxReport, time: float) -> Iterator[_Sample]:
    for kind in KINDS:
        for section, scores in _scores(report, kind).items():
            for rank, score in scores.items():
                yield _Sample(time, rank, section or None, SLOWDOWNS[kind], 1.0 / score)
    found = report.scores.get("gpu_relative", {}).get("", {})
    slow = {rank for rank, score in found.items() if score <= _SLOW_SCORE} if report.n_ranks else set()
    flagged = report.flagged if not report.scores else slow if len(found) < _MIN_SCORES else set()
    if flagged:
        # All other ranks have been compared as well.
        highest = max(min(report.n_ranks, _MAX_PEERS), max(flagged) + 1)
        for rank in range(highest):
            yield _Sample(time, rank, None, FLAGGED, float(rank in flagged))


def _scores(report: NvrxReport, kind: Kind) -> Mapping[str, Mapping[int, float]]:
    """The scores of a report; relative ones follow from the medians of all ranks if it has none."""
    found = report.scores.get(kind)
    if found is not None:
        return found
    if kind == "section_relative":
        return {
            section: _relative({rank: median for rank, (median, _) in medians.items()})
            for section, medians in report.sections.items()
            if len(medians) > 1
        }
    if kind == "gpu_relative" and len(report.kernels) > 1:
        return {"": _of_kernels(report.kernels)}
    return {}


def _relative(medians: Mapping[int, float]) -> dict[int, float]:
    fastest = min(medians.values())
    return {rank: fastest / median for rank, median in medians.items()}


def _of_kernels(kernels: Mapping[int, Mapping[str, tuple[float, float]]]) -> dict[int, float]:
    """Score of each rank: its kernels against the fastest rank's, weighted by their time, as NVRx does."""
    common = set.intersection(*(set(held) for held in kernels.values()))
    fastest = {name: min(held[name][0] for held in kernels.values()) for name in common}
    found = {}
    for rank, held in kernels.items():
        weights = sum(held[name][1] for name in common)
        if weights > 0:
            score = sum(fastest[name] / held[name][0] * held[name][1] for name in common)
            found[rank] = score / weights
    return found


SOURCE = Source(
    name="nvrx",
    title="reports of NVRx's straggler detection: logged by its Lightning callback, printed, or as JSON",
    tells="which ranks are slower than the others, or than they were, on the GPU and in which section",
    lacks="hardware and cause; a cost, unless a section is the whole step; waiting for other ranks",
    recognises=is_json_report,
    read=read,
    marks=MARKS,
)
