"""Durable records of what an agent proposes and does: nothing acts before its record is on disk.

An incident has one record at most. A step is recorded before it begins and after it is done.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rca.act.kubernetes import CordonNode, EvictPod
from rca.act.processes import EndProcess
from rca.act.slurm import DrainNode, RequeueJob
from rca.errors import InvalidInput, SourceError
from rca.frozen import Frozen

AnyStep = Annotated[CordonNode | EvictPod | DrainNode | RequeueJob | EndProcess, Field(discriminator="kind")]
#: `tried`: a dry run, for good. `acting`: begun, perhaps by an agent that has ended. `expired`: the incident
#: ended, or no approval came in time.
State = Literal["tried", "proposed", "approved", "rejected", "expired", "acting", "done", "failed"]
#: States of actions that have touched the cluster, or will at once.
BEGUN: frozenset[State] = frozenset({"acting", "done", "failed"})


class Proposal(Frozen):
    """One action on one incident.

    Attributes
    ----------
    nodes, ranks : tuple
        It acts on these.
    chance : float
        Probability that it acts on the true cause.
    predicted : float or None
        Seconds per step that it saves.
    at, begun_at : float
        Unix seconds of the proposal and of the first step.
    n_done : int
        Steps that are done.
    tries : int
        Failed tries of the step after them.
    note : str
        Why it expired or failed.
    reported : bool
        Whether the incident has it.
    """

    id: str
    incident: str
    job: str
    action: str
    cause: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    takes_out: bool
    chance: float
    predicted: float | None
    diagnosis: str
    steps: tuple[AnyStep, ...]
    state: State
    at: float
    begun_at: float | None = None
    ended_at: float | None = None
    n_done: int = 0
    tries: int = 0
    note: str = ""
    by: str = ""
    reported: bool = False


class ActionJournal:
    """The records of one file; several agents and people may use it at once.

    Raises
    ------
    SourceError
        If the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._held = sqlite3.connect(path, timeout=30.0, isolation_level=None)
            # A record is on the disk before the call that makes it returns.
            self._held.execute("PRAGMA synchronous=FULL")
            self._held.execute(
                "CREATE TABLE IF NOT EXISTS proposals (id TEXT PRIMARY KEY, incident TEXT NOT NULL UNIQUE, "
                "at REAL NOT NULL, document TEXT NOT NULL)"
            )
        except (OSError, sqlite3.Error) as error:
            raise SourceError(f"cannot open the journal {path}: {error}") from None

    def all(self) -> list[Proposal]:
        """Every record, the newest first."""
        rows = self._held.execute("SELECT document FROM proposals ORDER BY at DESC, id").fetchall()
        return [Proposal.model_validate_json(row[0]) for row in rows]

    def get(self, proposal_id: str) -> Proposal:
        """A record by its id, or by the begin of it.

        Raises
        ------
        InvalidInput
            If there is none, or several begin so.
        """
        found = [each for each in self.all() if proposal_id and each.id.startswith(proposal_id)]
        if len(found) != 1:
            raise InvalidInput(
                f"{len(found)} proposals have an id that begins with {proposal_id!r}",
                hint="`rca act list POLICY` shows them",
            )
        return found[0]

    def add(self, proposal: Proposal, refuse: Callable[[Sequence[Proposal]], str | None]) -> str | None:
        """Add a record unless the others forbid it; gives the reason against it.

        Parameters
        ----------
        refuse : callable
            Judges the other records; they do not change meanwhile.
        """
        with self._alone():
            reason = refuse(self.all())
            if reason is None:
                values = proposal.id, proposal.incident, proposal.at, proposal.model_dump_json()
                self._held.execute("INSERT INTO proposals VALUES (?, ?, ?, ?)", values)
        return reason

    def change(self, proposal_id: str, only: Sequence[State], **changes: Any) -> Proposal | None:
        """Change a record in one of some states; None if it is in another one by now."""
        with self._alone():
            found = self.get(proposal_id)
            if found.state not in only:
                return None
            changed = Proposal.model_validate({**found.model_dump(), **changes})
            values = changed.model_dump_json(), changed.id
            self._held.execute("UPDATE proposals SET document = ? WHERE id = ?", values)
        return changed

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A transaction that no other process writes beside."""
        try:
            self._held.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._held.execute("ROLLBACK")
                raise
            self._held.execute("COMMIT")
        except sqlite3.Error as error:
            raise SourceError(f"the journal cannot be written: {error}") from None
