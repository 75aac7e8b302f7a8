"""Lines and logs of jobs for tests."""

from __future__ import annotations

from pathlib import Path

import rca
from rca.sources.logs.line_labels import NOBODY
from rca.sources.logs.text_lines import TextLine


def line(text: str, path: str = "job.log") -> TextLine:
    return TextLine(text, Path(path), NOBODY, 1_760_000_000.0)


def answer_of(folder: Path, *logs: str) -> rca.Diagnosis:
    """The answer about one log, or about a folder of several."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(logs):
        (folder / f"part-{chr(97 + number)}.log").write_text(text, "utf-8")
    return rca.diagnose(rca.read_window(folder))
