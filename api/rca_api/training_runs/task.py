"""The task that a worker gives to the process that trains, and the collections to train on.

Collections are folders in a folder of the operator. Callers give names, not paths.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Task(BaseModel):
    """One run with all details: paths instead of names, defaults filled in.

    Attributes
    ----------
    id : str
        Id of the run. The registered version has it as a tag, so it is registered once.
    folder : Path
        Folder for the files of this run.
    collections : dict of str to Path
        Collections to train and test on.
    available : dict of str to Path
        All collections. The gate uses those that a version was tested on.
    version : str
        Number of the version to promote.
    scheduler : str or None
        Address of a Dask scheduler whose workers replace the processes.
    patience_seconds : float
        Longest wait for a registry that is away.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    kind: str
    folder: Path
    tracking_uri: str
    processes: int
    scheduler: str | None = None
    cache: Path
    windows: int = 0
    seed: int = 0
    collections: dict[str, Path] = {}
    available: dict[str, Path] = {}
    gate_windows: int
    auto_promote: bool = False
    version: str = ""
    patience_seconds: float


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
