"""Windows of a data set of answers, with labels from what was found out: a collection for training."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rca.errors import InvalidInput, RcaError, SourceError
from rca.sources.labels import read_collection, write_labelled, write_manifest
from rca.sweep.answers import Answers
from rca.sweep.archive import archived, using
from rca.sweep.data_set import Row
from rca.sweep.truth import SOURCE, Finding, label_of

#: Why a window of a job with findings is left out.
UNCLEAR, WITHOUT_STEPS = "neither faulty nor healthy by the findings", "without steps"
GONE, UNREADABLE = "no longer there", "that cannot be read"
#: URLs of `rca.sweep.prometheus_jobs`. Such windows have no steps.
_OF_PROMETHEUS = re.compile(r"https?://[^?]*/\?job=")
_COLUMNS = ("url", "version", "job_id", "window_start", "window_end", "error", "verdict", "cause")


def write_collection(
    answers: Answers,
    findings: Sequence[Finding],
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
        New, empty, or of an earlier call.
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
        If no window is of a job with findings or gets a label, a finding does not fit its job, or the folder
        holds something else.
    """
    by_job: dict[str, list[Finding]] = {}
    for each in findings:
        by_job.setdefault(each.job, []).append(each)
    rows: list[Row] = answers.read(_COLUMNS).to_pylist()
    about = [row for row in rows if row["job_id"] in by_job and row["window_start"] is not None]
    if not about:
        raise InvalidInput(
            f"{answers.url}: holds no window of the jobs {', '.join(sorted(by_job)[:3])}",
            hint="`rca sweep report ANSWERS --format json` lists the jobs",
        )
    _refuse_other(folder)
    with using(str(folder), "written"):
        folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    for done, row in enumerate(sorted(about, key=lambda row: row["url"]), start=1):
        outcome = _written(row, by_job[row["job_id"]], folder)
        if isinstance(outcome, str):
            left_out[outcome] += 1
        else:
            entries.append(outcome if hold_out else {**outcome, "split": "train"})
        progress(done, len(about))
    if not entries:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in sorted(left_out.items()))
        raise InvalidInput(
            f"none of {len(about):,} windows gets a label: {reasons}",
            hint="compare the times of the findings with window_start and window_end in the answers",
        )
    write_manifest(folder, entries, {"source": SOURCE, "left_out": dict(left_out)})
    return len(entries), left_out


def _refuse_other(folder: Path) -> None:
    """Refuse a folder that holds something else than an earlier export."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        is_ours = read_collection(folder).properties.get("source") == SOURCE
    except RcaError:
        is_ours = False
    if not is_ours:
        raise InvalidInput(f"{folder}: holds something else than an export", hint="name a new folder")


def _written(row: Row, findings: Sequence[Finding], folder: Path) -> dict[str, Any] | str:
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
