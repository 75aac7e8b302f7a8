"""Atomic replacement of files and folders."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path


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
