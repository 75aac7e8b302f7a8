"""Rows about the windows or traces of an archive, as a Parquet data set in a folder or under a URL.

A part is written whole or not at all, and its name follows from its rows, so a repeated sweep replaces it.
What could not be used has a row, too, with an ``error``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from rca.errors import InvalidInput, RcaError
from rca.sweep.archive import Archived, file_system, using
from rca.telemetry.files import replace_file

TIME = pa.timestamp("us", tz="UTC")
REFUSED = "refused"
Row = dict[str, Any]


class DataSet:
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
        self._is_local = "://" not in url

    @staticmethod
    def folder_of(row: Row) -> str:  # noqa: ARG004 - subclasses use it
        """Folder of the part that a row belongs to; none by default."""
        return ""

    @staticmethod
    def outcome_of(row: Row) -> str:
        """What a row says, in one word, for counts."""
        raise NotImplementedError

    @classmethod
    def empty_row(cls, found: Archived, made_by: str) -> Row:
        """A row that says only what was looked at, when, and by what."""
        known = {"url": found.url, "version": found.version, cls.maker: made_by}
        lists: Row = {field.name: [] for field in cls.schema if pa.types.is_list(field.type)}
        empty: Row = dict.fromkeys(cls.schema.names)
        return empty | lists | known | {"swept_at": datetime.now(UTC)}

    @classmethod
    def error_row(cls, found: Archived, made_by: str, error: RcaError) -> Row:
        """The row of what could not be used."""
        # Messages of libraries have line breaks.
        message = " ".join(str(error).split()).removeprefix(f"{found.url}: ")
        return cls.empty_row(found, made_by) | {"error": error.code, "error_message": message}

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

    def known(self) -> set[tuple[str, str, str]]:
        """URL, version and maker of everything that has a row."""
        held = self.read(("url", "version", self.maker))
        return set(zip(*(held.column(name).to_pylist() for name in held.column_names), strict=True))

    def has_part(self, found: Archived) -> bool:
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
        with using(self.url):
            parts = [self._part(path, [*wanted, "swept_at", "url"]) for path in self._parts()]
        if not parts:
            return self.schema.empty_table().select(wanted)
        table = pa.concat_tables(parts).sort_by("swept_at")
        newest = {url: place for place, url in enumerate(table.column("url").to_pylist())}
        return table.take(sorted(newest.values())).select(wanted)

    def _parts(self) -> list[str]:
        return sorted(path for path in self._files.find(self._root) if path.endswith(".parquet"))

    def _content(self, path: str) -> pa.BufferReader:
        return pa.BufferReader(self._files.cat_file(path))

    def _part(self, path: str, columns: Sequence[str]) -> pa.Table:
        file = pq.ParquetFile(self._content(path))
        if self.maker not in file.schema_arrow.names:
            raise InvalidInput(
                f"{self.url}: {path} holds no {self.holds}", hint="name a folder of its own with --output"
            )
        return file.read(columns=list(dict.fromkeys(columns)))
