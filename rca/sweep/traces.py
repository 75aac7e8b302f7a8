"""Operation traces of an archive: Parquet files, each with the sizes of its job in a YAML file beside it.

For ``trace-A.parquet`` the first of these files counts: ``trace-A.meta.yaml``, ``meta-A.yaml`` (the layout of
the published tool) and ``meta.yaml``. Names may end with ``.yml``, too. Without such a file the sizes are
those that the rows show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from rca.errors import InvalidInput, InvalidTrace
from rca.sweep.archive import Folder, Found, file_system, on_this_machine, protocols, using, windows_of
from rca.window.encodings.directory import JOB_FILE

TRACE_SUFFIX = ".parquet"
#: Largest trace that a cluster gets as bytes. Several wait for each worker, and all are in memory.
MAX_SENT_BYTES = 64 << 20
_OPERATIONS = "ops.parquet"
_TRACE_PREFIX, _META_NAMES = "trace-", (".yaml", ".yml")


@dataclass(frozen=True)
class ArchivedTrace(Found):
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

    @property
    def urls(self) -> list[str]:
        """Of its files."""
        return [self.url] if self.meta is None else [self.url, self.meta]

    def read(self) -> list[bytes]:
        """Its files as bytes."""
        contents = []
        for url in self.urls:
            files, path = file_system(url)
            with using(url):
                contents.append(files.cat_file(path))
        return contents

    def columns(self, sent: list[bytes] | None = None) -> list[str]:
        """Names of the columns; only the end of the file is read.

        Parameters
        ----------
        sent : list of bytes, optional
            What `read` gave, if this machine cannot read the file.

        Raises
        ------
        InvalidTrace
            If it is no Parquet file.
        SourceError
            If it cannot be read.
        """
        files, path = file_system(self.url)
        with using(self.url), BytesIO(sent[0]) if sent else files.open(path, "rb") as file:
            try:
                return list(pq.read_schema(file).names)
            except (OSError, pa.ArrowException) as error:
                # A file of this machine that was opened is damaged. A bucket may be read the next time.
                if isinstance(error, OSError) and (error.errno or "file" not in protocols(files)):
                    raise
                raise InvalidTrace(f"not a readable Parquet trace: {error}") from error

    @contextmanager
    def files(self, sent: list[bytes] | None = None) -> Iterator[tuple[Path, Path | None]]:
        """Its files on this machine; parameters and errors as of `columns`."""
        with ExitStack() as open_:
            if sent is None:
                paths = open_.enter_context(on_this_machine(*self.urls))
            else:
                folder = open_.enter_context(TemporaryDirectory(prefix="rca-sweep-"))
                paths = [Path(folder, PurePosixPath(url).name) for url in self.urls]
                for path, content in zip(paths, sent, strict=True):
                    path.write_bytes(content)
            yield paths[0], paths[1] if len(paths) > 1 else None


def operations_of(folder: Folder) -> Iterator[Found]:
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


def refuse_to_send(found: Sequence[Found]) -> None:
    """Refuse traces that only this machine can read if they are too large for a cluster to get as bytes.

    Raises
    ------
    InvalidInput
    """
    large = [each for each in found if each.is_local and each.n_bytes > MAX_SENT_BYTES]
    if large:
        raise InvalidInput(
            f"{large[0].url}: {large[0].n_bytes:,} bytes are too many to send to the workers of a cluster"
            + (f", and {len(large) - 1:,} more traces are as large" if len(large) > 1 else ""),
            hint="name the archive by a URL that the workers read: s3://..., gs://..., or file:///FOLDER "
            "if the folder is mounted at the same place on all machines",
        )


def _meta_names(stem: str) -> Iterator[str]:
    stems = [f"{stem}.meta", "meta"]
    if stem.startswith(_TRACE_PREFIX):
        stems.insert(1, f"meta-{stem.removeprefix(_TRACE_PREFIX)}")
    return (f"{each}{ending}" for each in stems for ending in _META_NAMES)
