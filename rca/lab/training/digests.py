"""Identity of labelled windows on disk: a digest of their files, without their place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from rca.errors import SourceError
from rca.sources.labels import LABEL_FILE


def files_digest(path: Path, *, without: Iterable[str] = ()) -> str:
    """SHA-256 over the names and contents of a folder's files, or of one file.

    Parameters
    ----------
    without : iterable of str
        Names at the top of the folder that are left out.

    Raises
    ------
    SourceError
        If a file cannot be read.
    """
    left_out = set(without)
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    sha = hashlib.sha256()
    for file in files:
        name = file.relative_to(path).as_posix() if path.is_dir() else ""
        if name in left_out:
            continue
        try:
            content = hashlib.sha256(file.read_bytes()).digest()
        except OSError as error:
            raise SourceError(f"cannot read {file}: {error.strerror or error}") from error
        sha.update(name.encode() + b"\0" + content)
    return sha.hexdigest()


def window_digest(path: Path) -> str:
    """Identity of what was measured: a corrected label leaves it as it is."""
    return files_digest(path, without=[LABEL_FILE])


def joint_digest(digests: Iterable[str]) -> str:
    """One digest of several; their order does not matter."""
    return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()
