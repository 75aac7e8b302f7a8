"""Storing what was found, and whatever follows from it, in one transaction each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy.orm import Session

from rca_api import tracing
from rca_api.diagnoses import repository
from rca_api.diagnoses.keys import Hold, settle
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.diagnoses.work import Answer, Kept
from rca_api.metrics import Metrics
from rca_api.problems import ProblemError, problem_document
from rca_api.store.base import new_id, now
from rca_api.store.database import Database

_log = structlog.stdlib.get_logger("rca_api.diagnoses")
OnDiagnosed = Callable[[Session, DiagnosisRow], None]
#: A diagnosis that was begun so often and never ended takes its process with it each time.
MOST_ATTEMPTS = 5


@dataclass(frozen=True)
class Claimed:
    """A queued diagnosis to be worked on."""

    diagnosis_id: str
    window_digest: str
    #: Of the request that asked for it, as the log has it.
    request_id: str | None = None


class Journal:
    """Writes diagnoses down; every method is one transaction and may block.

    Parameters
    ----------
    database : Database
    metrics : Metrics
    on_diagnosed : tuple of callables
        Told of every finished diagnosis, in the transaction that stores it.
    has_window : callable
        Whether the window of a digest is in the window store.
    clock : callable
    """

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        on_diagnosed: tuple[OnDiagnosed, ...],
        has_window: Callable[[str], bool],
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._on_diagnosed = on_diagnosed
        self._has_window = has_window
        self._clock = clock

    def record(
        self,
        window: Kept,
        answer: Answer,
        *,
        asked_by: str | None,
        request_id: str | None = None,
        hold: Hold | None = None,
    ) -> None:
        """Store a finished diagnosis; durable when this returns."""
        with self._metrics.stage("commit"), self._database.session() as session:
            row = repository.add_done(
                session, window, answer, asked_by=asked_by, request_id=request_id, at=self._clock()
            )
            self._refuse_a_deleted(window)
            if hold is not None:
                settle(session, hold, row.id)
            self._tell(session, row)
        self._report(answer, row.job_id)

    def enqueue(
        self,
        window: Kept,
        *,
        asked_by: str | None,
        request_id: str | None = None,
        most: int,
        hold: Hold | None = None,
    ) -> str:
        """Store the intention to diagnose a stored window, and give it its id.

        Raises
        ------
        ProblemError
            ``busy`` if `most` wait already.
        """
        diagnosis_id = new_id()
        with self._metrics.stage("commit"), self._database.session() as session:
            if repository.n_queued(session) >= most:
                self._metrics.shed.labels("queued").inc()
                raise ProblemError(
                    "busy", f"{most:,} diagnoses are queued already", headers={"Retry-After": "30"}
                )
            repository.add_queued(
                session,
                window,
                diagnosis_id=diagnosis_id,
                asked_by=asked_by,
                request_id=request_id,
                at=self._clock(),
            )
            self._refuse_a_deleted(window)
            if hold is not None:
                settle(session, hold, diagnosis_id)
        return diagnosis_id

    def claim(self, owner: str, lease_seconds: float, most: int) -> list[Claimed]:
        """Claim queued diagnoses for `owner`, which renews its lease while it works on them."""
        at, length = self._clock(), timedelta(seconds=lease_seconds)
        claimed: list[Claimed] = []
        with self._database.session() as session:
            found = repository.claim(session, owner, at, length, most, most_attempts=MOST_ATTEMPTS)
            for row in found.exhausted:
                self._give_up(row, f"given up after {row.attempts} attempts", at)
            for row in found.rows:
                if row.window_digest is None:
                    self._give_up(row, "its window is no longer stored", at)
                else:
                    claimed.append(Claimed(row.id, row.window_digest, row.request_id))
        return claimed

    def renew(self, owner: str, diagnosis_ids: list[str], lease_seconds: float) -> None:
        """Extend the leases of diagnoses that `owner` works on."""
        with self._database.session() as session:
            length = timedelta(seconds=lease_seconds)
            repository.renew(session, owner, diagnosis_ids, self._clock(), length)

    def give_back(self, owner: str, diagnosis_ids: list[str]) -> None:
        """Queue diagnoses again that `owner` does not finish."""
        with self._database.session() as session:
            repository.give_back(session, owner, diagnosis_ids)

    def complete(self, owner: str, answer: Answer) -> bool:
        """Store the answer of a queued diagnosis; False if somebody else has taken it over."""
        with self._metrics.stage("commit"), self._database.session() as session:
            row = repository.complete(session, owner, answer, self._clock())
            if row is None:
                return False
            self._tell(session, row)
            waited = (self._clock() - row.created_at).total_seconds()
        # Never less than nothing, should the clock have been put back meanwhile.
        self._metrics.queued_seconds.observe(max(waited, 0.0))
        self._report(answer, row.job_id)
        return True

    def fail(self, owner: str, diagnosis_id: str, problem: ProblemError) -> None:
        """Note why a queued diagnosis will never be there."""
        with self._database.session() as session:
            repository.fail(session, owner, diagnosis_id, _document(problem, diagnosis_id), self._clock())

    def _give_up(self, row: DiagnosisRow, why: str, at: datetime) -> None:
        problem = ProblemError("internal-error", why)
        repository.give_up(row, _document(problem, row.id), at)

    def _refuse_a_deleted(self, window: Kept) -> None:
        """Promise no window that retention has deleted since it was stored.

        Called while the window's row is ours: retention deletes files only together with rows, so what is
        there now is there as long as the row is.
        """
        if not self._has_window(window.digest):
            raise ProblemError(
                "busy", "the window was being deleted as too old; send it again", headers={"Retry-After": "1"}
            )

    def _tell(self, session: Session, row: DiagnosisRow) -> None:
        for told in self._on_diagnosed:
            told(session, row)

    def _report(self, answer: Answer, job_id: str) -> None:
        """Count it and write its one line: after the commit, so that no line tells what was not kept."""
        self._metrics.diagnosed(answer)
        _log.info(
            "diagnosis",
            diagnosis_id=answer.diagnosis_id,
            job_id=job_id,
            failure_mode=answer.failure_mode,
            cause=next(iter(answer.causes), None),
            seconds_per_step=round(answer.seconds_per_step, 6),
            abstained=answer.abstained,
            reason=answer.facts.abstention,
            model=answer.model_sha256[:12],
            milliseconds=tracing.milliseconds(),
        )


def _document(problem: ProblemError, diagnosis_id: str) -> bytes:
    return problem_document(problem, f"/v1/diagnoses/{diagnosis_id}")
