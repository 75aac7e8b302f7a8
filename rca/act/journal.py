"""Durable records of what an agent proposes and does: nothing acts before its record is on disk.

The begin of an action is recorded before its first step, and each step after it.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from rca.act.kubernetes import CordonNode, EvictPod
from rca.act.processes import EndProcess
from rca.act.slurm import DrainNode, RequeueJob
from rca.errors import InvalidInput, SourceError
from rca.frozen import Frozen

AnyStep = Annotated[CordonNode | EvictPod | DrainNode | RequeueJob | EndProcess, Field(discriminator="kind")]
#: `tried`: a dry run. `acting`: begun, perhaps by an agent that has ended. `expired`: not begun in time, or
#: not wanted any more. `failed`: begun, and ended before its last step.
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
    claimed : bool
        Whether the incident has the action. It has it before the first step.
    n_done : int
        Steps that are done.
    note : str
        Why it expired or failed.
    by : str
        The person who approved or rejected it.
    reported : bool
        Whether the incident has its failure.
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
    claimed: bool = False
    n_done: int = 0
    note: str = ""
    by: str = ""
    reported: bool = False


class ActionJournal:
    """The records of one file; one agent and several people may use it at once.

    Raises
    ------
    SourceError
        If the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        #: Records that this release cannot read, or no release.
        self.unreadable: tuple[str, ...] = ()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._held = sqlite3.connect(path, timeout=30.0, isolation_level=None)
            # A record is on the disk before the call that makes it returns.
            self._held.execute("PRAGMA synchronous=FULL")
            self._held.execute(
                "CREATE TABLE IF NOT EXISTS proposals (id TEXT PRIMARY KEY, incident TEXT NOT NULL, "
                "at REAL NOT NULL, document TEXT NOT NULL)"
            )
        except (OSError, sqlite3.Error) as error:
            raise SourceError(f"cannot open the journal {path}: {error}") from None

    @contextmanager
    def one_agent(self) -> Iterator[None]:
        """Let no other agent work with this journal.

        Raises
        ------
        SourceError
            If one does.
        """
        with Path(f"{self._path}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise SourceError(
                    f"another agent works with {self._path}", hint="run one agent for each journal"
                ) from None
            yield

    def all(self) -> list[Proposal]:
        """Every record that can be read, the newest first.

        Raises
        ------
        SourceError
            If the file cannot be read.
        """
        try:
            rows = self._held.execute("SELECT id, document FROM proposals ORDER BY at DESC, id").fetchall()
        except sqlite3.Error as error:
            raise SourceError(f"the journal cannot be read: {error}") from None
        found, unreadable = [], []
        for record, document in rows:
            try:
                found.append(Proposal.model_validate_json(document))
            except ValidationError:
                unreadable.append(record)
        self.unreadable = tuple(unreadable)
        return found

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
            return self._change(proposal_id, only, changes)

    def begin(
        self, proposal: Proposal, refuse: Callable[[Sequence[Proposal]], str | None], at: float
    ) -> Proposal | str:
        """Record that an approved action begins, unless the other records forbid it; the reason if they do.

        Parameters
        ----------
        refuse : callable
            Judges the other records; they do not change meanwhile.
        """
        with self._alone():
            reason = refuse(self.all())
            if reason is not None:
                return reason
            given = {"chance": proposal.chance, "predicted": proposal.predicted}
            changes = given | {"diagnosis": proposal.diagnosis, "state": "acting", "begun_at": at}
            return self._change(proposal.id, ["approved"], changes) or "it is not approved any more"

    def _change(self, proposal_id: str, only: Sequence[State], changes: dict[str, Any]) -> Proposal | None:
        found = self.get(proposal_id)
        if found.state not in only:
            return None
        changed = Proposal.model_validate({**found.model_dump(), **changes})
        self._held.execute(
            "UPDATE proposals SET document = ? WHERE id = ?", (changed.model_dump_json(), changed.id)
        )
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
