"""Rows about the windows or traces of an archive, as a Parquet data set in a folder or under a URL.

A part is written whole or not at all, and its name follows from its rows, so a repeated sweep replaces it.
What could not be used has a row, too, with an ``error``.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from rca.errors import InvalidInput, MissingExtra, RcaError, SourceError
from rca.files import replace_file
from rca.sweep.archive import Found, file_system, protocols, using

_PART = re.compile(r"part-[0-9a-f]{24}\.parquet")
TIME = pa.timestamp("us", tz="UTC")
REFUSED = "refused"
#: Errors that may be over when a sweep is repeated.
PASSING = (SourceError.code, MissingExtra.code)
Row = dict[str, Any]


def printable(text: str) -> str:
    """The text without what UTF-8 cannot encode: names of files may be any bytes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class DataSet(ABC):
    """A data set in a folder, or under a URL that fsspec reaches. Subclasses name the columns.

    Parameters
    ----------
    url : str
        Made with the first row.

    Attributes
    ----------
    schema : pyarrow.Schema
        Columns; `url`, `version`, `maker`, ``swept_at``, ``error`` and ``error_message`` are among them.
    maker : str
        Column that says what made a row, such as the digest of a model. Another maker makes a new row.
    holds : str
        What the rows are, for messages.
    """

    schema: ClassVar[pa.Schema]
    maker: ClassVar[str]
    holds: ClassVar[str]

    def __init__(self, url: str) -> None:
        self.url = url
        self._files, self._root = file_system(url)
        self._is_local = "file" in protocols(self._files)

    @staticmethod
    def folder_of(row: Row) -> str:  # noqa: ARG004 - subclasses use it
        """Folder of the part that a row belongs to; none by default."""
        return ""

    @staticmethod
    @abstractmethod
    def outcome_of(row: Row) -> str:
        """What a row says, in one word, for counts."""

    @classmethod
    def empty_row(cls, found: Found, made_by: str) -> Row:
        """A row that says only what was looked at, when, and by what."""
        known = {"url": printable(found.url), "version": found.version, cls.maker: made_by}
        lists: Row = {field.name: [] for field in cls.schema if pa.types.is_list(field.type)}
        empty: Row = dict.fromkeys(cls.schema.names)
        return empty | lists | known | {"swept_at": datetime.now(UTC)}

    @classmethod
    def error_row(cls, found: Found, made_by: str, error: RcaError) -> Row:
        """The row of what could not be used."""
        # Messages of libraries have line breaks.
        message = " ".join(str(error).split()).removeprefix(f"{found.url}: ")
        return cls.empty_row(found, made_by) | {"error": error.code, "error_message": printable(message)}

    def write(self, rows: Sequence[Row]) -> None:
        """Keep rows, one part per folder.

        Raises
        ------
        SourceError
            If the folder or bucket cannot be written.
        """
        folders: dict[str, list[Row]] = {}
        for row in rows:
            folders.setdefault(self.folder_of(row), []).append(row)
        for folder, held in folders.items():
            sink = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_pylist(held, self.schema), sink, compression="zstd")
            names = [f"{row['url']}\0{row['version']}\0{row[self.maker]}" for row in held]
            digest = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:24]
            self._put(
                f"{self._root}/{folder}".rstrip("/"), f"part-{digest}.parquet", sink.getvalue().to_pybytes()
            )

    def _put(self, folder: str, name: str, content: bytes) -> None:
        with using(self.url, "written"):
            self._files.makedirs(folder, exist_ok=True)
            if self._is_local:
                replace_file(Path(folder, name), content)
            else:
                # Buckets show an object once it is whole.
                self._files.pipe_file(f"{folder}/{name}", content)

    def prepare(self) -> None:
        """Make the folder, so that one that cannot be written is noticed before the work.

        Raises
        ------
        SourceError
        """
        with using(self.url, "written"):
            self._files.makedirs(self._root, exist_ok=True)
            if self._is_local:
                TemporaryFile(dir=self._root).close()

    def known(self, *, refused: bool = True) -> set[tuple[str, str, str]]:
        """URL, version and maker of every newest row with a result, or an error that will come again.

        Parameters
        ----------
        refused : bool
            Whether what has an error belongs to it.
        """
        held = self.read(("url", "version", self.maker, "error")).to_pylist()
        return {
            (row["url"], row["version"], row[self.maker])
            for row in held
            if row["error"] is None or (refused and row["error"] not in PASSING)
        }

    def has_part(self, found: Found) -> bool:
        """Whether a file of an archive is a part of this data set, which is in a folder of the archive."""
        place = self._root if self._is_local else str(self._files.unstrip_protocol(self._root))
        return found.url.removeprefix("file://").startswith(f"{place.removeprefix('file://')}/")

    def is_kept(self) -> bool:
        """Whether the folder has rows of this kind.

        Raises
        ------
        SourceError
            If the folder cannot be read.
        """
        with using(self.url):
            first = next(iter(self._parts()), None)
            return first is not None and self.maker in pq.read_schema(self._content(first)).names

    def read(self, columns: Iterable[str] | None = None) -> pa.Table:
        """All rows; of several about one URL only the newest.

        Parameters
        ----------
        columns : iterable of str, optional
            All by default.

        Raises
        ------
        SourceError
            If the data set cannot be read, or one of its files is no part of it.
        InvalidInput
            If the folder holds rows of another kind.
        """
        wanted = self.schema.names if columns is None else list(columns)
        table = self._rows([*wanted, "swept_at", "url"]).sort_by("swept_at")
        newest = {url: place for place, url in enumerate(table.column("url").to_pylist())}
        return table.take(pa.array(sorted(newest.values()), pa.int64())).select(wanted)

    def _rows(self, columns: Iterable[str]) -> pa.Table:
        wanted = list(dict.fromkeys(columns))
        with using(self.url):
            parts = [self._part(path, wanted) for path in self._parts()]
        return pa.concat_tables([self.schema.empty_table().select(wanted), *parts])

    def _parts(self) -> list[str]:
        """Paths of the parts. Other files in the folder are not ours."""
        return sorted(
            path for path in self._files.find(self._root) if _PART.fullmatch(path.rpartition("/")[2])
        )

    def _content(self, path: str) -> pa.BufferReader:
        return pa.BufferReader(self._files.cat_file(path))

    def _part(self, path: str, columns: Sequence[str]) -> pa.Table:
        try:
            file = pq.ParquetFile(self._content(path))
        except pa.ArrowException as error:
            raise SourceError(
                f"{path}: is damaged: {error}",
                hint="delete this file, and repeat the sweep to replace its rows",
            ) from error
        if self.maker not in file.schema_arrow.names:
            raise InvalidInput(
                f"{self.url}: {path} holds no {self.holds}", hint="name a folder of its own with --output"
            )
        return file.read(columns=list(columns))
