"""Files of users: opened only if they are regular and allowed, and replaced atomically.

A pipe, a socket or a device may never end, or never even open. So every reader opens files here.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from rca.errors import InvalidInput, SourceError

#: The only folder that may be read, resolved; None for no limit.
_ROOT: ContextVar[Path | None] = ContextVar("root", default=None)
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_STREAM = "write the content to a file, or send it to standard input and give -: PROGRAM | rca diagnose -"


def data_folder() -> Path:
    """Folder for a user's data: ``RCA_DATA_DIR``, else in ``$XDG_DATA_HOME``, by default ``~/.local/share``.

    Raises
    ------
    InvalidInput
        If neither is set and the user has no home folder.
    """
    given, base = os.environ.get("RCA_DATA_DIR"), os.environ.get("XDG_DATA_HOME")
    try:
        if given:
            return Path(given).expanduser().absolute()
        return (Path(base) if base else Path.home() / ".local" / "share") / "straggler-rca"
    except RuntimeError:
        raise InvalidInput("RCA_DATA_DIR: needs a folder, because this user has no home folder") from None


@contextmanager
def only_below(root: Path) -> Iterator[None]:
    """Let this thread read only what lies below a folder, whatever links and ``..`` lead to."""
    token = _ROOT.set(root.resolve())
    try:
        yield
    finally:
        _ROOT.reset(token)


def refuse_outside(path: Path) -> None:
    """Refuse a path that leads out of the folder of `only_below`.

    Raises
    ------
    InvalidInput
    """
    root = _ROOT.get()
    if root is not None and not Path(os.path.realpath(path)).is_relative_to(root):
        raise InvalidInput(
            f"{path} is outside the folder that may be read", hint="links may not lead out of it either"
        )


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file to read, without a wait.

    Raises
    ------
    SourceError
        If it is a pipe, a socket, a device or a folder.
    InvalidInput
        If it is outside the folder of `only_below`.
    OSError
        If it is missing or cannot be read.
    """
    place = Path(path)
    # A device may do something when it is opened.
    check_file(place)
    # It may be another file by now. Opening a pipe must not wait for its writer.
    handle = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    file = os.fdopen(handle, "rb")
    try:
        opened = os.fstat(handle)
        _refuse_kind(place, opened)
        if _ROOT.get() is not None:
            refuse_outside(place)
            if not os.path.samestat(opened, os.lstat(os.path.realpath(place))):
                raise SourceError(f"{place} was replaced while it was opened", hint="try again")
    except BaseException:
        file.close()
        raise
    return file


def check_file(path: str | os.PathLike[str]) -> None:
    """Refuse what `open_file` refuses; for libraries that open files themselves."""
    place = Path(path)
    refuse_outside(place)
    _refuse_kind(place, place.stat())


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The content of a regular file; errors as of `open_file`."""
    with open_file(path) as file:
        return file.read()


def read_text(path: str | os.PathLike[str]) -> str:
    """The content of a regular text file in UTF-8; errors as of `open_file`.

    Raises
    ------
    UnicodeDecodeError
    """
    with open_file(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig") as text:
        return text.read()


def _refuse_kind(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "of another kind")
        raise SourceError(
            f"{path}: cannot be read: it is {kind}, not a regular file",
            hint="give a file" if kind == "a folder" else _STREAM,
        )


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: after a kill or a power cut, the old file is still there.

    The last of several writers wins. A killed writer leaves a file ``.<name>.<token>.new``.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        with fresh.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def replace_folder(target: Path, staged: Path) -> None:
    """Rename a finished folder into place; if that fails, the old folder is restored.

    A folder cannot be renamed onto a non-empty one, so the old one is renamed first.
    """
    aside = target.parent / f".{target.name}.{secrets.token_hex(4)}.old"
    if target.exists():
        target.rename(aside)
    try:
        staged.rename(target)
    except OSError:
        if aside.exists():
            aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)
