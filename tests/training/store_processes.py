"""Processes that make the file of a store: ``python store_processes.py FOLDER N_KILLS``, prints JSON.

They are forked from one process that has imported MLflow, which takes seconds.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.store.tracking import sqlalchemy_store  # noqa: F401  (imported before the forks)

from rca.lab.training import store_file
from rca.lab.training.tracking import check_store


def forked(work: Callable[[], object]) -> int:
    """Do some work in a process of its own; its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def state(path: Path) -> str:
    if not path.exists():
        return "absent"
    return "complete" if store_file._is_complete(path) else "in part"


def opens(path: Path) -> bool:
    """Whether a new process can use the store, also without this package."""

    def use() -> None:
        check_store(f"sqlite:///{path}")
        MlflowClient(f"sqlite:///{path}").search_experiments(max_results=1)

    return status_of(forked(use)) == 0


def together(path: Path) -> dict[str, Any]:
    """Let two processes make the file at once."""
    pids = [forked(lambda: check_store(f"sqlite:///{path}")) for _ in range(2)]
    return {"statuses": [status_of(pid) for pid in pids], "opens": opens(path)}


def killed(path: Path, n: int, seconds: float) -> dict[str, Any]:
    """Kill processes that make the file in `seconds`, each a little later than the one before."""
    states = []
    for number in range(n):
        pid = forked(lambda: check_store(f"sqlite:///{path}"))
        time.sleep(seconds * (number + 0.5) / n)
        os.kill(pid, signal.SIGKILL)
        status_of(pid)
        states.append(state(path))
    return {"states": states, "opens": opens(path)}


def main(folder: Path, n_kills: int) -> None:
    logging.disable()
    folders = [folder / name for name in ("together", "measured", "killed")]
    for each in folders:
        each.mkdir()
    at_once, measured, kills = (each / "mlflow.db" for each in folders)
    found = {"together": together(at_once)}
    if n_kills:
        began = time.monotonic()
        assert status_of(forked(lambda: check_store(f"sqlite:///{measured}"))) == 0
        found["killed"] = killed(kills, n_kills, time.monotonic() - began)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
