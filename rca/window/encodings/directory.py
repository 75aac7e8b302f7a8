"""A window as a directory: ``window.json``, ``steps.parquet`` and any of the other tables."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rca.errors import InvalidWindow, SourceError, TooLarge
from rca.files import open_file, read_file, replace_folder
from rca.window.encodings.document import Decoded, job_fields, parsed_job
from rca.window.job import Job
from rca.window.schema import METRICS, SPECS, SUFFICIENT, TableSpec

JOB_FILE = "window.json"
LABEL_FILE = "label.json"
#: A file may expand to so many bytes, or to so many times its size.
MAX_EXPANDED_BYTES, MAX_EXPANSION = 256 << 20, 200
_CELL_BYTES = 8
OWN_FILES = frozenset({JOB_FILE, LABEL_FILE, *(f"{name}.parquet" for name in SPECS)})


def read(path: str | os.PathLike[str]) -> Decoded:
    """Read a window's directory; nothing but its files is checked.

    Raises
    ------
    SourceError
        If the directory or its ``window.json`` is missing or cannot be read.
    InvalidWindow
        If a file is damaged, or ``steps.parquet`` is missing.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such directory")
    job = parsed_job(_bytes(folder / JOB_FILE))
    found = {name: _table(folder, spec) for name, spec in SPECS.items()}
    tables = {name: table for name, table in found.items() if table is not None}
    if not tables.keys() & set(SUFFICIENT):
        expected = f"steps.parquet in the directory of {JOB_FILE}"
        raise InvalidWindow("steps.parquet is missing", table="steps", expected=expected)
    return Decoded(job, tables)


def write(
    job: Job,
    tables: Mapping[str, pa.Table],
    path: str | os.PathLike[str],
    *,
    attachments: Mapping[str, bytes] | None = None,
) -> None:
    """Write a window's directory atomically.

    Parameters
    ----------
    tables : mapping of str to pyarrow.Table
        All tables by name; empty ones get no file.
    path : path
        Replaced if it holds an unlabelled window or nothing; anything else is refused.
    attachments : mapping of str to bytes, optional
        Further files by name, such as ``label.json``.

    Raises
    ------
    SourceError
        If the directory holds something else, or cannot be written.
    """
    target = Path(path)
    attached = dict(attachments or {})
    _refuse_to_replace(target, attached)
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.parent / f".{target.name}.{secrets.token_hex(4)}.new"
    staged.mkdir()
    try:
        _write_files(job, tables, staged, attached)
        replace_folder(target, staged)
    except OSError as error:
        raise SourceError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _write_files(
    job: Job, tables: Mapping[str, pa.Table], folder: Path, attached: Mapping[str, bytes]
) -> None:
    for name, table in tables.items():
        if table.num_rows:
            pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
    fields = orjson.dumps(job_fields(job), option=orjson.OPT_INDENT_2)
    (folder / JOB_FILE).write_bytes(fields)
    for name, content in attached.items():
        (folder / name).write_bytes(content)


def _refuse_to_replace(target: Path, attached: Mapping[str, bytes]) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise SourceError(f"{target}: exists and is not a directory")
    held = {entry.name for entry in target.iterdir()}
    foreign = sorted(held - OWN_FILES)
    if foreign:
        raise SourceError(
            f"{target}: holds other files ({foreign[0]}) and is not replaced", hint="write to a new directory"
        )
    if LABEL_FILE in held and LABEL_FILE not in attached:
        raise SourceError(
            f"{target}: holds a labelled window; its label would be lost", hint="write to a new directory"
        )


def _bytes(path: Path) -> bytes:
    try:
        return read_file(path)
    except FileNotFoundError:
        raise SourceError(
            f"{path}: no such file",
            hint="give the path of a window's directory, or files of a source (rca sources)",
        ) from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _table(folder: Path, spec: TableSpec) -> pa.Table | None:
    path = folder / f"{spec.name}.parquet"
    if not path.exists():
        return None
    # Long text columns are read as codes: 20 million metric samples then need little memory.
    coded = ["name", "node", "device"] if spec is METRICS else []
    try:
        with open_file(path) as content, pq.ParquetFile(content, read_dictionary=coded) as file:
            _refuse_expansion(path, file.metadata)
            table = file.read()
        table.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidWindow(
            f"{path.name} cannot be read: {error}", table=spec.name, expected="a Parquet file"
        ) from error
    except OSError as error:
        if error.errno is None:  # Arrow raises an OSError without a number for damaged pages.
            raise InvalidWindow(
                f"{path.name} is damaged: {error}", table=spec.name, expected="a Parquet file"
            ) from error
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    return table


def _refuse_expansion(path: Path, metadata: pq.FileMetaData) -> None:
    """Refuse a file whose few bytes stand for very many rows, before these are read.

    Raises
    ------
    TooLarge
    """
    needed = metadata.num_rows * metadata.num_columns * _CELL_BYTES
    if needed > MAX_EXPANDED_BYTES and needed > MAX_EXPANSION * path.stat().st_size:
        raise TooLarge(
            f"{path.name} has {metadata.num_rows:,} rows in {path.stat().st_size:,} bytes: no job writes so "
            "many equal rows"
        )
