"""Operation traces of an archive: Parquet files, each with the sizes of its job in a YAML file beside it.

For ``trace-A.parquet`` the first of these files counts: ``trace-A.meta.yaml``, ``meta-A.yaml`` (the layout of
the published tool) and ``meta.yaml``. Names may end with ``.yml``, too. Without such a file the sizes are
those that the rows show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from rca.errors import InvalidInput, InvalidTrace
from rca.sweep.archive import Archived, Folder, file_system, protocols, using, windows_of
from rca.window.encodings.directory import JOB_FILE

TRACE_SUFFIX = ".parquet"
#: Largest trace that a cluster gets as bytes. Several wait for each worker, and all are in memory.
MOST_SENT_BYTES = 64 << 20
_OPERATIONS = "ops.parquet"
_TRACE_PREFIX, _META_NAMES = "trace-", (".yaml", ".yml")


@dataclass(frozen=True)
class SentTrace:
    """The files of a trace, for workers that cannot read them."""

    trace: bytes
    meta: bytes | None


@dataclass(frozen=True)
class ArchivedTrace(Archived):
    """A Parquet file that may be an operation trace.

    Attributes
    ----------
    meta : str or None
        URL of its YAML file.
    """

    meta: str | None = None

    @property
    def name(self) -> str:
        """The file without ``trace-`` and its suffix; the folder of a file that is called ``trace``."""
        path = PurePosixPath(self.url)
        name = path.name.removesuffix(TRACE_SUFFIX).removeprefix(_TRACE_PREFIX)
        return path.parent.name if name == "trace" else name

    def read(self) -> SentTrace:
        """Its files as bytes."""
        return SentTrace(_bytes(self.url), None if self.meta is None else _bytes(self.meta))

    def columns(self, sent: SentTrace | None = None) -> list[str]:
        """Names of the columns; only the end of the file is read.

        Parameters
        ----------
        sent : SentTrace, optional
            The content, if this machine cannot read the file.

        Raises
        ------
        InvalidTrace
            If it is no Parquet file.
        SourceError
            If it cannot be read.
        """
        files, path = file_system(self.url)
        with using(self.url), files.open(path, "rb") if sent is None else BytesIO(sent.trace) as file:
            try:
                return list(pq.read_schema(file).names)
            except (OSError, pa.ArrowException) as error:
                # A file of this machine that was opened is damaged. A bucket may be read the next time.
                if isinstance(error, OSError) and (error.errno or "file" not in protocols(files)):
                    raise
                raise InvalidTrace(f"not a readable Parquet trace: {error}") from error

    @contextmanager
    def files(self, sent: SentTrace | None = None) -> Iterator[tuple[Path, Path | None]]:
        """Its files on this machine: where they are, else copies that are removed afterwards.

        Parameters
        ----------
        sent : SentTrace, optional
            Their content, if this machine cannot read them.

        Raises
        ------
        SourceError
            If a file cannot be read.
        """
        urls = [self.url] if self.meta is None else [self.url, self.meta]
        places = [file_system(url) for url in urls]
        if sent is None and all("file" in protocols(files) for files, _ in places):
            yield _pair([Path(path) for _, path in places])
            return
        contents = [None, None] if sent is None else [sent.trace, sent.meta]
        with TemporaryDirectory(prefix="rca-sweep-") as folder:
            copies = [Path(folder) / PurePosixPath(path).name for _, path in places]
            for copy, (files, path), content in zip(copies, places, contents, strict=False):
                if content is not None:
                    copy.write_bytes(content)
                    continue
                with using(self.url):
                    files.get_file(path, str(copy))
            yield _pair(copies)


def operations_of(folder: Folder) -> Iterator[Archived]:
    """The traces of a folder, and its windows that may have operations."""
    for window in windows_of(folder):
        if JOB_FILE not in folder.names or _OPERATIONS in folder.names:
            yield window
    if JOB_FILE in folder.names:
        return
    for name in folder.names:
        if name.endswith(TRACE_SUFFIX) and not name.startswith("."):
            meta = folder.beside(_meta_names(name.removesuffix(TRACE_SUFFIX)))
            version, n_bytes = folder.facts([name] if meta is None else [name, meta])
            yield ArchivedTrace(
                folder.url(name), version, n_bytes, None if meta is None else folder.url(meta)
            )


def refuse_to_send(found: Sequence[Archived]) -> None:
    """Refuse traces that only this machine can read if they are too large for a cluster to get as bytes.

    Raises
    ------
    InvalidInput
    """
    large = [each for each in found if each.is_local and each.n_bytes > MOST_SENT_BYTES]
    if large:
        raise InvalidInput(
            f"{large[0].url}: {large[0].n_bytes:,} bytes are too many to send to the workers of a cluster"
            + (f", and {len(large) - 1:,} more traces are as large" if len(large) > 1 else ""),
            hint="name the archive by a URL that the workers read: s3://..., gs://..., or file:///FOLDER "
            "if the folder is mounted at the same place on all machines",
        )


def _meta_names(stem: str) -> Iterator[str]:
    for ending in _META_NAMES:
        yield f"{stem}.meta{ending}"
    if stem.startswith(_TRACE_PREFIX):
        for ending in _META_NAMES:
            yield f"meta-{stem.removeprefix(_TRACE_PREFIX)}{ending}"
    for ending in _META_NAMES:
        yield f"meta{ending}"


def _pair(paths: list[Path]) -> tuple[Path, Path | None]:
    return paths[0], paths[1] if len(paths) > 1 else None


def _bytes(url: str) -> bytes:
    files, path = file_system(url)
    with using(url):
        content: bytes = files.cat_file(path)
    return content
