"""Folders and files that only their owner may look into: they hold windows, and secrets of webhooks."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def private_folder(folder: Path) -> None:
    """Make a folder for its owner alone; one that is there keeps the rights somebody gave it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def private_file(path: Path) -> None:
    """Make an empty file for its owner alone, unless there is one.

    One that is there is not even opened: whoever closes any descriptor of a file gives up all POSIX locks
    that his process holds on it, those of SQLite included.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY, 0o600))
