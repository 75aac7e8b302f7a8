"""Files that readers see whole or not at all."""

from __future__ import annotations

from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file by renaming a finished one into place; a kill at any moment leaves the old one.

    For one writer at a time: what a killed one left behind is overwritten by the next.
    """
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)
