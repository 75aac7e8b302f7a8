"""Operation traces of an archive: Parquet files, each with the sizes of its job in a YAML file beside it.

For ``trace-A.parquet`` the first of these files counts: ``trace-A.meta.yaml``, ``meta-A.yaml`` (the layout of
the published tool) and ``meta.yaml``. Names may end with ``.yml``, too. Without such a file the sizes are
those that the rows show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rca.sweep.archive import Folder, Found, on_this_machine, windows_of
from rca.sweep.data_set import PART
from rca.window.encodings.directory import JOB_FILE

TRACE_SUFFIX = ".parquet"
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

    @contextmanager
    def files(self) -> Iterator[tuple[Path, Path | None]]:
        """Its files on this machine.

        Raises
        ------
        SourceError
            If one cannot be read.
        """
        with on_this_machine(*(url for url in (self.url, self.meta) if url is not None)) as (path, *meta):
            yield path, meta[0] if meta else None


def traces_of(folder: Folder) -> Iterator[Found]:
    """The traces of a folder, and its windows."""
    yield from windows_of(folder)
    if JOB_FILE in folder.names:
        return
    for name in folder.names:
        # Results of a sweep may be in a folder of the archive.
        if name.endswith(TRACE_SUFFIX) and not name.startswith(".") and not PART.fullmatch(name):
            meta = folder.beside(_meta_names(name.removesuffix(TRACE_SUFFIX)))
            facts = folder.facts([name] if meta is None else [name, meta])
            yield ArchivedTrace(folder.url(name), *facts, None if meta is None else folder.url(meta))


def _meta_names(stem: str) -> Iterator[str]:
    stems = [f"{stem}.meta", "meta"]
    if stem.startswith(_TRACE_PREFIX):
        stems.insert(1, f"meta-{stem.removeprefix(_TRACE_PREFIX)}")
    return (f"{each}{ending}" for each in stems for ending in _META_NAMES)
