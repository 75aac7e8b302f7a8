"""The task that a worker gives to the process that trains, that process, and the collections to train on.

The process is a child of the worker. Its messages are progress (``phase``) and requests to write to the
registry (``may_write``). Collections are folders in a folder of the operator: callers give names, not paths.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from rca.errors import RcaError
from rca_api.models.registry_process import limit_mlflow
from rca_api.shell.observability.logs import HidingFormatter
from rca_api.shell.processes.child_process import Parent


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


#: Lets the service on the same machine go first.
NICENESS = 10
_PROGRESS_SECONDS = 0.2
_log = logging.getLogger("rca_api.training")


class ProgressSender:
    """Sends progress to the worker, a few times a second at most."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._phase = ""
        self._sent_at = 0.0

    def progress(self, phase: str, completed: int, total: int) -> None:
        """Report how far a phase is; `total` 0 if it has no amount."""
        now = time.monotonic()
        if phase != self._phase or completed >= total or now - self._sent_at > _PROGRESS_SECONDS:
            self._parent.send({"phase": phase, "completed": completed, "total": total})
            self._phase, self._sent_at = phase, now

    def may_write(self) -> None:
        """Wait until the worker has renewed its lease; for ever, if the run is lost or cancelled."""
        self._parent.send({"may_write": True})
        self._parent.receive()


def train(parent: Parent, task: Task) -> dict[str, Any]:
    """Program of the child: do one task; gives the result of the run."""
    os.nice(NICENESS)
    limit_mlflow()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HidingFormatter(logging.BASIC_FORMAT))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    from rca_api.training_runs.work import work

    try:
        return work(task, ProgressSender(parent))
    except RcaError:
        _log.exception("the run failed")
        raise
