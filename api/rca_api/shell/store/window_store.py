"""Windows by the SHA-256 of their content, in a local folder or any place that fsspec reaches.

A file ``ab/abcd….arrow.zst`` is one zstd stream of the canonical multipart Arrow encoding
(`rca_api.shell.store.canonical`). Its name is the SHA-256 of that encoding. Unpacked it can be posted again.
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
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import structlog

from rca.errors import SourceError, TooLarge
from rca.window.encodings import arrow
from rca.window.names import accepted_before
from rca.window.schema import Scope
from rca.window.window import Window
from rca_api.shell.store.canonical import CanonicalPieces

_log = structlog.stdlib.get_logger("rca_api")
DIGEST = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20
_SUFFIX = ".arrow.zst"
#: A younger file probably belongs to a request that has not committed its row yet.
YOUNG_SECONDS = 3600.0


class WindowStoreError(SourceError):
    """The window store cannot be used at the moment."""

    code = "store-unavailable"


class WindowDamaged(SourceError):
    """The content of a file in the window store does not match its name."""


class WindowMissing(SourceError):
    """The window was never stored, or retention has deleted it."""

    code = "not-found"


@dataclass(frozen=True)
class Stored:
    """Digest and stored size of a window."""

    digest: str
    n_bytes: int


class _Place(Protocol):
    """Operations of a folder or a bucket; names are relative."""

    def size(self, name: str) -> int | None: ...
    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> int: ...
    def flush(self, name: str) -> None: ...
    def read(self, name: str) -> bytes | None: ...
    def delete(self, name: str, older_than_seconds: float | None) -> bool: ...
    def names(self) -> Iterator[str]: ...


class WindowStore:
    """Stores each window once; safe to use from many processes.

    Parameters
    ----------
    url : str
        A local folder, or an fsspec URL such as ``s3://bucket/windows``.
    """

    def __init__(self, url: str) -> None:
        self._place: _Place = _Bucket(url) if "://" in url else _Folder(Path(url))

    def put(self, window: Window) -> Stored:
        """Store a window durably, unless an undamaged copy exists.

        Raises
        ------
        WindowStoreError
        """
        stored = self.put_unflushed(window)
        self.flush(stored.digest)
        return stored

    def put_unflushed(self, window: Window) -> Stored:
        """Store a window as `put` does, but durably only after `flush`.

        A disk takes several flushes of one moment together, so threads may wait for them while a process
        goes on.

        Raises
        ------
        WindowStoreError
        """
        pieces = CanonicalPieces(window)
        _, digest = _size_and_sha256(pieces)
        with _translated():
            packed = self._place.read(_name(digest))
            # Reading costs a third of writing, and it finds damaged files, which are written again.
            if packed is not None and _is_whole(packed, digest):
                return Stored(digest, len(packed))
            if packed is not None:
                _log.warning("a stored window was damaged and is written again", digest=digest)
            return Stored(digest, self._place.write(_name(digest), pieces))

    def flush(self, digest: str) -> None:
        """Wait until a window that was put is durable.

        Raises
        ------
        WindowStoreError
        """
        with _translated():
            self._place.flush(_name(digest))

    def has(self, digest: str) -> bool:
        """Whether a window has a file; the content is not checked.

        Raises
        ------
        WindowStoreError
        """
        with _translated():
            return self._place.size(_name(digest)) is not None

    def read(self, digest: str, max_bytes: int | None = None) -> bytes:
        """The window as a multipart Arrow body (`rca.window.encodings.arrow.CONTENT_TYPE`).

        Raises
        ------
        WindowMissing
            If it is not stored.
        WindowStoreError
            If the store cannot be read.
        WindowDamaged
            If the content does not match the digest.
        TooLarge
            If it has more than `max_bytes` bytes.
        """
        with _translated():
            packed = self._place.read(_name(digest)) if DIGEST.fullmatch(digest) else None
        if packed is None:
            raise WindowMissing(f"there is no window {digest}")
        try:
            # Twice: with the size known, the content is read into one piece of memory.
            size, found = _unpacked(packed)
            if max_bytes is not None and size > max_bytes:
                raise TooLarge(f"the window {digest} has {size:,} bytes; the limit is {max_bytes:,}")
            with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
                content: bytes = stream.read(size)
        except OSError as error:
            raise WindowDamaged(f"the window {digest} is damaged: {error}") from error
        if found != digest:
            raise WindowDamaged(f"the window {digest} is damaged: its content has another digest")
        return content

    def get(self, digest: str, max_bytes: int | None = None, *, scope: Scope = "window") -> Window:
        """Read and validate a window; raises as `read` does."""
        body = self.read(digest, max_bytes)
        with accepted_before():
            return Window.from_arrow(body, arrow.CONTENT_TYPE, scope=scope)

    def delete(self, digest: str, *, older_than_seconds: float | None = None) -> bool:
        """Delete a window; True if it is gone.

        A file younger than `older_than_seconds` stays. Another process may be storing the window, so only
        `rca_api.stored_windows.retention` calls this.
        """
        with _translated():
            return self._place.delete(_name(digest), older_than_seconds)

    def digests(self) -> Iterator[str]:
        """Digests of all stored windows; slow."""
        with _translated():
            for name in self._place.names():
                digest = name.rpartition("/")[2].removesuffix(_SUFFIX)
                if DIGEST.fullmatch(digest):
                    yield digest


class _Folder:
    """A local folder; a file is written under another name and renamed, so readers see it whole.

    A file that was not flushed before a loss of power may be damaged: its content tells.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser()

    def size(self, name: str) -> int | None:
        try:
            return (self._root / name).stat().st_size
        except FileNotFoundError:
            return None

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> int:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        try:
            # Arrow closes its own descriptor.
            with os.fdopen(descriptor, "rb") as file:
                with pa.CompressedOutputStream(pa.OSFile(aside, "wb"), "zstd") as stream:
                    for piece in pieces:
                        stream.write(piece)
                size = os.fstat(file.fileno()).st_size
            Path(aside).replace(path)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
        return size

    def flush(self, name: str) -> None:
        # The folder has the name of the file, and the one above may have that of a new folder.
        path = self._root / name
        for each in (path, path.parent, path.parent.parent):
            descriptor = os.open(each, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def delete(self, name: str, older_than_seconds: float | None) -> bool:
        path = self._root / name
        with suppress(FileNotFoundError):
            if older_than_seconds is not None and time.time() - path.stat().st_mtime < older_than_seconds:
                return False
            path.unlink()
        return True

    def names(self) -> Iterator[str]:
        for path in self._root.glob(f"??/*{_SUFFIX}"):
            yield f"{path.parent.name}/{path.name}"


class _Bucket:
    """A place behind fsspec; its puts are atomic."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._files: Any
        # Without a cache of listings, because other processes write as well.
        self._files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
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

    def flush(self, name: str) -> None:
        """What was written is durable."""

    def read(self, name: str) -> bytes | None:
        try:
            return bytes(self._files.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError:
            return None

    def delete(self, name: str, older_than_seconds: float | None) -> bool:
        path = f"{self._root}/{name}"
        with suppress(FileNotFoundError):
            if older_than_seconds is not None:
                age = time.time() - self._files.modified(path).timestamp()
                if age < older_than_seconds:
                    return False
            self._files.rm_file(path)
        return True

    def names(self) -> Iterator[str]:
        with suppress(FileNotFoundError):
            yield from (path.removeprefix(self._root + "/") for path in self._files.find(self._root))


def _name(digest: str) -> str:
    return f"{digest[:2]}/{digest}{_SUFFIX}"


def _is_whole(packed: bytes, digest: str) -> bool:
    try:
        return _unpacked(packed)[1] == digest
    except OSError:
        return False


def _unpacked(packed: bytes) -> tuple[int, str]:
    """Size and SHA-256 of the content of a file."""
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        return _size_and_sha256(iter(partial(stream.read, _CHUNK), b""))


def _size_and_sha256(pieces: Iterable[bytes | memoryview]) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    for piece in pieces:
        size += len(piece)
        digest.update(piece)
    return size, digest.hexdigest()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Callers must not see the path of the folder.
        reason = error.strerror or type(error).__name__
        raise WindowStoreError(f"the window store cannot be used: {reason}") from error
