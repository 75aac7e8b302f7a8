"""The process that trains, a child of the worker.

Its messages are progress (``phase``) and requests to write to the registry (``may_write``).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

from rca.errors import RcaError
from rca_api.models.registry_process import limit_mlflow
from rca_api.shell.observability.logs import HidingFormatter
from rca_api.shell.processes.child_process import Parent
from rca_api.training_runs.task import Task

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
