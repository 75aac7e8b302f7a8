"""Windows by the SHA-256 of their content: a local folder, or any place fsspec reaches.

A file ``ab/abcd….arrow.zst`` is one zstd stream of the canonical multipart Arrow encoding
(`rca_api.store.canonical`), whose SHA-256 is its name; unpacked it is what `Window.to_arrow` would post.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from rca.errors import SourceError
from rca.telemetry.encodings import arrow
from rca.telemetry.window import Window
from rca_api.store.canonical import canonical_pieces

DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".arrow.zst"
_DELETING = ".deleting"
#: A file this young may belong to a request whose row is not committed yet.
YOUNG_SECONDS = 3600.0


class WindowStoreError(SourceError):
    """The window store cannot be used at the moment."""

    code = "store-unavailable"


class WindowDamaged(SourceError):
    """A file in the window store is not what its name says."""


class WindowMissing(SourceError):
    """The window was never stored here, or retention has deleted it."""

    code = "not-found"


@dataclass(frozen=True)
class Stored:
    """Where a window is, and how many bytes it takes there."""

    digest: str
    n_bytes: int


class _Place(Protocol):
    """What a window store needs of a folder or of a bucket; names are relative."""

    def size(self, name: str) -> int | None: ...
    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> int: ...
    def read(self, name: str) -> bytes | None: ...
    def delete(self, name: str, older_than_seconds: float) -> bool: ...
    def names(self) -> Iterator[str]: ...


class WindowStore:
    """Keeps each window once; safe to use from many processes.

    Parameters
    ----------
    url : str
        A local folder, or an fsspec URL such as ``s3://bucket/windows``.
    """

    def __init__(self, url: str) -> None:
        self._place: _Place = _Bucket(url) if "://" in url else _Folder(Path(url))

    def put(self, window: Window) -> Stored:
        """Store a window durably; one that is there already is not written again.

        Raises
        ------
        WindowStoreError
        """
        pieces = canonical_pieces(window)
        digest = _sha256(pieces)
        with _translated():
            size = self._place.size(_name(digest))
            if size is None:
                size = self._place.write(_name(digest), pieces)
        return Stored(digest, size)

    def read(self, digest: str, max_bytes: int | None = None) -> bytes:
        """Give the window as a multipart Arrow body (`rca.telemetry.encodings.arrow.CONTENT_TYPE`).

        Raises
        ------
        WindowMissing
            If it is not here.
        WindowStoreError
            If the store cannot be read.
        WindowDamaged
            If the content is not what was stored.
        """
        with _translated():
            packed = self._place.read(_name(digest)) if DIGEST.fullmatch(digest) else None
        if packed is None:
            raise WindowMissing(f"there is no window {digest}")
        try:
            with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
                content: bytes = stream.read(max_bytes)
        except OSError as error:
            raise WindowDamaged(f"the window {digest} is damaged: {error}") from error
        if _sha256([content]) != digest:
            raise WindowDamaged(f"the window {digest} is damaged: its content has another digest")
        return content

    def get(self, digest: str) -> Window:
        """Read and validate a window; raises as `read` does."""
        return arrow.decode(self.read(digest), arrow.CONTENT_TYPE)

    def delete(self, digest: str, *, older_than_seconds: float = YOUNG_SECONDS) -> bool:
        """Delete a window unless it was stored (again) lately; True if it is gone."""
        with _translated():
            return self._place.delete(_name(digest), older_than_seconds)

    def digests(self) -> Iterator[str]:
        """List every stored window; slow, for cleaning up."""
        with _translated():
            for name in self._place.names():
                digest = name.rpartition("/")[2].removesuffix(_SUFFIX)
                if DIGEST.fullmatch(digest):
                    yield digest


class _Folder:
    """A local folder: written aside, flushed to the disk and renamed, so that no reader sees half a file."""

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser()

    def size(self, name: str) -> int | None:
        path = self._root / name
        try:
            # Being asked for makes it young again, so that `delete` leaves it to whoever asked.
            os.utime(path)
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> int:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        try:
            # Our own descriptor stays open beyond Arrow's, to flush what Arrow has written.
            with os.fdopen(descriptor, "rb") as file:
                with pa.CompressedOutputStream(pa.OSFile(aside, "wb"), "zstd") as stream:
                    for piece in pieces:
                        stream.write(piece)
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            Path(aside).replace(path)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
        return size

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def delete(self, name: str, older_than_seconds: float) -> bool:
        path = self._root / name
        doomed = path.with_name(path.name + _DELETING)
        try:
            # Taken out of sight first: whoever stores the window meanwhile writes it anew.
            path.rename(doomed)
        except FileNotFoundError:
            return True
        if time.time() - doomed.stat().st_mtime < older_than_seconds:
            doomed.rename(path)
            return False
        doomed.unlink()
        return True

    def names(self) -> Iterator[str]:
        for path in self._root.glob(f"??/*{_SUFFIX}"):
            yield f"{path.parent.name}/{path.name}"


class _Bucket:
    """A place behind fsspec, whose own puts are whole or not there at all."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._files: Any
        self._files, root = fsspec.core.url_to_fs(url)
        self._root = str(root).rstrip("/")

    def size(self, name: str) -> int | None:
        try:
            return int(self._files.size(f"{self._root}/{name}"))
        except FileNotFoundError:
            return None

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> int:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            for piece in pieces:
                stream.write(piece)
        packed = sink.getvalue().to_pybytes()
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(path, packed)
        return len(packed)

    def read(self, name: str) -> bytes | None:
        try:
            return bytes(self._files.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError:
            return None

    def delete(self, name: str, older_than_seconds: float) -> bool:
        path = f"{self._root}/{name}"
        try:
            if time.time() - self._files.modified(path).timestamp() < older_than_seconds:
                return False
            self._files.rm_file(path)
        except FileNotFoundError:
            pass
        return True

    def names(self) -> Iterator[str]:
        with suppress(FileNotFoundError):
            yield from (path.removeprefix(self._root + "/") for path in self._files.find(self._root))


def _name(digest: str) -> str:
    return f"{digest[:2]}/{digest}{_SUFFIX}"


def _sha256(pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut; the folder above may be new as well."""
    for path in (folder, folder.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # The folder's path is the operator's business, not the caller's.
        reason = error.strerror or type(error).__name__
        raise WindowStoreError(f"the window store cannot be used: {reason}") from error
