"""The process that trains: ``python -m rca_api.training_runs.child FOLDER``, a child of the worker.

``FOLDER/task.json`` holds its task. Its messages are progress (``phase``), requests to write to the registry
(``may_write``), and at the end a ``result`` or a ``problem``.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from rca.errors import RcaError
from rca_api.shell.observability.logs import HidingFormatter
from rca_api.shell.processes.child_process import REPORT, Parent
from rca_api.training_runs.task import Task

#: Lets the service on the same machine go first.
NICENESS = 10
_PROGRESS_SECONDS = 0.2
_log = logging.getLogger("rca_api.training")


class Reporter:
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


def main(arguments: list[str] | None = None) -> None:
    """Do one task; the last message is its result or its problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(REPORT, type=int, required=True)
    given = parser.parse_args(arguments)
    parent = Parent(given.report)
    os.nice(NICENESS)
    # By default MLflow retries a call for minutes; a cancelled run must end sooner.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HidingFormatter(logging.BASIC_FORMAT))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    try:
        from rca_api.training_runs.work import work

        parent.send({"result": work(Task.read(given.folder), Reporter(parent))})
    except RcaError as error:
        _log.exception("the run failed")
        parent.send({"problem": {"code": error.code, "detail": error.message, **error.details()}})
    except Exception:
        _log.exception("the run failed unexpectedly")
        detail = "The training failed; the worker's log says how."
        parent.send({"problem": {"code": "internal-error", "detail": detail}})


if __name__ == "__main__":
    main()
