"""The windows of an archive: under a folder, or under a URL that fsspec reaches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from rca.errors import InvalidInput, MissingExtra, RcaError, SourceError, TooLarge
from rca.telemetry.encodings.directory import JOB_FILE, OWN_FILES
from rca.telemetry.labels import MANIFEST_FILE
from rca.telemetry.read import read_window
from rca.telemetry.window import Window

#: Ends of names of files that may hold a window; their content decides.
WINDOW_SUFFIXES = (".json", ".json.gz", ".json.zst", ".arrow")
#: Largest window, in bytes as stored and in bytes after decompression.
MAX_BYTES = 1 << 30
#: What identifies the content of a stored file, by the kind of storage.
_VERSIONS = ("etag", "ETag", "md5Hash", "mtime", "LastModified", "updated", "created")


class Found(Protocol):
    """A window that was found and not yet read."""

    @property
    def url(self) -> str:
        """What identifies the window."""

    @property
    def version(self) -> str:
        """Another version of the same URL is another window, which replaces it."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can read it."""

    def read(self) -> Window:
        """The window, validated."""


@dataclass(frozen=True)
class Archived:
    """A window of an archive that was found and not yet read.

    Attributes
    ----------
    url : str
        Of its directory or file.
    version : str
        Digest of the sizes and versions of its files: another version is another window.
    n_bytes : int
        As stored.
    """

    url: str
    version: str
    n_bytes: int

    @property
    def is_local(self) -> bool:
        """Whether the window is in a folder of this machine."""
        return "://" not in self.url

    def read(self) -> Window:
        """The window, validated.

        Raises
        ------
        SourceError
            If the window cannot be read any more.
        InvalidWindow
            If the content is not a window, or breaks the format.
        TooLarge
            If the window is larger than `MAX_BYTES`.
        """
        if self.n_bytes > MAX_BYTES:
            raise TooLarge(f"{self.url}: {self.n_bytes:,} bytes are more than the limit of {MAX_BYTES:,}")
        if self.is_local:
            return read_window(self.url, max_bytes=MAX_BYTES)
        files, path = file_system(self.url)
        with using(self.url), TemporaryDirectory(prefix="rca-sweep-") as folder:
            place = Path(folder) / PurePosixPath(path).name
            files.get(path, str(place), recursive=files.isdir(path))
            return read_window(place, max_bytes=MAX_BYTES)


def archived(urls: Iterable[str]) -> list[Archived]:
    """All windows under folders, files and URLs, sorted by URL, each once.

    A window is a directory with ``window.json``, or a file whose name ends with one of `WINDOW_SUFFIXES`.

    Parameters
    ----------
    urls : iterable of str
        Paths, or URLs such as ``s3://bucket/windows``.

    Raises
    ------
    SourceError
        If a place does not exist or cannot be listed.
    InvalidInput
        If a URL has a protocol that fsspec does not know.
    MissingExtra
        If a library for a protocol is not installed.
    """
    found = {each.url: each for url in urls for each in _under(url)}
    return [found[url] for url in sorted(found)]


def _under(url: str) -> Iterator[Archived]:
    files, root = file_system(url)
    with using(url):
        listed: dict[str, dict[str, Any]] = files.find(root, detail=True)
        if not listed and not files.exists(root):
            raise SourceError(
                f"{url}: no such file or directory", hint="give a folder, a file or a URL of windows"
            )
    folders: dict[str, list[dict[str, Any]]] = {}
    for path, facts in listed.items():
        folders.setdefault(path.rpartition("/")[0], []).append(facts)
    for folder, held in folders.items():
        names = {PurePosixPath(facts["name"]).name: facts for facts in held}
        if JOB_FILE in names:
            # What an exporter or a person has put beside it does not change the window.
            own = [facts for name, facts in sorted(names.items()) if name in OWN_FILES]
            yield _archived(files, folder, own)
            continue
        for name, facts in names.items():
            if name.endswith(WINDOW_SUFFIXES) and name != MANIFEST_FILE and not name.startswith("."):
                yield _archived(files, facts["name"], [facts])


def _archived(files: Any, path: str, facts: list[dict[str, Any]]) -> Archived:
    sizes = [int(each.get("size") or 0) for each in facts]
    versions = [next((str(each[key]) for key in _VERSIONS if each.get(key)), "") for each in facts]
    digest = hashlib.sha256(repr([sizes, versions]).encode()).hexdigest()[:32]
    local = "file" in _protocols(files)
    return Archived(path if local else files.unstrip_protocol(path), digest, sum(sizes))


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the path in it; a local path is made absolute.

    Raises
    ------
    InvalidInput
        If fsspec does not know the protocol.
    MissingExtra
        If fsspec, or the library for the protocol, is not installed.
    """
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtra("a sweep needs fsspec", hint="pip install 'straggler-rca[scale]'") from error
    try:
        files, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise MissingExtra(f"{url}: {error}", hint="install it with pip, also where workers run") from error
    except ValueError as error:
        raise InvalidInput(
            f"{url}: {error}", hint="give a path, s3://..., gs://... or another URL of fsspec"
        ) from error
    return files, str(path).rstrip("/") or "/"


@contextmanager
def using(url: str, done: str = "read") -> Iterator[None]:
    """Turn whatever a file system raises into an error that names the URL, and what cannot be done."""
    try:
        yield
    except RcaError:
        raise
    except Exception as error:  # Each storage has its own errors.
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise SourceError(f"{url}: cannot be {done}: {reason}") from error
