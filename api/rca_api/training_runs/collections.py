"""Labelled collections to train on: folders in a folder of the operator. Callers give names, not paths."""

from __future__ import annotations

from pathlib import Path

MANIFEST = "manifest.json"
#: Windows that people have confirmed or corrected, exported for a run.
FEEDBACK = "feedback"


def available(folder: Path | None) -> dict[str, Path]:
    """Every collection in `folder`, by name; links that lead out of it are left out."""
    if folder is None or not folder.is_dir():
        return {}
    root = folder.resolve()
    return {
        each.name: each.resolve()
        for each in sorted(root.iterdir())
        if (each / MANIFEST).is_file() and each.resolve().parent == root and each.name != FEEDBACK
    }
