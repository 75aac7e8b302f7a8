"""Folders and files with access for their owner only: they hold windows and secrets of webhooks."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def private_folder(folder: Path) -> None:
    """Create a folder for its owner only; an existing folder keeps its rights."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def private_file(path: Path) -> None:
    """Create an empty file for its owner only, unless it exists.

    An existing file is not opened. A process that closes any descriptor of a file loses all its POSIX locks
    on the file, those of SQLite included.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY, 0o600))
