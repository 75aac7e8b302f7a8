"""Stores diagnoses and their consequences, each in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime, timedelta

import orjson
import structlog
from sqlalchemy.orm import Session

from rca_api.diagnoses import repository
from rca_api.diagnoses.keys import Hold, bind
from rca_api.diagnoses.repository import LEASES, QUEUED
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.diagnoses.work import DiagnosisAnswer, StoredWindow
from rca_api.shell.observability import tracing
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.requests.problems import ProblemError, problem_document
from rca_api.shell.store.base import new_id, now
from rca_api.shell.store.database import Database
from rca_api.shell.store.packed import PlainDocument

_log = structlog.stdlib.get_logger("rca_api.diagnoses")
OnDiagnosed = Callable[[Session, DiagnosisRow], None]
#: After so many claims without an end, the diagnosis probably kills its process.
MAX_ATTEMPTS = 5


@dataclass(frozen=True)
class Claimed:
    """A queued diagnosis that this process works on."""

    diagnosis_id: str
    window_digest: str
    #: Id in the log of the request that queued it.
    request_id: str | None = None


@dataclass(eq=False)
class Journal:
    """Stores diagnoses; every method is one transaction and may block.

    Attributes
    ----------
    on_diagnosed : tuple of callables
        Called with every finished diagnosis, in the transaction that stores it.
    has_window : callable
        Whether the window store has the window of a digest.
    packed : bool
        Whether to compress documents.
    """

    database: Database
    metrics: Metrics
    on_diagnosed: tuple[OnDiagnosed, ...]
    has_window: Callable[[str], bool]
    clock: Callable[[], datetime] = now
    _: KW_ONLY
    packed: bool = True

    def record(
        self,
        window: StoredWindow,
        answer: DiagnosisAnswer,
        *,
        asked_by: str | None,
        request_id: str | None = None,
        hold: Hold | None = None,
    ) -> None:
        """Store a finished diagnosis; durable when this returns."""
        with self.metrics.stage("commit"), self.database.session() as session:
            row = repository.add_done(
                session,
                window,
                self._as_stored(answer),
                asked_by=asked_by,
                request_id=request_id,
                at=self.clock(),
            )
            self.refuse_a_deleted(window)
            if hold is not None:
                bind(session, hold, row.id)
            self._notify(session, row)
        self._report(answer, row.job_id)

    def enqueue(
        self,
        window: StoredWindow,
        *,
        asked_by: str | None,
        request_id: str | None = None,
        most: int,
        hold: Hold | None = None,
    ) -> str:
        """Queue a diagnosis of a stored window; returns its id.

        Raises
        ------
        ProblemError
            ``busy`` if `most` diagnoses are queued already, ``rate-limited`` if three quarters of so many are
            of this caller. Without authentication all callers are one, and have all of it.
        """
        diagnosis_id = new_id()
        with self.metrics.stage("commit"), self.database.session() as session:
            queue = repository.queue_for(session, asked_by)
            refused = _refusal(queue, most, known=asked_by is not None)
            if refused is not None:
                self.metrics.shed.labels("queued").inc()
                raise refused
            repository.add_queued(
                session,
                window,
                diagnosis_id=diagnosis_id,
                asked_by=asked_by,
                request_id=request_id,
                turn=queue.turn,
                at=self.clock(),
            )
            self.refuse_a_deleted(window)
            if hold is not None:
                bind(session, hold, diagnosis_id)
        return diagnosis_id

    def claim(self, owner: str, lease_seconds: float, most: int) -> list[Claimed]:
        """Claim queued diagnoses for `owner`, which renews its lease while it works on them."""
        at, length = self.clock(), timedelta(seconds=lease_seconds)
        claimed: list[Claimed] = []
        with self.database.session() as session:
            found = repository.claim(session, owner, at, length, most, most_attempts=MAX_ATTEMPTS)
            given_up = [
                _given_up(
                    row,
                    "process-ended",
                    f"given up after {row.attempts} attempts; the last one: {_last_failure(row)}",
                    at,
                )
                for row in found.exhausted
            ]
            for row in found.rows:
                if row.window_digest is None:
                    given_up.append(_given_up(row, "diagnosis-failed", "its window is no longer stored", at))
                else:
                    claimed.append(Claimed(row.id, row.window_digest, row.request_id))
        for each in given_up:
            _log.error("a diagnosis is given up", **each)
        return claimed

    def renew(self, owner: str, diagnosis_ids: list[str], lease_seconds: float) -> None:
        """Extend the leases of diagnoses that `owner` works on."""
        with self.database.session() as session:
            length = timedelta(seconds=lease_seconds)
            LEASES.renew(session, owner, diagnosis_ids, self.clock(), length)

    def give_back(self, owner: str, diagnosis_ids: list[str]) -> None:
        """Queue diagnoses again that `owner` does not finish; the attempt does not count."""
        with self.database.session() as session:
            for row in LEASES.give_back(session, owner, diagnosis_ids):
                row.state = QUEUED

    def postpone(self, owner: str, diagnosis_id: str, problem: ProblemError, pause_seconds: float) -> None:
        """Queue a diagnosis again after a failed attempt, which counts; it is claimed after a pause."""
        until = self.clock() + timedelta(seconds=pause_seconds)
        with self.database.session() as session:
            for row in LEASES.postpone(session, owner, [diagnosis_id], until):
                row.state, row.problem = QUEUED, _document(problem, diagnosis_id)

    def complete(self, owner: str, answer: DiagnosisAnswer) -> bool:
        """Store the answer of a queued diagnosis; False if `owner` no longer has its lease."""
        with self.metrics.stage("commit"), self.database.session() as session:
            row = LEASES.held_one(session, owner, answer.diagnosis_id)
            if row is None:
                return False
            repository.finish(row, self._as_stored(answer), self.clock())
            session.flush()
            self._notify(session, row)
            waited = (self.clock() - row.created_at).total_seconds()
        # Negative if the clock was put back meanwhile.
        self.metrics.queued_seconds.observe(max(waited, 0.0))
        self._report(answer, row.job_id)
        return True

    def fail(self, owner: str, diagnosis_id: str, problem: ProblemError) -> None:
        """Store the problem of a queued diagnosis that failed."""
        with self.database.session() as session:
            row = LEASES.held_one(session, owner, diagnosis_id)
            if row is not None:
                repository.give_up(row, _document(problem, diagnosis_id), self.clock())

    def _as_stored(self, answer: DiagnosisAnswer) -> DiagnosisAnswer:
        return answer if self.packed else replace(answer, document=PlainDocument(answer.document))

    def refuse_a_deleted(self, window: StoredWindow) -> None:
        """Raise if retention has deleted the window since it was stored.

        This transaction has locked the row of the window. Retention deletes a file only together with its
        row, so a file that exists now stays.
        """
        if not self.has_window(window.digest):
            raise ProblemError(
                "busy", "the window was being deleted as too old; send it again", headers={"Retry-After": "1"}
            )

    def _notify(self, session: Session, row: DiagnosisRow) -> None:
        for callback in self.on_diagnosed:
            callback(session, row)

    def _report(self, answer: DiagnosisAnswer, job_id: str) -> None:
        """Count and log a diagnosis, after the commit."""
        self.metrics.diagnosed(answer)
        _log.info(
            "diagnosis",
            diagnosis_id=answer.diagnosis_id,
            job_id=job_id,
            failure_mode=answer.failure_mode,
            cause=next(iter(answer.causes), None),
            seconds_per_step=None if answer.seconds_per_step is None else round(answer.seconds_per_step, 6),
            abstained=answer.abstained,
            reason=answer.facts.abstention,
            model=answer.model_sha256[:12],
            milliseconds=tracing.milliseconds(),
        )


def _refusal(queue: repository.Queue, most: int, *, known: bool) -> ProblemError | None:
    """Why a caller gets no further place in the queue; None if it gets one."""
    headers = {"Retry-After": "30"}
    if queue.n_queued >= most:
        return ProblemError("busy", f"{most:,} diagnoses are queued already", headers=headers)
    share = most - most // 4
    if known and queue.n_mine >= share:
        detail = f"{queue.n_mine:,} diagnoses of this caller are queued; the rest of the queue is for others"
        return ProblemError("rate-limited", detail, headers=headers)
    return None


def _given_up(row: DiagnosisRow, code: str, why: str, at: datetime) -> dict[str, str | None]:
    """End a diagnosis without an answer; gives what the log says of it."""
    problem = ProblemError(code, why, hint="post the window again, or report the id")
    repository.give_up(row, _document(problem, row.id), at)
    return {"diagnosis_id": row.id, "job_id": row.job_id, "window": row.window_digest, "reason": why}


def _last_failure(row: DiagnosisRow) -> str:
    """Why the last attempt of a diagnosis had no end."""
    if row.lease_owner is not None:
        return "the service ended, or lost its database: it did not renew its lease"
    return str(orjson.loads(row.problem or b"{}").get("detail", "not known"))


def _document(problem: ProblemError, diagnosis_id: str) -> bytes:
    return problem_document(problem, f"/v1/diagnoses/{diagnosis_id}")
