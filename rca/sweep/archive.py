"""What an archive holds: windows and traces under a folder, or under a URL that fsspec reaches."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from rca.errors import InvalidInput, InvalidWindow, MissingExtra, RcaError, SourceError, TooLarge
from rca.sources.labels import MANIFEST_FILE
from rca.sources.read import read_window
from rca.window.encodings.directory import JOB_FILE, OWN_FILES
from rca.window.window import Window

#: Ends of names of files that may hold a window; their content decides.
WINDOW_SUFFIXES = (".json", ".json.gz", ".json.zst", ".arrow")
#: Largest window, in bytes as stored and in bytes after decompression.
MAX_BYTES = 1 << 30
#: What identifies the content of a stored file, by the kind of storage.
_VERSIONS = ("etag", "ETag", "md5Hash", "mtime", "LastModified", "updated", "created")


@dataclass(frozen=True)
class Found:
    """A window that was found and not yet read.

    Attributes
    ----------
    url : str
        Of its directory or file.
    version : str
        Digest of the sizes and versions of its files. Another version of a URL replaces the earlier one.
    n_bytes : int
        As stored.
    unlisted : str
        Why the folder at the URL cannot be listed; "" otherwise.
    """

    url: str
    version: str
    n_bytes: int
    unlisted: str = field(default="", kw_only=True)

    @property
    def is_local(self) -> bool:
        """Whether it is in a folder of this machine; a ``file://`` URL is read by other machines, too."""
        return _is_path(self.url)

    def read(self) -> Window:
        """The window, validated.

        Raises
        ------
        SourceError
            If the window or its folder cannot be read.
        InvalidWindow
            If the content is not a window, or breaks the format.
        TooLarge
            If the window is larger than `MAX_BYTES`.
        """
        if self.unlisted:
            raise SourceError(f"{self.url}: cannot be listed: {self.unlisted}")
        if self.n_bytes > MAX_BYTES:
            raise TooLarge(f"{self.url}: {self.n_bytes:,} bytes are more than the limit of {MAX_BYTES:,}")
        with on_this_machine(self.url) as (place,):
            try:
                return read_window(place, max_bytes=MAX_BYTES)
            except RcaError as error:
                # A copy is gone when the message is read.
                evidence = {"path": self.url} if isinstance(error, InvalidWindow) else {}
                raise error.restated(error.message.replace(str(place), self.url), **evidence) from error


@contextmanager
def on_this_machine(*urls: str) -> Iterator[list[Path]]:
    """Files or directories of windows: where they are, else copies that are removed afterwards.

    Raises
    ------
    SourceError
        If one cannot be read.
    """
    places = [file_system(url) for url in urls]
    if all("file" in protocols(files) for files, _ in places):
        yield [Path(path) for _, path in places]
        return
    with TemporaryDirectory(prefix="rca-sweep-") as folder:
        copies = [Path(folder, PurePosixPath(path).name or "window") for _, path in places]
        for url, copy, (files, path) in zip(urls, copies, places, strict=True):
            with using(url):
                _copy(files, path, copy)
        yield copies


def _copy(files: Any, path: str, place: Path) -> None:
    """Copy a window to this machine: a file, or those files of a directory that a window may have."""
    if not files.isdir(path):
        files.get_file(path, str(place))
        return
    place.mkdir()
    for each in files.ls(path, detail=False):
        name = PurePosixPath(each).name
        if name in OWN_FILES:
            files.get_file(each, str(place / name))


@dataclass(frozen=True)
class Folder:
    """Files of one folder of an archive.

    Attributes
    ----------
    names : mapping of str to dict
        What the storage says about each file.
    given : str
        The URL that was given.
    is_whole : bool
        False if a single file of the folder was named: it may hold others.
    """

    files: Any
    path: str
    names: Mapping[str, dict[str, Any]]
    given: str
    is_whole: bool = True

    def url(self, name: str = "") -> str:
        """URL of a file, or of the folder; a path if the folder was named by a path."""
        path = "/".join(part for part in (self.path, name) if part)
        if _is_path(self.given):
            return path
        # What follows is the file that holds the files.
        _, chain, rest = self.given.partition("::")
        return f"{self.files.unstrip_protocol(path)}{chain}{rest}"

    def beside(self, names: Iterable[str]) -> str | None:
        """The first of the names that the folder has."""
        for name in names:
            if name in self.names or (not self.is_whole and self.files.exists(f"{self.path}/{name}")):
                return name
        return None

    def facts(self, names: Iterable[str]) -> tuple[str, int]:
        """Version and size in bytes of some files together."""
        held = [self.names.get(name) or self.files.info(f"{self.path}/{name}") for name in names]
        sizes = [int(each.get("size") or 0) for each in held]
        versions = [next((str(each[key]) for key in _VERSIONS if each.get(key)), "") for each in held]
        digest = hashlib.sha256(repr([sizes, versions]).encode()).hexdigest()[:32]
        return digest, sum(sizes)


