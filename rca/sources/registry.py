"""All sources, and how a file or a folder finds its own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rca.errors import InvalidInput, SourceError
from rca.files import open_file
from rca.sources import (
    flight_recorder,
    kubernetes_events,
    kubernetes_pods,
    megatron_stragglers,
    megatron_timers,
    mlperf,
    nccl_inspector,
    nccl_ras,
    nvrx,
    py_spy,
    slurm_accounting,
    step_logs,
    table,
)
from rca.sources.collector import window as collector
from rca.sources.logs.line_search import first_that_occurs
from rca.sources.logs.text_lines import text_of, unpacked
from rca.sources.profiler import window as profiler
from rca.sources.prometheus import metric_files
from rca.sources.source import HEAD_BYTES, LONG_HEAD_BYTES, NothingFound, Source
from rca.sources.torchrun_folders import of_last_run
from rca.sources.watchdog import window as watchdog
from rca.sources.watchdog.window import with_events_of
from rca.window.encodings.directory import OWN_FILES
from rca.window.window import Window

#: Of several kinds of logs in one folder, the first one here reads all of them.
SOURCES: tuple[Source, ...] = (
    nccl_ras.SOURCE,
    nccl_inspector.SOURCE,
    flight_recorder.SOURCE,
    collector.SOURCE,
    py_spy.SOURCE,
    profiler.SOURCE,
    metric_files.SOURCE,
    kubernetes_events.SOURCE,
    kubernetes_pods.SOURCE,
    slurm_accounting.SOURCE,
    table.SOURCE,
    megatron_timers.SOURCE,
    megatron_stragglers.SOURCE,
    nvrx.SOURCE,
    watchdog.SOURCE,
    mlperf.SOURCE,
    step_logs.SOURCE,
)
#: More files in one folder are hardly the files of one job.
MAX_FILES = 200_000
_SHOWN = 3
_TEXT_NAMES = frozenset({".json", ".yaml", ".yml", ".toml", ".py", ".sh", ".txt", ".md"})
_LOG_NAMES = frozenset({".log", ".out", ".err"})
#: Logs of known producers that cannot be used, by a line of theirs, and why.
_UNUSABLE: Mapping[str, tuple[re.Pattern[str], str]] = {
    "DLRover training events": (
        re.compile(r"^\[\d{4}-\d\d-\d\dT[\d:.]+\] \[\d+\] \[\w+\] \[\w+\] \[#\w+\] \[\w+\] \{", re.MULTILINE),
        "they hold no rank",
    ),
    "an NCCL RAS status as text": (
        re.compile(r"^Job summary\s*\n=+", re.MULTILINE),
        "only `ncclras -f json` names every rank",
    ),
}


def source_of(path: Path) -> Source | None:
    """The source that recognises a file; None if there is none.

    Raises
    ------
    SourceError
        If the file cannot be read.
    """
    head = _head(path)
    found = next((source for source in SOURCES if source.recognises(head, path.name)), None)
    if found is None and unpacked(head).lstrip()[:1] == b"{":
        longer = _head(path, LONG_HEAD_BYTES)
        late = ((source, source.late_marks) for source in SOURCES if source.late_marks is not None)
        found = next((source for source, marks in late if marks.search(unpacked(longer)) is not None), None)
    if found is not None or text_of(head) is None:
        return found
    logs = [(source, source.marks) for source in SOURCES if source.marks is not None]
    number = first_that_occurs(path, [marks for _, marks in logs])
    return None if number is None else logs[number][0]


def read_files(path: Path) -> Window | None:
    """Read a file or a folder of one source; None if no source recognises any file.

    Parameters
    ----------
    path : Path
        A file, or a folder with the files of one job. Hidden files are ignored, and folders in it are unless
        all files are in them.

    Raises
    ------
    InvalidInput
        If only some files of the folder are of the source, or files of several sources are in it. Logs may
        be of several kinds, and some of them may hold nothing of interest; beside files of another source
        they add events. Sources that join add to the others. A log of no known kind is refused.
    """
    files, left_out = of_last_run(_files(path))
    found = {file: source_of(file) for file in files}
    kinds = [source for source in SOURCES if source in found.values()]
    if not kinds:
        _refuse_unknown_log(path, files)
        _refuse_unknown_folder(path, files)
        return None
    measured = [source for source in kinds if source.marks is None and source.join is None]
    logs = [source for source in kinds if source.marks is not None]
    unknown = [file for file, source in found.items() if source is None]
    foreign = [file.name for file in unknown if not (logs and _is_text(file))]
    if len(measured) > 1 or foreign:
        others = ", ".join(foreign[:_SHOWN])
        reason = f"and {len(foreign)} other files ({others})" if foreign else "of several kinds"
        raise InvalidInput(
            f"{path} holds files of {' and '.join(sorted(each.name for each in kinds))} {reason}",
            hint="give a folder with the files of one kind and logs, of one job and one moment",
        )
    job_id = path.resolve().name
    joined = [source for source in kinds if source.join is not None]
    base = (measured or logs[:1] or joined)[0]
    of_logs = [file for file, source in found.items() if source in logs]
    reads = {base} if base not in logs else {None, *logs}
    own = [file for file, source in found.items() if source in reads]
    window = _with_note(_read(base, own, job_id), unknown)
    if of_logs and measured:
        window = with_events_of(window, of_logs)
    for each in joined:
        more = [file for file, source in found.items() if source is each and each is not base]
        if more and each.join is not None:
            names = ", ".join(file.name for file in more[:_SHOWN])
            window = each.join(window, each.read(more, job_id), names)
    return replace(window, notes=(*window.notes, *left_out))


def _read(source: Source, files: Sequence[Path], job_id: str) -> Window:
    """The window of these files, by the next source of logs that knows a line if the first finds nothing."""
    try:
        return source.read(files, job_id)
    except NothingFound:
        for each in SOURCES[SOURCES.index(source) + 1 :]:
            marks = each.marks
            if marks is not None and any(first_that_occurs(file, [marks]) is not None for file in files):
                return each.read(files, job_id)
        raise


def _with_note(window: Window, unused: Sequence[Path]) -> Window:
    """The window with a note on files that no line of it comes from."""
    if not unused:
        return window
    shown = ", ".join(file.name for file in unused[:_SHOWN])
    more = f" and {len(unused) - _SHOWN} more" if len(unused) > _SHOWN else ""
    return replace(window, notes=(*window.notes, f"files without a line of a known kind: {shown}{more}"))


def _is_text(file: Path) -> bool:
    """Whether a file is a text, such as a log or a configuration."""
    return file.suffix in _TEXT_NAMES or text_of(_head(file)) is not None


def _refuse_unknown_log(path: Path, files: Sequence[Path]) -> None:
    """Refuse text that is no encoding of a window either."""
    for file in files:
        text = text_of(_head(file))
        if not text or not text.strip() or (path.is_dir() and file.suffix not in _LOG_NAMES):
            continue
        if file.suffix in table.SUFFIXES:
            # It says which columns are missing.
            table.SOURCE.read([file], file.stem)
        for name, (line, reason) in _UNUSABLE.items():
            if line.search(text) is not None:
                raise InvalidInput(
                    f"{file.name} holds {name}, which cannot be diagnosed: {reason}",
                    hint="`rca sources` lists what can be diagnosed",
                )
        raise InvalidInput(
            f"{file.name} is text in which no line is of a known kind",
            hint="`rca sources` lists what can be diagnosed",
        )


def _refuse_unknown_folder(path: Path, files: Sequence[Path]) -> None:
    """Refuse a folder whose files are neither of a source nor of a window."""
    if not path.is_dir() or not files or any(file.name in OWN_FILES for file in files):
        return
    shown = [f"{file.name} is empty" if file.stat().st_size == 0 else file.name for file in files[:_SHOWN]]
    more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    raise InvalidInput(
        f"{path} holds no file of a known kind: {', '.join(shown)}{more}",
        hint="`rca sources` lists what can be diagnosed",
    )


def _head(path: Path, size: int = HEAD_BYTES) -> bytes:
    try:
        with open_file(path) as file:
            return file.read(size)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    try:
        return _files_of_folder(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _files_of_folder(path: Path) -> Sequence[Path]:
    files = [each for each in sorted(path.iterdir()) if each.is_file() and not each.name.startswith(".")]
    if not files:
        _refuse_unreadable_folders(path)
    # torchrun writes folders of ranks with a file for each stream.
    files = files or [each for each in sorted(path.glob("**/std*.log")) if each.is_file()]
    # Others write a folder for each node.
    files = files or [each for each in sorted(path.glob("*/**/*")) if _is_visible(each, path)]
    if len(files) > MAX_FILES:
        raise InvalidInput(f"{path} holds {len(files):,} files; the limit is {MAX_FILES:,}")
    return files


def _refuse_unreadable_folders(path: Path) -> None:
    """Refuse a folder with one that cannot be listed: `glob` leaves it out, and with it a part of the job."""

    def refuse(error: OSError) -> None:
        raise SourceError(
            f"{error.filename}: cannot be read: {error.strerror or error}",
            hint="give the permission to read it, or move it away",
        )

    for _, folders, _ in os.walk(path, onerror=refuse):
        folders[:] = [each for each in folders if not each.startswith(".")]


def _is_visible(file: Path, folder: Path) -> bool:
    return file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
