"""Invariants of training runs in the repository, with a simulated clock and registry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import delete, select

from rca_api.shell.store.database import Database
from rca_api.training_runs import repository
from rca_api.training_runs.repository import FINAL, ActiveRun, RunProgress, Terms
from rca_api.training_runs.tables import TrainingRunRow

TERMS = Terms(lease=timedelta(seconds=30), attempts=3)
RANK = {"queued": 0, "running": 1, **dict.fromkeys(FINAL, 2)}
WORKERS = st.sampled_from(["one", "other"])


class TrainingRuns(RuleBasedStateMachine):
    """Callers that order and cancel; two workers that train, die, hang and continue."""

    database: Database

    @initialize()
    def begin(self) -> None:
        with self.database.session() as session:
            session.execute(delete(TrainingRunRow))
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)
        self.seen: dict[str, str] = {}
        self.runs: list[str] = []
        #: The run that each worker works on, from its own view.
        self.works_on: dict[str, str | None] = {"one": None, "other": None}
        #: Versions by the run they were registered for; a list, so that a second one would be seen.
        self.registered: dict[str, list[int]] = {}

    @rule(seconds=st.sampled_from([0.5, 5, 29, 31, 7200, -7200]))
    def time_passes(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)

    @rule()
    def order(self) -> None:
        active = self._active()
        refused = None
        try:
            with self.database.session() as session:
                self.runs.append(repository.create(session, "train", {}, now=self.moment).id)
        except ActiveRun as error:
            refused = error.run_id
        # A cancelled run without a worker does not block the order.
        assert refused in active if refused else all(self._of(run).state == "cancelled" for run in active)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.runs:
            run = data.draw(st.sampled_from(self.runs))
            with self.database.session() as session:
                row = repository.cancel(session, run, self.moment)
                assert row is not None
                assert row.cancel_requested_at is not None or row.state in FINAL

    @rule(worker=WORKERS)
    def claim(self, worker: str) -> None:
        if self.works_on[worker] is None:
            with self.database.session() as session:
                row = repository.claim(session, worker, self.moment, TERMS)
                self.works_on[worker] = row and row.id

    @rule(worker=WORKERS)
    def beat(self, worker: str) -> None:
        run = self.works_on[worker]
        if run is not None:
            told = self._beat(worker, run)
            if told == "cancel":
                assert self._finish(worker, run, "cancelled")
            if told != "go on":
                self.works_on[worker] = None

    @rule(worker=WORKERS, ending=st.sampled_from(["stored", "killed before", "killed after", "fails"]))
    def end(self, worker: str, ending: str) -> None:
        """Register and store the end, or be killed somewhere on the way."""
        run = self.works_on[worker]
        if run is None:
            return
        self.works_on[worker] = None
        if ending == "fails":
            self._finish(worker, run, "failed")
        elif ending != "killed before" and self._beat(worker, run) == "go on":
            versions = self.registered.setdefault(run, [])
            if not versions:
                versions.append(len(self.registered))
            if ending == "stored":
                assert self._finish(worker, run, "succeeded")

    @rule(worker=WORKERS, counted=st.booleans())
    def give_back(self, worker: str, counted: bool) -> None:
        run = self.works_on[worker]
        if run is not None:
            with self.database.session() as session:
                repository.give_back(session, run, worker, counted=counted)
            self.works_on[worker] = None

    @rule(worker=WORKERS)
    def come_back_after_a_hang(self, worker: str) -> None:
        """Who has lost the lease to another one cannot end the run."""
        run = self.works_on[worker]
        if run is not None and self._of(run).worker != worker:
            assert not self._finish(worker, run, "succeeded")
            self.works_on[worker] = None

    @invariant()
    def one_at_a_time(self) -> None:
        assert len(self._active()) <= 1

    @invariant()
    def states_go_forward_only(self) -> None:
        for run in self.runs:
            row = self._of(run)
            before = self.seen.get(run, "queued")
            assert RANK[row.state] >= RANK[before]
            assert before not in FINAL or row.state == before
            assert (row.state in FINAL) == (row.finished_at is not None) == (row.active is None)
            assert row.attempts <= TERMS.attempts
            self.seen[run] = row.state

    @invariant()
    def succeeded_is_registered_once(self) -> None:
        for run in self.runs:
            if self._of(run).state == "succeeded":
                assert len(self.registered[run]) == 1

    def teardown(self) -> None:
        """Whatever has happened: with one living worker everything ends, and what was cancelled at once."""
        if not hasattr(self, "moment"):
            return
        for run in self.runs:
            self.moment += timedelta(days=1)
            wanted = self._of(run).cancel_requested_at is None
            with self.database.session() as session:
                row = repository.get(session, run, self.moment)
                assert row is not None
                assert wanted or row.state in FINAL
        self.works_on = {"one": None, "other": None}
        for _ in range(2):
            self.claim("one")
            self.end("one", "stored")
        assert self._active() == []
        self.states_go_forward_only()
        self.succeeded_is_registered_once()

    def _beat(self, worker: str, run: str) -> repository.Instruction:
        with self.database.session() as session:
            return repository.heartbeat(
                session, run, worker, self.moment, TERMS, RunProgress("fitting", 1, 2)
            )

    def _finish(self, worker: str, run: str, state: str) -> bool:
        with self.database.session() as session:
            return repository.finish(session, run, worker, state, self.moment)

    def _of(self, run: str) -> TrainingRunRow:
        with self.database.reading() as session:
            return session.get_one(TrainingRunRow, run)

    def _active(self) -> list[str]:
        with self.database.reading() as session:
            return list(session.scalars(select(TrainingRunRow.id).where(TrainingRunRow.active == 1)))


@pytest.mark.system
def test_training_runs_keep_their_invariants(database: Database) -> None:
    class OnThisDatabase(TrainingRuns):
        pass

    OnThisDatabase.database = database
    run_state_machine_as_test(
        OnThisDatabase,
        settings=settings(max_examples=25, stateful_step_count=25, derandomize=True, database=None),
    )
