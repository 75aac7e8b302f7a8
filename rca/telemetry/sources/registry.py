"""All sources, and how a file or a folder finds its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rca.errors import InvalidInput, SourceError
from rca.telemetry.sources import collector, flight_recorder, profiler
from rca.telemetry.sources.source import HEAD_BYTES, Source
from rca.telemetry.window import Window

SOURCES: tuple[Source, ...] = (flight_recorder.SOURCE, collector.SOURCE, profiler.SOURCE)
#: More files in one folder are hardly the files of one job.
MAX_FILES = 200_000
_SHOWN = 3


def source_of(path: Path) -> Source | None:
    """The source that recognises a file; None if there is none.

    Raises
    ------
    SourceError
        If the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    return next((source for source in SOURCES if source.recognises(head, path.name)), None)


def read_files(path: Path) -> Window | None:
    """Read a file or a folder of one source; None if no source recognises any file.

    Parameters
    ----------
    path : Path
        A file, or a folder with the files of one job. Hidden files and folders in it are ignored.

    Raises
    ------
    InvalidInput
        If only some files of the folder are of the source, or files of several sources are in it.
    """
    files = _files(path)
    found = {file: source_of(file) for file in files}
    kinds = sorted({source.name for source in found.values() if source is not None})
    if not kinds:
        return None
    foreign = [file.name for file, source in found.items() if source is None]
    if len(kinds) > 1 or foreign:
        others = ", ".join(foreign[:_SHOWN])
        reason = f"and {len(foreign)} other files ({others})" if foreign else "of several kinds"
        raise InvalidInput(
            f"{path} holds files of {' and '.join(kinds)} {reason}",
            hint="give a folder with the files of one kind, one job and one moment",
        )
    source = next(source for source in SOURCES if source.name == kinds[0])
    return source.read(files, path.resolve().name)


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    files = [each for each in sorted(path.iterdir()) if each.is_file() and not each.name.startswith(".")]
    if len(files) > MAX_FILES:
        raise InvalidInput(f"{path} holds {len(files):,} files; the limit is {MAX_FILES:,}")
    return files
