"""The process that trains: ``python -m rca_api.training_runs.child FOLDER``, a child of the worker.

``FOLDER/task.json`` says what to do. It tells how far it is (``phase``), asks before each attempt to write to
the registry (``may_write``), and at last gives a ``result`` or a ``problem``.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from rca.errors import RcaError
from rca_api.child_process import REPORT, Parent
from rca_api.training_runs.task import Task

#: The service beside it comes first.
NICENESS = 10
_TELL_SECONDS = 0.2
_log = logging.getLogger("rca_api.training")


class Reporter:
    """What a task tells its worker, no more often than anybody looks."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._phase = ""
        self._told = 0.0

    def progress(self, phase: str, completed: int, total: int) -> None:
        """Say how far a phase is; 0 of 0 where it has no amount."""
        now = time.monotonic()
        if phase != self._phase or completed >= total or now - self._told > _TELL_SECONDS:
            self._parent.send({"phase": phase, "completed": completed, "total": total})
            self._phase, self._told = phase, now

    def may_write(self) -> None:
        """Wait until the worker has made sure that the run is still its own and wanted."""
        self._parent.send({"may_write": True})
        self._parent.receive()


def main(arguments: list[str] | None = None) -> None:
    """Do one task; what came of it is the last message."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(REPORT, type=int, required=True)
    given = parser.parse_args(arguments)
    parent = Parent(given.report)
    os.nice(NICENESS)
    # MLflow's own patience is minutes a call; a cancelled run should not have to wait for it.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    try:
        from rca_api.training_runs.work import work

        parent.send({"result": work(Task.read(given.folder), Reporter(parent))})
    except RcaError as error:
        _log.exception("the run failed")
        parent.send({"problem": {"code": error.code, "detail": error.message, **error.details()}})
    except Exception:
        _log.exception("the run failed unexpectedly")
        told = "The training failed on our side; the worker's log says how."
        parent.send({"problem": {"code": "internal-error", "detail": told}})


if __name__ == "__main__":
    main()
