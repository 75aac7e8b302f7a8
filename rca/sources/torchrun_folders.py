"""Folders of torchrun's logs: of several runs and attempts in one folder the last ones count.

torchrun writes ``<run id>_<random>/attempt_<n>/<local rank>/stderr.log``. Each node of a run has a folder of
its own, so only times tell nodes and runs apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rca.files import open_file
from rca.sources.logs.failure_tables import ONE_STOP
from rca.sources.logs.text_lines import dated

_ATTEMPT = re.compile(r"attempt_(\d{1,6})")
#: So many bytes of the begin and of the end of a file show when it was written.
_EDGE_BYTES = 1 << 16
_SHOWN = 3


class _Span(NamedTuple):
    """First and last time of the files of a run, Unix seconds; `begin` is NaN if no line has a time."""

    begin: float
    end: float

    def is_before(self, other: _Span) -> bool:
        """Whether the other run began after this one had ended."""
        if np.isfinite(other.begin):
            return self.end < other.begin
        return self.end < other.end - ONE_STOP


def of_last_run(files: Sequence[Path]) -> tuple[Sequence[Path], list[str]]:
    """The files without those of earlier runs and attempts of torchrun, and notes on what is left out."""
    places = {file: place for file in files if (place := _place(file)) is not None}
    runs = {run for run, _ in places.values()}
    notes: list[str] = []
    if len(runs) > 1:
        spans = {run: _span([file for file in places if places[file][0] == run]) for run in runs}
        latest = max(spans.values(), key=lambda span: span.end)
        earlier = {run for run, span in spans.items() if span.is_before(latest)}
        if earlier:
            names = sorted(run.name for run in earlier)
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            notes.append(f"earlier runs of torchrun are left out: {', '.join(names[:_SHOWN])}{more}")
        files = [file for file in files if file not in places or places[file][0] not in earlier]
    last: dict[Path, int] = {}
    for run, attempt in places.values():
        last[run] = max(attempt, last.get(run, 0))
    kept = [file for file in files if file not in places or places[file][1] == last[places[file][0]]]
    if len(kept) < len(files):
        notes.append(f"files of earlier attempts of torchrun are left out: {len(files) - len(kept)}")
    return kept, notes


def _place(file: Path) -> tuple[Path, int] | None:
    """The folder of the run and the number of the attempt; None if the file is of no attempt."""
    for folder in file.parents:
        found = _ATTEMPT.fullmatch(folder.name)
        if found is not None:
            return folder.parent, int(found[1])
    return None


def _span(files: Sequence[Path]) -> _Span:
    begins, ends = [], []
    for file in files:
        written = file.stat().st_mtime
        first, last = _edges(file)
        times = [time for text in (first, last) for time in _times(text, written)]
        begins += times[:1]
        ends.append(max(times, default=written))
    return _Span(min(begins, default=np.nan), max(ends))


def _edges(file: Path) -> tuple[str, str]:
    with open_file(file) as opened:
        first = opened.read(_EDGE_BYTES)
        opened.seek(max(0, file.stat().st_size - _EDGE_BYTES))
        return first.decode("utf-8", "replace"), opened.read(_EDGE_BYTES).decode("utf-8", "replace")


def _times(text: str, written: float) -> list[float]:
    times = (dated(line, written)[0] for line in text.splitlines())
    return [time for time in times if np.isfinite(time)]
