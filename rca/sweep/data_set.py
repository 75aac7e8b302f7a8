"""Rows about the windows or traces of an archive, as a Parquet data set in a folder or under a URL.

A part is written whole or not at all, and its name follows from its rows, so a repeated sweep replaces it.
What could not be used has a row, too, with an ``error``.
"""

from __future__ import annotations

import hashlib
import re
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

PART = re.compile(r"part-[0-9a-f]{24}\.parquet")
TIME = pa.timestamp("us", tz="UTC")
REFUSED = "refused"
#: Errors that may be over when a sweep is repeated.
PASSING = (SourceError.code, MissingExtra.code)
Row = dict[str, Any]


def printable(text: str) -> str:
    """The text without what UTF-8 cannot encode: names of files may be any bytes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


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
    outcome : str
        Column that says in one word what came out, for counts; null beside an error.
    holds : str
        What the rows are, for messages.
    """

    schema: ClassVar[pa.Schema]
    maker: ClassVar[str]
    outcome: ClassVar[str]
    holds: ClassVar[str]

    def __init__(self, url: str) -> None:
        self.url = url
        self._files, self._root = file_system(url)
        self._is_local = "file" in protocols(self._files)

    @classmethod
    def row(cls, found: Found, made_by: str, **facts: Any) -> Row:
        """A row; what `facts` leave out is null or an empty list."""
        known = {"url": printable(found.url), "version": found.version, cls.maker: made_by}
        empty: Row = {field.name: [] if pa.types.is_list(field.type) else None for field in cls.schema}
        return empty | known | {"swept_at": datetime.now(UTC)} | facts

    @classmethod
    def error_row(cls, found: Found, made_by: str, error: RcaError) -> Row:
        """The row of what could not be used."""
        # Messages of libraries have line breaks.
        message = " ".join(str(error).split()).removeprefix(f"{found.url}: ")
        return cls.row(found, made_by, error=error.code, error_message=printable(message))

    def write(self, rows: Sequence[Row]) -> None:
        """Keep rows as one part.

        Raises
        ------
        SourceError
            If the folder or bucket cannot be written.
        """
        names = sorted(f"{row['url']}\0{row['version']}\0{row[self.maker]}" for row in rows)
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:24]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows), self.schema), sink, compression="zstd")
        path, content = f"{self._root}/part-{digest}.parquet", sink.getvalue().to_pybytes()
        self.prepare()
        with using(self.url, "written"):
            if self._is_local:
                replace_file(Path(path), content)
            else:
                # Buckets show an object once it is whole.
                self._files.pipe_file(path, content)

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

    def is_kept(self) -> bool:
        """Whether the folder has rows of this kind.

        Raises
        ------
        SourceError
            If the folder cannot be read.
        """
        with using(self.url):
            return any(self.maker in self._opened(path).schema_arrow.names for path in self._parts()[:1])

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
        needed = list(dict.fromkeys([*wanted, "swept_at", "url"]))
        tables = [self.schema.empty_table().select(needed)]
        with using(self.url):
            for path in self._parts():
                file = self._opened(path)
                if self.maker not in file.schema_arrow.names:
                    raise InvalidInput(
                        f"{self.url}: {path} holds no {self.holds}",
                        hint="name a folder of its own with --output",
                    )
                tables.append(file.read(columns=needed))
        # Rows of an earlier version lack columns.
        table = pa.concat_tables(tables, promote_options="default").sort_by("swept_at")
        newest = {url: place for place, url in enumerate(table.column("url").to_pylist())}
        return table.take(pa.array(sorted(newest.values()), pa.int64())).select(wanted)

    def _parts(self) -> list[str]:
        """Paths of the parts. Other files in the folder are not ours."""
        return sorted(
            path for path in self._files.find(self._root) if PART.fullmatch(path.rpartition("/")[2])
        )

    def _opened(self, path: str) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(pa.BufferReader(self._files.cat_file(path)))
        except pa.ArrowException as error:
            raise SourceError(
                f"{path}: is damaged: {error}",
                hint="delete this file, and repeat the sweep to replace its rows",
            ) from error
