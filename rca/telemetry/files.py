"""Files that readers see whole or not at all."""

from __future__ import annotations

import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file by renaming a finished one into place; a kill at any moment leaves the old one."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        fresh.write_bytes(content)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
