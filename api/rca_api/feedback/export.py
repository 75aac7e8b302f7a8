"""Exports feedback as a labelled collection for `rca train --collection`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from rca.errors import RcaError
from rca.sources.labels import WindowLabel, located, write_labelled, write_manifest
from rca.window.window import Window
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.feedback import labels, repository
from rca_api.feedback.tables import FeedbackRow
from rca_api.incidents.tables import ObservationRow

ReadWindow = Callable[[str], Window]
SOURCE = "incident"


@dataclass(frozen=True)
class ExportCounts:
    """Numbers of windows with feedback, by outcome.

    Attributes
    ----------
    conflicting : int
        Feedback disagrees.
    missing : int
        The window is no longer stored or cannot be read.
    incomplete : int
        Labelled as slow or stopped, but without a cause and its ranks.
    without_steps : int
        Windows of collectives or metrics alone, from which training cannot learn.
    """

    written: int = 0
    conflicting: int = 0
    missing: int = 0
    incomplete: int = 0
    without_steps: int = 0


@dataclass(frozen=True)
class _Judged:
    """The feedback on all diagnoses of one window."""

    digest: str | None
    opinions: list[tuple[FeedbackRow, DiagnosisRow]]
    incident_id: str | None


def export_collection(
    session: Session, read_window: ReadWindow, folder: Path, *, hold_out: bool = False
) -> ExportCounts:
    """Write the windows with feedback and their labels.

    Parameters
    ----------
    session : Session
        For reading.
    read_window : callable
        From a digest to its window; may raise `RcaError` or `LookupError` if it is missing.
    folder : Path
        Folder of the collection: empty, or from an earlier export.
    hold_out : bool
        Whether a hash of the group chooses the part of a window. By default all are learned from, because a
        site has few of them.

    Notes
    -----
    Windows of one incident share a group, so that training and test never share an incident. Windows
    without an incident are grouped by job. The order of the manifest depends on the content alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    outcomes: Counter[str] = Counter()
    for judged in _windows(session):
        outcome, entry = _exported(judged, read_window, folder, hold_out=hold_out)
        outcomes[outcome] += 1
        entries += [entry] if entry is not None else []
    counts = ExportCounts(**outcomes)
    write_manifest(folder, entries, {"source": SOURCE, "export": asdict(counts)})
    return counts


def _windows(session: Session) -> Iterator[_Judged]:
    observed = (ObservationRow.job_id == DiagnosisRow.job_id) & (
        ObservationRow.window_end == DiagnosisRow.window_end
    )
    statement = (
        select(FeedbackRow, DiagnosisRow, ObservationRow.incident_id)
        .join(DiagnosisRow, DiagnosisRow.id == FeedbackRow.diagnosis_id)
        .outerjoin(ObservationRow, observed & (ObservationRow.window_start == DiagnosisRow.window_start))
        .where(repository.is_current())
    )
    # Windows without a digest are gone, so each of their diagnoses is a window of its own.
    found = sorted(
        session.execute(statement), key=lambda row: (row[1].window_digest or "", _identity(row[1]))
    )
    for _, rows in groupby(found, key=lambda row: _identity(row[1])):
        held = list(rows)
        about = {feedback.id: diagnosis for feedback, diagnosis, _ in held}
        newest = repository.newest_by_author(feedback for feedback, _, _ in held)
        opinions = [(feedback, about[feedback.id]) for feedback in newest]
        yield _Judged(held[0][1].window_digest, opinions, held[0][2])


def _identity(row: DiagnosisRow) -> str:
    return row.window_digest or row.id


def _exported(
    judged: _Judged, read_window: ReadWindow, folder: Path, *, hold_out: bool
) -> tuple[str, dict[str, Any] | None]:
    if len({feedback.meaning for feedback, _ in judged.opinions}) > 1:
        return "conflicting", None
    if judged.digest is None:
        return "missing", None
    try:
        window = read_window(judged.digest)
    except (RcaError, LookupError, OSError):
        return "missing", None
    if window.steps.num_rows == 0:
        return "without_steps", None
    # The latest of several equal labels, which may have more details on steps and severity.
    latest = judged.opinions[-1][0]
    label = located(labels.read(latest.label), window.job)
    is_complete = bool(label.causes) and all(cause.ranks for cause in label.causes)
    if label.failure_mode != "healthy" and not is_complete:
        return "incomplete", None
    label = label.model_copy(update={"source": SOURCE, "notes": _notes(judged.opinions)})
    write_labelled(window, label, folder / judged.digest)
    entry = _entry(judged, label, window)
    return "written", entry if hold_out else {**entry, "split": "train"}


def _entry(judged: _Judged, label: WindowLabel, window: Window) -> dict[str, Any]:
    group = f"incident-{judged.incident_id}" if judged.incident_id else f"job-{window.job.job_id}"
    return {
        "id": judged.digest,
        "path": judged.digest,
        "group": group,
        "world_size": window.job.world_size,
        "failure_mode": label.failure_mode,
        "causes": [cause.cause for cause in label.causes],
        "feedback": [feedback.id for feedback, _ in judged.opinions],
        "diagnoses": sorted({diagnosis.id for _, diagnosis in judged.opinions}),
    }


def _notes(opinions: Iterable[tuple[FeedbackRow, DiagnosisRow]]) -> str:
    """Origin of the label, one line per feedback."""
    lines = []
    for feedback, diagnosis in opinions:
        author = feedback.reported_by or feedback.given_by_name
        line = f"{feedback.verdict} by {author} on {feedback.created_at:%Y-%m-%d} (feedback {feedback.id}"
        line += f", diagnosis {diagnosis.id}, model {diagnosis.model_sha256 or 'unknown'})"
        lines.append(f"{line}: {feedback.note}" if feedback.note else line)
    return "\n".join(lines)
