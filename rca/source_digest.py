"""Digests of this package's source: what results that are kept, or computed elsewhere, depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path


def package_folder() -> Path:
    """Folder of this package."""
    return Path(str(files("rca")))


def source_digest(sources: Iterable[Path]) -> str:
    """SHA-256 over names, relative to the package, and contents of source files, in the given order."""
    root, sha = package_folder(), hashlib.sha256()
    for file in sources:
        sha.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return sha.hexdigest()
