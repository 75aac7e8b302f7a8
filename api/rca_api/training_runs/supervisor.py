"""Supervision of one run: the process that trains, the lease, cancellation and the end."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event
from typing import Any, Literal

import structlog

from rca.errors import RcaError
from rca_api.shell.processes.child_process import ChildEnded, ChildProcess, Reply
from rca_api.shell.store.base import new_id, now
from rca_api.shell.store.database import Database, StoreError
from rca_api.training_runs import repository
from rca_api.training_runs.child import train
from rca_api.training_runs.repository import RunProgress, Terms
from rca_api.training_runs.tables import TrainingRunRow
from rca_api.training_runs.task import Task

RunEnd = Literal["succeeded", "failed", "cancelled", "released", "lost"]
LOG = "log.txt"
_log = structlog.stdlib.get_logger("rca_api.training")


@dataclass(frozen=True)
class Pace:
    """How often a worker sends heartbeats, and how long it waits.

    Attributes
    ----------
    heartbeat_seconds : float
        Seconds between heartbeats; a cancelled run is noticed as soon.
    write_grace_seconds : float
        In a cancelled run, the longest time for a write to the registry that had begun.
    """

    heartbeat_seconds: float = 1.0
    write_grace_seconds: float = 20.0


def no_op() -> None:
    """Do nothing, for workers that no probe watches."""


def _own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{new_id()[:8]}"


@dataclass(eq=False)
class Supervisor:
    """Claims a run, works on it in a child and keeps its row true.

    Attributes
    ----------
    worker : str
        Name under which runs are claimed.
    stopping : Event
        Set when this worker has to stop; the run is given back.
    alive : callable
        Called at least once per heartbeat, and at each claim.
    program : callable
        Does the task in the child.
    """

    database: Database
    stopping: Event
    worker: str = field(default_factory=_own_name)
    terms: Terms = field(default_factory=Terms)
    pace: Pace = field(default_factory=Pace)
    clock: Callable[[], datetime] = now
    alive: Callable[[], None] = no_op
    program: Callable[..., Any] = train

    def claim(self) -> TrainingRunRow | None:
        """Claim the free run; None if there is none, or if the database is away."""
        self.alive()
        try:
            with self.database.reading() as session:
                if not repository.has_active(session):
                    return None
            with self.database.session() as session:
                return repository.claim(session, self.worker, self.clock(), self.terms)
        except StoreError as error:
            _log.warning("the database cannot be used", reason=error.message)
            return None

    def run(self, task: Task) -> RunEnd:
        """Start the child, follow it to its end, write down what came of it.

        Returns
        -------
        str
            ``released`` if another worker may take the run up, ``lost`` if one has.
        """
        child = ChildProcess(self.program, task, log=task.folder / LOG)
        _log.info("training", run=task.id, pid=child.pid)
        try:
            return self._follow(task.id, child)
        finally:
            child.end()

    def _follow(self, run_id: str, child: ChildProcess) -> RunEnd:
        watched = _Watched()
        while True:
            self.alive()
            if self.stopping.is_set():
                return self._release(run_id, counted=False)
            try:
                message = child.receive(self.pace.heartbeat_seconds)
            except TimeoutError:
                message = {}
            except ChildEnded as error:
                _log.error("the training process died", run=run_id, reason=str(error))
                return self._release(run_id, counted=True)
            if isinstance(message, Reply):
                # First, because a run whose version is registered must not end as cancelled.
                problem = _problem(message)
                state: Literal["succeeded", "failed"] = "succeeded" if problem is None else "failed"
                return self._finish(run_id, state, result=message.value, problem=problem)
            watched.note(message)
            instruction = self._beat(run_id, watched)
            if instruction == "lost":
                _log.warning("another worker has the run", run=run_id)
                return "lost"
            if instruction == "cancel" and not watched.writes_for(self.pace.write_grace_seconds):
                child.end()
                return self._finish(run_id, "cancelled")
            if watched.wants_to_write and instruction == "go on":
                watched.begins_to_write()
                child.send({"go": True})

    def _beat(self, run_id: str, watched: _Watched) -> repository.Instruction | None:
        """Renew the lease when it is time; None if it is not, or if the database is away.

        A database that is away does not end the run: no other worker can claim it either. Nothing is written
        to the registry before the lease was renewed.
        """
        moment = time.monotonic()
        if moment < watched.beat_due:
            return None
        watched.beat_due = moment + self.pace.heartbeat_seconds
        try:
            with self.database.session() as session:
                return repository.heartbeat(
                    session, run_id, self.worker, self.clock(), self.terms, watched.progress
                )
        except StoreError as error:
            _log.warning("no heartbeat", run=run_id, reason=error.message)
            return None

    def refuse(self, run_id: str, error: Exception) -> RunEnd:
        """Fail a run that cannot be started; give it back if only the database was away."""
        if isinstance(error, StoreError):
            return self._release(run_id, counted=True)
        detail = error.message if isinstance(error, RcaError) else "The worker cannot write its files."
        problem = {"code": getattr(error, "code", "internal-error"), "detail": detail}
        return self._finish(run_id, "failed", problem=problem)

    def _finish(
        self,
        run_id: str,
        state: Literal["succeeded", "failed", "cancelled"],
        *,
        result: dict[str, Any] | None = None,
        problem: dict[str, Any] | None = None,
    ) -> RunEnd:
        """Store the end of a run."""
        while True:
            self.alive()
            try:
                with self.database.session() as session:
                    mine = repository.finish(
                        session, run_id, self.worker, state, self.clock(), result=result, problem=problem
                    )
            except StoreError as error:
                # The next worker of the run finds the registered version and finishes the run.
                _log.warning("the end of a run cannot be stored", run=run_id, reason=error.message)
                if self.stopping.wait(self.pace.heartbeat_seconds):
                    return "lost"
            else:
                _log.info("training ended", run=run_id, state=state, problem=problem)
                return state if mine else "lost"

    def _release(self, run_id: str, *, counted: bool) -> RunEnd:
        try:
            with self.database.session() as session:
                repository.give_back(session, run_id, self.worker, counted=counted)
        except StoreError as error:
            # The lease runs out.
            _log.warning("a run cannot be given back", run=run_id, reason=error.message)
        return "released"


def _problem(reply: Reply) -> dict[str, Any] | None:
    if reply.crash is not None:
        detail = "The training failed; the worker's log says how."
        return {"code": "internal-error", "detail": detail}
    error = reply.error
    return None if error is None else {"code": error.code, "detail": error.message, **error.details()}


class _Watched:
    """State of a child process, from its messages."""

    def __init__(self) -> None:
        self.progress = RunProgress("starting")
        self.beat_due = 0.0
        self.wants_to_write = False
        self._writing_since: float | None = None

    def note(self, message: dict[str, Any]) -> None:
        if "phase" in message:
            self.progress = RunProgress(message["phase"], message["completed"], message["total"])
            # Its write is over, or it waits for the registry.
            self._writing_since = None
        if "may_write" in message:
            self.wants_to_write = True
            self.beat_due = 0.0

    def begins_to_write(self) -> None:
        self.wants_to_write = False
        self._writing_since = time.monotonic()

    def writes_for(self, grace: float) -> bool:
        """Whether a write to the registry has begun less than `grace` seconds ago."""
        return self._writing_since is not None and time.monotonic() - self._writing_since < grace
