"""Files and folders that readers see whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file by renaming a finished one into place; a kill or a power cut leaves the old one.

    Of several writers the last one wins. What a killed one leaves behind is called ``.<name>.<token>.new``.
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
    """Rename a finished folder into place; where that fails, what was there before is put back.

    A folder cannot be renamed onto a full one, so the old one steps aside for the moment.
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
