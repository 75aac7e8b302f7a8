"""What was found out about jobs labels the windows of a data set of answers: a collection for training.

A finding says which cause acted where and when, or that nothing was wrong.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rca.errors import InvalidInput, RcaError, SourceError, cut
from rca.sources.labels import (
    LabelledCause,
    WindowLabel,
    located,
    write_labelled,
    write_manifest,
)
from rca.sweep.answers import Answers
from rca.sweep.archive import archived, using
from rca.sweep.data_set import Row
from rca.sweep.tables import END, JOB, START, known, read_table, span_of
from rca.window.causes import CAUSES, SLOW_CAUSES, SPECS, STOP_CAUSES, UNKNOWN
from rca.window.topology.hostlist import expanded
from rca.window.window import Window

#: In place of a cause: the job ran as it should.
HEALTHY = "healthy"
#: Of the labels: people found it out.
SOURCE = "incident"
#: A window in a smaller share of which a slow cause acts is neither faulty nor healthy.
MIN_SHARE = 0.2
#: Why a window of a job with findings is left out.
UNCLEAR, WITHOUT_STEPS = "neither faulty nor healthy by the findings", "without steps"
GONE, UNREADABLE = "no longer there", "that cannot be read"
#: URLs of `rca.sweep.prometheus_jobs`. Such windows have no steps.
_OF_PROMETHEUS = re.compile(r"https?://[^?]*/\?job=")
_COLUMNS = ("url", "version", "job_id", "window_start", "window_end", "error", "verdict", "cause")


@dataclass(frozen=True)
class ConfirmedFinding:
    """One line: a cause of a job, or that it was healthy.

    Attributes
    ----------
    place : str
        File and line, for notes and messages.
    cause : str
        Id of the catalogue, ``unknown``, or `HEALTHY`.
    start, end : float, Unix seconds
        Of a stop only the start counts.
    nodes : tuple of str
        Without ranks and nodes the cause acted on all ranks.
    """

    place: str
    job: str
    cause: str
    start: float
    end: float
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def stops(self) -> bool:
        """Whether the cause stopped the job."""
        return self.cause in STOP_CAUSES


def read_findings(path: str | os.PathLike[str]) -> list[ConfirmedFinding]:
    """Read a table with the columns job, cause, start and end, and if known nodes and ranks.

    Parameters
    ----------
    path : path
        See `rca.sweep.tables.read_table`. Nodes are names or a hostlist such as ``node[1-4]``; ranks are
        numbers or ranges such as ``8-15``.

    Raises
    ------
    SourceError
        If the file cannot be read.
    InvalidInput
        If a line has no job, an unknown cause, or something that is no time, node or rank.
    """
    needed = {"job": JOB, "cause": ("cause",), "start": START, "end": END}
    other = {"nodes": ("nodes", "node", "nodelist"), "ranks": ("ranks", "rank")}
    return read_table(path, needed, _finding, other)


def _finding(place: str, values: dict[str, str]) -> ConfirmedFinding:
    cause = values["cause"].lower()
    if not known(values["job"]):
        raise InvalidInput("it has no job")
    if cause != HEALTHY and cause not in SPECS:
        raise InvalidInput(
            f"{cut(cause)!r} is no cause of the catalogue",
            hint=f"one of {', '.join(CAUSES)}; {UNKNOWN} for another one; or {HEALTHY}",
        )
    start, end = span_of(values, f"the cause {cause}")
    if end is None and cause not in STOP_CAUSES:
        raise InvalidInput(f"{cause} has no end", hint="only a stop needs none")
    ranks = expanded(f"[{known(values['ranks']).replace(' ', ',')}]") if known(values["ranks"]) else []
    return ConfirmedFinding(
        place=place,
        job=values["job"],
        cause=cause,
        start=start,
        end=start if end is None else end,
        ranks=tuple(int(rank) for rank in ranks),
        nodes=tuple(expanded(known(values["nodes"]).replace(" ", ","))),
    )


def label_of(
    findings: Sequence[ConfirmedFinding], start: float, end: float, window: Window
) -> WindowLabel | None:
    """The label of a window of a job; None if the findings do not say enough.

    Parameters
    ----------
    findings : sequence of ConfirmedFinding
        About the window's job.
    start, end : float, Unix seconds
        Of the window.

    Raises
    ------
    InvalidInput
        If a finding names a rank or node that the job does not have.
    """
    faults = [each for each in findings if each.cause != HEALTHY and _share([each], start, end) > 0.0]
    if not faults:
        healthy = [each for each in findings if each.cause == HEALTHY]
        covered = _share(healthy, start, end) > 1.0 - 1e-9
        return WindowLabel(failure_mode="healthy", source=SOURCE) if covered else None
    groups: dict[tuple[Any, ...], list[ConfirmedFinding]] = {}
    for each in faults:
        groups.setdefault((each.cause, each.ranks, each.nodes), []).append(each)
    if any(_share(group, start, end) < MIN_SHARE for group in groups.values()):
        return None
    stopped = any(each.stops for each in faults)
    known_causes = STOP_CAUSES if stopped else (*SLOW_CAUSES, UNKNOWN)
    causes = tuple(_labelled(group, window) for group in groups.values() if group[0].cause in known_causes)
    notes = "\n".join(each.place for each in faults)
    label = WindowLabel(
        failure_mode="fail_stop" if stopped else "fail_slow", causes=causes, source=SOURCE, notes=notes
    )
    return located(label, window.job)


def _share(findings: Sequence[ConfirmedFinding], start: float, end: float) -> float:
    """Share of a time in which one of several findings about one cause holds; of a stop 1 or 0."""
    if any(each.stops for each in findings):
        return float(any(start <= each.start <= end for each in findings))
    covered, until = 0.0, start
    for each in sorted(findings, key=lambda each: each.start):
        covered += max(0.0, min(end, each.end) - max(until, each.start))
        until = max(until, each.end)
    return covered / max(end - start, 1e-9)


def _labelled(group: Sequence[ConfirmedFinding], window: Window) -> LabelledCause:
    """One cause of a window, which several findings may state."""
    job, finding = window.job, group[0]
    beyond = [rank for rank in finding.ranks if rank >= job.world_size]
    if beyond:
        raise InvalidInput(
            f"{finding.place}: rank {beyond[0]} is not one of the job's {job.world_size} ranks"
        )
    strange = sorted(set(finding.nodes).difference(job.topology.node_names))
    if strange:
        raise InvalidInput(f"{finding.place}: {cut(strange[0])!r} is not one of the job's nodes")
    everywhere = () if finding.ranks or finding.nodes else tuple(range(job.world_size))
    first, last = (None, None) if finding.stops else _steps(group, window)
    return LabelledCause(
        cause=finding.cause,
        ranks=finding.ranks or everywhere,
        nodes=finding.nodes,
        first_step=first,
        last_step=last,
    )


def _steps(group: Sequence[ConfirmedFinding], window: Window) -> tuple[int | None, int | None]:
    """First and last step that began while the cause acted; None without times of steps."""
    began = window.steps.column("start_time").to_numpy()
    start, end = min(each.start for each in group), max(each.end for each in group)
    held = window.steps.column("step").to_numpy()[(began >= start) & (began <= end)]
    return (int(held.min()), int(held.max())) if held.size else (None, None)


def write_collection(
    answers: Answers,
    findings: Sequence[ConfirmedFinding],
    folder: Path,
    *,
    hold_out: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[int, Counter[str]]:
    """Write the windows of jobs with findings, and their labels.

    Windows are read again where the sweep has found them. All windows of a job are one group, so that
    training and test never share a job.

    Parameters
    ----------
    folder : Path
        New or empty.
    hold_out : bool
        Whether a hash of the job chooses the part of a window. By default all are learned from.
    progress : callable
        ``(done, total)`` windows.

    Returns
    -------
    int
        Windows written.
    Counter of str
        Windows left out, by reason.

    Raises
    ------
    SourceError
        If the answers cannot be read, or the folder cannot be written.
    InvalidInput
        If no window of the answers gets a label, a finding does not fit its job, or the folder holds
        something.
    """
    by_job: dict[str, list[ConfirmedFinding]] = {}
    for each in findings:
        by_job.setdefault(each.job, []).append(each)
    rows: list[Row] = answers.read(_COLUMNS).to_pylist()
    about = [row for row in rows if row["job_id"] in by_job and row["window_start"] is not None]
    if not about:
        raise InvalidInput(
            f"{answers.url}: holds no window of the jobs {', '.join(sorted(by_job)[:3])}",
            hint="`rca sweep report ANSWERS --format json` lists the jobs",
        )
    with using(str(folder), "written"):
        folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise InvalidInput(f"{folder}: holds something", hint="name a new folder")
    entries: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    try:
        for done, row in enumerate(sorted(about, key=lambda row: row["url"]), start=1):
            outcome = _written(row, by_job[row["job_id"]], folder)
            if isinstance(outcome, str):
                left_out[outcome] += 1
            else:
                entries.append(outcome if hold_out else {**outcome, "split": "train"})
            progress(done, len(about))
    except BaseException:
        # Else the command could not be repeated with this folder.
        for window in folder.iterdir():
            shutil.rmtree(window, ignore_errors=True)
        raise
    if not entries:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in sorted(left_out.items()))
        raise InvalidInput(
            f"none of {len(about):,} windows gets a label: {reasons}",
            hint="compare the times of the findings with window_start and window_end in the answers",
        )
    write_manifest(folder, entries, {"source": SOURCE})
    return len(entries), left_out


def _written(row: Row, findings: Sequence[ConfirmedFinding], folder: Path) -> dict[str, Any] | str:
    if _OF_PROMETHEUS.match(row["url"]):
        return WITHOUT_STEPS
    try:
        found = archived([row["url"]])
    except SourceError:
        return GONE
    try:
        window = found[0].read()
    except (RcaError, IndexError):
        return UNREADABLE if found else GONE
    label = label_of(findings, row["window_start"].timestamp(), row["window_end"].timestamp(), window)
    if label is None:
        return UNCLEAR
    if window.steps.num_rows == 0:
        return WITHOUT_STEPS
    name = hashlib.sha256(f"{row['url']}\0{row['version']}".encode()).hexdigest()[:16]
    write_labelled(window, label, folder / name)
    return {
        "id": name,
        "path": name,
        "group": f"job-{window.job.job_id}",
        "world_size": window.job.world_size,
        "failure_mode": label.failure_mode,
        "causes": [cause.cause for cause in label.causes],
        "url": row["url"],
        "answer": {"verdict": row["verdict"], "cause": row["cause"]},
    }