Find = Callable[[Folder], Iterator[Found]]


def windows_of(folder: Folder) -> Iterator[Found]:
    """The windows of a folder: itself if it has ``window.json``, else files with one of `WINDOW_SUFFIXES`."""
    if JOB_FILE in folder.names:
        # What an exporter or a person has put beside it does not change the window.
        own = sorted(OWN_FILES.intersection(folder.names))
        yield Found(folder.url(), *folder.facts(own))
        return
    for name in folder.names:
        if name.endswith(WINDOW_SUFFIXES) and name != MANIFEST_FILE and not name.startswith("."):
            yield Found(folder.url(name), *folder.facts([name]))


def archived(urls: Iterable[str], find: Find = windows_of) -> list[Found]:
    """All windows, or whatever else `find` finds, under folders, files and URLs.

    Parameters
    ----------
    find : callable
        What one folder holds.

    Returns
    -------
    list of Found
        Sorted by URL, each once.

    Raises
    ------
    SourceError
        If a place does not exist or cannot be listed.
    InvalidInput
        If a URL has a protocol that fsspec does not know.
    MissingExtra
        If a library for a protocol is not installed.
    """
    found: dict[str, Found] = {}
    for url in urls:
        with using(url):
            found |= {each.url: each for each in _found(url, find)}
    return [found[url] for url in sorted(found)]


def _found(url: str, find: Find) -> Iterator[Found]:
    files, root = file_system(url)
    failed: list[OSError] = []
    listed: dict[str, dict[str, Any]] = (
        _listed_here(root, failed) if "file" in protocols(files) else files.find(root, detail=True)
    )
    if not listed and not files.exists(root):
        raise SourceError(
            f"{url}: no such file or directory", hint="give a folder, a file or a URL of windows or traces"
        )
    folders: dict[str, dict[str, dict[str, Any]]] = {}
    for path, facts in listed.items():
        folder, _, name = path.rpartition("/")
        folders.setdefault(folder, {})[name] = facts
    for folder, names in folders.items():
        yield from find(Folder(files, folder, names, url, is_whole=list(listed) != [root]))
    for error in failed:
        yield Found(str(error.filename), "", 0, unlisted=error.strerror or str(error))


def _listed_here(root: str, failed: list[OSError]) -> dict[str, dict[str, Any]]:
    """Files of this machine: fsspec leaves out folders that it cannot list, and says nothing.

    Pipes and sockets are left out, because a reader would wait for them. A folder that links lead to counts
    once, so a loop of links ends.
    """
    if found := _facts_here([root]):
        return found
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, onerror=failed.append, followlinks=True):
        place = os.path.realpath(folder)
        if place in seen:
            folders.clear()
            continue
        seen.add(place)
        found |= _facts_here(f"{folder}/{name}" for name in names)
    return found


def _facts_here(paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and time of those that are files; others may be removed at the same time."""
    found = {}
    for path in paths:
        try:
            held = Path(path).stat()
        except OSError:
            continue
        if stat.S_ISREG(held.st_mode):
            found[path] = {"size": held.st_size, "mtime": held.st_mtime}
    return found


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
    if _is_path(url):
        return fsspec.filesystem("file"), os.path.abspath(url)  # noqa: PTH100 - keeps symbolic links
    try:
        files, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise MissingExtra(f"{url}: {error}", hint="install it with pip, also where workers run") from error
    except ValueError as error:
        raise InvalidInput(
            f"{url}: {error}", hint="give a path, s3://..., gs://... or another URL of fsspec"
        ) from error
    except OSError as error:
        raise SourceError(f"{url}: cannot be read: {error.strerror or error}") from error
    return files, str(path).rstrip("/") or files.root_marker


def _is_path(url: str) -> bool:
    return "://" not in url


def protocols(files: Any) -> tuple[str, ...]:
    """Names of the protocol of a file system."""
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)


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
