"""Shadow mode: after the answer, never in its way, and what differs is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

import rca
from rca.diagnosis.result import Diagnosis
from rca.errors import BundleError
from rca_api.diagnoses import work
from rca_api.diagnoses.history import History
from rca_api.diagnoses.history_cache import HistoryCache
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.models.current import CurrentModels
from rca_api.models.shadow import Shadow, _drawn
from rca_api.models.shadow_comparison import ShadowRow, summary
from rca_api.shell.app import create_app
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from rca_api.shell.store.base import new_id
from rca_api.shell.store.database import Database
from tests.waiting import until

pytestmark = pytest.mark.system

DIGEST = "d" * 64
#: Gives the challenger's answer.
Ask = Callable[[BundleRef], Awaitable[Diagnosis]]
CHALLENGER = BundleRef(Path("challenger"), "b" * 64, 7)


@pytest.fixture(scope="module")
def healthy(make_window: Any) -> Diagnosis:
    return rca.diagnose(make_window())


@pytest.fixture(scope="module")
def slow(make_window: Any) -> Diagnosis:
    found = rca.diagnose(make_window(late={5: 0.1}, steps=slice(12, 30)))
    assert found.failure_mode == "fail_slow"
    return found


class FakePool:
    """The part of a pool that a comparison uses."""

    def __init__(self) -> None:
        self.is_idle = True
        self.ask: Ask

    async def run(
        self, task: Any, ref: BundleRef, digest: str, remembered: History, *, deadline: Any
    ) -> Diagnosis:
        assert (task, ref, digest, remembered) == (work.try_bundle, CHALLENGER, DIGEST, History())
        return await self.ask(ref)


class Compared:
    """A shadow, and the rows of diagnoses it may refer to."""

    def __init__(self, database: Database, share: float = 1.0) -> None:
        self.database = database
        self.metrics = Metrics()
        self.current = CurrentModels(BundleRef(None))
        self.current.challenge(CHALLENGER)
        self.pool = FakePool()
        pool: Any = self.pool
        memory = HistoryCache(database, Settings())
        self.shadow = Shadow(share, 60.0, self.current, memory, pool, database, self.metrics)

    def diagnosis(self) -> str:
        row = DiagnosisRow(id=new_id(), job_id="job", window_start=0.0, window_end=1.0)
        with self.database.session() as session:
            session.add(row)
        return row.id

    def answered(self, champion: Diagnosis, ask: Ask, diagnosis_id: str = "") -> None:
        self.pool.ask = ask
        name = diagnosis_id or self.diagnosis()
        self.shadow.answered(name, champion.to_json().encode(), DIGEST)

    def count(self, outcome: str) -> float:
        labels = {"outcome": outcome}
        return self.metrics.registry.get_sample_value("rca_shadow_comparisons_total", labels) or 0.0

    def rows(self) -> list[ShadowRow]:
        with self.database.reading() as session:
            return list(session.scalars(select(ShadowRow)))

    def summary(self, version: int) -> dict[str, Any]:
        with self.database.reading() as session:
            return summary(session, version)


@pytest.fixture
def compared(database: Database) -> Iterator[Compared]:
    return Compared(database)


async def settle(shadow: Shadow) -> None:
    if shadow._running is not None:
        await shadow._running


def answer(compared: Compared, champion: Diagnosis, challenger: Diagnosis, diagnosis_id: str = "") -> None:
    async def ask(ref: BundleRef) -> Diagnosis:
        return challenger

    async def once() -> None:
        compared.answered(champion, ask, diagnosis_id)
        await settle(compared.shadow)

    asyncio.run(once())


def test_agreement_and_disagreement_are_counted_and_shown(
    compared: Compared, healthy: Diagnosis, slow: Diagnosis
) -> None:
    answer(compared, slow, slow)
    answer(compared, healthy, slow)
    assert (compared.count("agreed"), compared.count("disagreed")) == (1, 1)
    told = compared.summary(7)
    assert [told[name] for name in ("windows", "mode_agrees", "ranks_agree")] == [2, 1, 1]
    (differs,) = told["disagreements"]
    assert (differs["champion"]["failure_mode"], differs["challenger"]["ranks"]) == ("healthy", [5])
    other = compared.summary(8)
    assert (other["windows"], other["mode_agrees"], other["disagreements"]) == (0, 0, [])


def test_a_diagnosis_is_compared_once_and_must_be_there(compared: Compared, healthy: Diagnosis) -> None:
    known = compared.diagnosis()
    answer(compared, healthy, healthy, known)
    answer(compared, healthy, healthy, known)
    answer(compared, healthy, healthy, new_id())
    assert [row.diagnosis_id for row in compared.rows()] == [known]


def test_the_answer_is_not_waited_for_and_busy_windows_are_let_go(
    compared: Compared, healthy: Diagnosis
) -> None:
    asked = []

    async def run() -> None:
        released = asyncio.Event()

        async def ask(ref: BundleRef) -> Diagnosis:
            asked.append(ref)
            await released.wait()
            return healthy

        compared.pool.is_idle = False
        compared.answered(healthy, ask)
        compared.pool.is_idle = True
        assert compared.shadow._running is None
        for _ in range(3):
            compared.answered(healthy, ask)
            await asyncio.sleep(0)
        released.set()
        await settle(compared.shadow)

    asyncio.run(run())
    assert (len(asked), compared.count("dropped"), compared.count("agreed")) == (1, 3, 1)


@pytest.mark.parametrize("failure", [BundleError("damaged"), ZeroDivisionError("no rank")])
def test_a_challenger_that_fails_is_counted_and_nothing_else(
    compared: Compared, healthy: Diagnosis, failure: Exception
) -> None:
    async def ask(ref: BundleRef) -> Diagnosis:
        raise failure

    async def once() -> None:
        compared.answered(healthy, ask)
        await settle(compared.shadow)

    asyncio.run(once())
    assert (compared.count("failed"), compared.rows()) == (1, [])


def test_an_answer_of_a_later_version_is_not_compared(
    compared: Compared, healthy: Diagnosis, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(ref: BundleRef) -> Diagnosis:
        return healthy

    async def once() -> None:
        compared.pool.ask = ask
        compared.shadow.answered(compared.diagnosis(), b'{"format": 3}', DIGEST)
        await settle(compared.shadow)

    asyncio.run(once())
    assert (compared.count("failed"), compared.rows()) == (1, [])
    assert "Traceback" not in caplog.text


def test_without_challenger_nothing_is_compared(compared: Compared, healthy: Diagnosis) -> None:
    compared.current.challenge(None)
    answer(compared, healthy, healthy)
    assert compared.rows() == []


def test_what_is_being_compared_does_not_hold_up_the_end(compared: Compared, healthy: Diagnosis) -> None:
    async def run() -> None:
        async def ask(ref: BundleRef) -> Diagnosis:
            await asyncio.sleep(600)
            raise AssertionError("never reached")

        compared.answered(healthy, ask)
        await asyncio.sleep(0)
        await asyncio.wait_for(compared.shadow.close(), 5)

    asyncio.run(run())


def test_a_share_of_the_windows_is_drawn() -> None:
    ids = [new_id() for _ in range(4000)]
    assert 0.2 < sum(_drawn(each, 0.25) for each in ids) / len(ids) < 0.3
    assert not any(_drawn(each, 0.0) for each in ids)
    assert all(_drawn(each, 1.0) for each in ids)


def test_one_process_is_enough_and_every_way_to_ask_is_compared(tmp_path: Path, make_window: Any) -> None:
    """At once, in a batch and later: with a pool of one process, that is free when nobody else calls."""
    settings = Settings(data_dir=tmp_path, processes=1, shadow_share=1.0, follow_seconds=0)
    app = create_app(settings)
    state: State = app.state.parts
    shipped = Path(str(files("rca_models"))) / "baseline"
    state.models.challenge(BundleRef(shipped, version=7))

    def compared() -> float:
        found = state.metrics.registry.get_sample_value("rca_shadow_comparisons_total", {"outcome": "agreed"})
        return found or 0.0

    body = {"Content-Type": "application/json"}
    with TestClient(app) as client:
        for n, (place, content, headers, status) in enumerate(
            [
                ("/v1/diagnoses", make_window().to_json(), {}, 200),
                ("/v1/diagnoses", make_window().to_json(), {"Prefer": "respond-async"}, 202),
                ("/v1/diagnoses/batch", b'{"windows": [' + make_window().to_json() + b"]}", {}, 200),
            ],
            1,
        ):
            answer = client.post(place, content=content, headers=body | headers)
            assert answer.status_code == status
            until(lambda n=n: compared() >= n)  # type: ignore[misc]
