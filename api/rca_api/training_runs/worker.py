"""The worker: claims training runs and works on them, one after the other."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from rca.errors import RcaError
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.private import private_folder
from rca_api.training_runs.supervisor import LOG, RunEnd, Supervisor
from rca_api.training_runs.tables import TrainingRunRow
from rca_api.training_runs.task import FEEDBACK, Task, available

#: Writes the windows with feedback as a labelled collection; returns their number.
ExportFeedback = Callable[[Path], int]
#: Pause between two looks for a run.
_LOOK_SECONDS = 1.0
_log = structlog.stdlib.get_logger("rca_api.training")


@dataclass(eq=False)
class TrainingWorker:
    """Works on training runs until it is stopped.

    Attributes
    ----------
    export_feedback : callable, optional
        Without it, runs that include feedback fail.
    """

    settings: Settings
    supervisor: Supervisor
    export_feedback: ExportFeedback | None = None

    def run(self) -> None:
        """Work until stopped."""
        _log.info("worker started", worker=self.supervisor.worker)
        while not self.supervisor.stopping.is_set():
            if self.work_once() is None:
                # Not a wait for the event, whose lock a signal handler may find taken.
                time.sleep(_LOOK_SECONDS)
        _log.info("worker stopped", worker=self.supervisor.worker)

    def work_once(self) -> RunEnd | None:
        """Claim the free run, if there is one, and work on it to its end."""
        row = self.supervisor.claim()
        return None if row is None else self._work(row)

    def _work(self, row: TrainingRunRow) -> RunEnd:
        folder = self.settings.data_dir / "training" / row.id
        try:
            for each in (self.settings.data_dir, folder.parent, folder):
                private_folder(each)
            _delete_unfinished(folder)
            outcome = self.supervisor.run(self._task(row, folder))
        except (RcaError, OSError) as error:
            _log.exception("the run cannot be started", run=row.id)
            outcome = self.supervisor.refuse(row.id, error)
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
        settings, order = self.settings, row.order
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
        if self.export_feedback is None:
            if wanted:
                raise RcaError("this worker cannot export feedback")
            return {}
        # An earlier attempt may have left half of it.
        shutil.rmtree(folder, ignore_errors=True)
        return {FEEDBACK: folder} if self.export_feedback(folder) else {}


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
