"""Windows of external test sets: their diagnoses, and when an answer about one is right."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import rca
from rca.diagnosis.result import Diagnosis
from rca.sources.labels import WindowLabel, accepted, read_label


class Answer(NamedTuple):
    """A window's name, the truth about it, and the answer."""

    name: str
    label: WindowLabel
    found: Diagnosis


def diagnosed(folder: Path, names: Iterable[str]) -> list[Answer]:
    """Diagnose windows of an unpacked collection."""
    return [
        Answer(name, read_label(folder / name), rca.diagnose(rca.read_window(folder / name)))
        for name in names
    ]


def is_right(answer: Answer) -> bool:
    """Whether the first cause is a true one, on exactly its ranks."""
    _, label, found = answer
    return bool(found.causes) and any(
        found.causes[0].cause in accepted(cause) and set(found.causes[0].ranks) == set(cause.ranks)
        for cause in label.causes
    )


def alarms(answers: Iterable[Answer]) -> list[str]:
    """Names of the healthy windows that are called anything else."""
    return [
        name
        for name, label, found in answers
        if label.failure_mode == "healthy" and found.failure_mode != "healthy"
    ]
