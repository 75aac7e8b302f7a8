"""Labelled windows to train on: folders in one folder of the operator's, never a path of the caller's."""

from __future__ import annotations

from pathlib import Path

MANIFEST = "manifest.json"
#: Windows that people have confirmed or corrected, exported for a run.
FEEDBACK = "feedback"


def available(folder: Path | None) -> dict[str, Path]:
    """Every collection in `folder`, by name; one that links to somewhere else is none."""
    if folder is None or not folder.is_dir():
        return {}
    root = folder.resolve()
    return {
        each.name: each.resolve()
        for each in sorted(root.iterdir())
        if (each / MANIFEST).is_file() and each.resolve().parent == root and each.name != FEEDBACK
    }
