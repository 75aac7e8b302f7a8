"""Packed campaigns: one archive per part, checked by its digest when it is unpacked."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from rca.errors import InvalidInput, SourceError
from rca.files import replace_file
from rca.sources.labels import MANIFEST_FILE, CollectionEntry, read_collection

OnProgress = Callable[[str, int, int], None]
#: Parquet's strongest useful setting: packed once, read often.
ZSTD_LEVEL = 19


def pack(
    campaign: Path, output: Path, on_progress: OnProgress = lambda text, done, total: None
) -> dict[str, int]:
    """Write a campaign's captures as ``<part>.tar`` together with its manifest.

    The same captures always give the same bytes.

    Returns
    -------
    dict of str to int
        Bytes of each archive.
    """
    collection = read_collection(campaign)
    unsplit = next((entry.id for entry in collection if "split" not in entry.summary), None)
    if unsplit is not None:
        raise InvalidInput(
            f"{campaign}: window {unsplit!r} has no split",
            hint="pack a folder that `rca testbed campaign` wrote: its manifest has every capture's split",
        )
    output.mkdir(parents=True, exist_ok=True)
    entries = sorted(collection, key=lambda entry: entry.id)
    archives: dict[str, dict[str, Any]] = {}
    done = 0
    for part in sorted({str(entry.summary["split"]) for entry in entries}):
        fresh = output / f".{part}.tar.new"
        with tarfile.open(fresh, "w", format=tarfile.USTAR_FORMAT) as archive:
            for entry in entries:
                if entry.summary["split"] == part:
                    _add(archive, entry)
                    done += 1
                    on_progress("packing", done, len(entries))
        name = f"{part}.tar"
        fresh.replace(output / name)
        archives[name] = {"sha256": _digest(output / name), "bytes": (output / name).stat().st_size}
    manifest = orjson.loads((campaign / MANIFEST_FILE).read_bytes()) | {"archives": archives}
    replace_file(output / MANIFEST_FILE, orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
    return {name: int(each["bytes"]) for name, each in archives.items()}


def unpack(packed: Path, output: Path, on_progress: OnProgress = lambda text, done, total: None) -> int:
    """Unpack a campaign to a collection folder; return its number of windows.

    Raises
    ------
    InvalidInput
        If an archive does not have the digest in the manifest.
    SourceError
        If a file is missing, or the output exists.
    """
    archives = read_collection(packed).properties.get("archives")
    if not archives:
        raise InvalidInput(f"{packed}: the manifest lists no archives", hint="`rca testbed pack` makes them")
    if output.exists():
        raise SourceError(f"{output}: already exists", hint="name a folder that does not exist yet")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as held:
        fresh = Path(held) / "collection"
        fresh.mkdir()
        for done, (name, properties) in enumerate(sorted(archives.items())):
            on_progress("unpacking", done, len(archives))
            _extract(packed / Path(name).name, properties["sha256"], fresh)
        (fresh / MANIFEST_FILE).write_bytes((packed / MANIFEST_FILE).read_bytes())
        n_windows = len(read_collection(fresh))
        fresh.rename(output)
    return n_windows


def _add(archive: tarfile.TarFile, entry: CollectionEntry) -> None:
    for path in sorted(entry.path.iterdir()):
        content = _compact(path) if path.suffix == ".parquet" else path.read_bytes()
        described = tarfile.TarInfo(f"{entry.id}/{path.name}")
        described.size = len(content)
        archive.addfile(described, io.BytesIO(content))


def _compact(path: Path) -> bytes:
    held = io.BytesIO()
    pq.write_table(pq.read_table(path), held, compression="zstd", compression_level=ZSTD_LEVEL)
    return held.getvalue()


def _extract(path: Path, sha256: str, output: Path) -> None:
    try:
        found = _digest(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    if found != sha256:
        raise InvalidInput(
            f"{path}: does not have the digest in the manifest", hint="check it out or download it again"
        )
    with tarfile.open(path) as archive:
        archive.extractall(output, filter="data")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
