"""The worker: claims training runs and works on them, one after the other."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

import structlog

from rca.errors import RcaError
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.base import new_id, now
from rca_api.shell.store.database import Database, StoreError
from rca_api.shell.store.private import private_folder
from rca_api.training_runs import repository
from rca_api.training_runs.child import train
from rca_api.training_runs.repository import Terms
from rca_api.training_runs.supervisor import LOG, Pace, RunEnd, Supervisor, no_op
from rca_api.training_runs.tables import TrainingRunRow
from rca_api.training_runs.task import FEEDBACK, Task, available

#: Writes the windows with feedback as a labelled collection; returns their number.
ExportFeedback = Callable[[Path], int]
#: Pause between two looks for a run.
_LOOK_SECONDS = 1.0
_log = structlog.stdlib.get_logger("rca_api.training")


class TrainingWorker:
    """Works on training runs until it is stopped.

    Parameters
    ----------
    export_feedback : callable, optional
        Without it, runs that include feedback fail.
    program : callable
        Does a task in a child process.
    alive : callable
        Called every second or two unless this worker hangs.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        stopping: Event,
        *,
        export_feedback: ExportFeedback | None = None,
        program: Callable[..., Any] = train,
        terms: Terms | None = None,
        pace: Pace | None = None,
        clock: Callable[[], datetime] = now,
        alive: Callable[[], None] = no_op,
    ) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{new_id()[:8]}"
        self._settings = settings
        self._database = database
        self._stopping = stopping
        self._export = export_feedback
        self._terms = terms or Terms(attempts=settings.training_attempts)
        self._clock = clock
        self._alive = alive
        self._supervisor = Supervisor(
            database, self.name, stopping, self._terms, pace or Pace(), clock, alive=alive, program=program
        )

    def run(self) -> None:
        """Work until stopped."""
        _log.info("worker started", worker=self.name)
        while not self._stopping.is_set():
            if self.work_once() is None:
                # Not a wait for the event, whose lock a signal handler may find taken.
                time.sleep(_LOOK_SECONDS)
        _log.info("worker stopped", worker=self.name)

    def work_once(self) -> RunEnd | None:
        """Claim the free run, if there is one, and work on it to its end."""
        self._alive()
        try:
            with self._database.reading() as session:
                if not repository.has_active(session):
                    return None
            with self._database.session() as session:
                row = repository.claim(session, self.name, self._clock(), self._terms)
        except StoreError as error:
            _log.warning("the database cannot be used", reason=error.message)
            return None
        return None if row is None else self._work(row)

    def _work(self, row: TrainingRunRow) -> RunEnd:
        folder = self._settings.data_dir / "training" / row.id
        try:
            for each in (self._settings.data_dir, folder.parent, folder):
                private_folder(each)
            _delete_unfinished(folder)
            outcome = self._supervisor.run(self._task(row, folder))
        except (RcaError, OSError) as error:
            _log.exception("the run cannot be started", run=row.id)
            outcome = self._supervisor.refuse(row.id, error)
        if outcome in ("succeeded", "cancelled"):
            shutil.rmtree(folder, ignore_errors=True)
        elif outcome == "failed":
            _keep_only_the_log(folder)
        return outcome

    def _task(self, row: TrainingRunRow, folder: Path) -> Task:
        """Find the files that the order names.

        Raises
        ------
        RcaError
            If a collection was deleted, or feedback cannot be exported.
        """
        settings, order = self._settings, row.order
        found = available(settings.collections_dir)
        feedback = self._feedback(folder / FEEDBACK, wanted=bool(order.get("include_feedback")))
        missing = sorted(set(order.get("collections", ())) - set(found))
        if missing:
            raise RcaError(f"the collection {missing[0]!r} is not there any more")
        return Task(
            id=row.id,
            kind=row.kind,
            folder=folder,
            tracking_uri=settings.registry_uri,
            processes=settings.training_processes,
            scheduler=settings.dask_scheduler or None,
            cache=settings.cache_dir,
            windows=order.get("windows", 0),
            seed=order.get("seed", 0),
            collections={name: found[name] for name in order.get("collections", ())}
            | (feedback if order.get("include_feedback") else {}),
            available=found | feedback,
            gate_windows=order.get("gate_windows") or settings.gate_windows,
            auto_promote=settings.auto_promote,
            version=str(order.get("version", "")),
            patience_seconds=settings.registry_patience_seconds,
        )

    def _feedback(self, folder: Path, *, wanted: bool) -> dict[str, Path]:
        if self._export is None:
            if wanted:
                raise RcaError("this worker cannot export feedback")
            return {}
        # An earlier attempt may have left half of it.
        shutil.rmtree(folder, ignore_errors=True)
        return {FEEDBACK: folder} if self._export(folder) else {}


def _delete_unfinished(own: Path) -> None:
    """Delete the folders of killed workers; only one run is active, so they are not in use."""
    for other in own.parent.iterdir():
        if other != own and any(each.name != LOG for each in other.iterdir()):
            shutil.rmtree(other, ignore_errors=True)


def _keep_only_the_log(folder: Path) -> None:
    """Delete the files of a failed run except its log."""
    for each in folder.iterdir() if folder.is_dir() else ():
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        elif each.name != LOG:
            each.unlink(missing_ok=True)
