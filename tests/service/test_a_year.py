"""A service in steady use, on a clock of its own: rows and windows stop growing once the oldest ones go."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from shifted_windows import shifted
from sqlalchemy import func, select
from starlette.testclient import TestClient

import rca
from rca.diagnosis.result import Diagnosis
from rca.window.encodings import arrow
from rca.window.fragments import between_steps
from rca.window.window import Window
from rca_api.diagnoses import work
from rca_api.diagnoses.tables import WindowRow
from rca_api.incidents.sweep import Sweeper
from rca_api.models.shadow_comparison import comparison
from rca_api.shell.app import create_app
from rca_api.shell.lifespan import tidying
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.processes.pool import ComputePool
from rca_api.shell.processes.process import Context
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from rca_api.shell.store import base
from rca_api.shell.store.base import new_id
from rca_api.shell.store.tables import Base
from rca_api.shell.store.waits import Listening
from rca_api.webhooks.delivery import AttemptOutcome, Sender

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
#: Tables whose rows an operator adds one by one.
BY_HAND = {"webhooks", "api_keys"}


class Clock(datetime):
    """The time of the service; `at` is set by the test."""

    at = BEGIN

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        """The simulated time."""
        return cls.at


class Answers:
    """Takes the place of the model: jobs named `sick-...` are slow."""

    def __init__(self, windows: Path) -> None:
        self.healthy, self.sick = (
            rca.diagnose(rca.read_window(windows / name)) for name in ("healthy", "cpu-contention-node")
        )

    def prepare(self, _: object) -> None:
        """The answers are there."""

    def diagnose(self, _: object, window: Window, *__: object, **___: object) -> Diagnosis:
        found = self.sick if window.job.job_id.startswith("sick") else self.healthy
        # The fault goes on: an end would be in the time of the real window.
        changes = {"diagnosis_id": new_id(), "job_id": window.job.job_id, "since": None, "until": None}
        return found.model_copy(update=changes)

    def usual_answers(self, _: object) -> None:
        """No answers to compare with."""


@pytest.fixture
def serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_windows: Path
) -> Callable[..., tuple[TestClient, Context]]:
    """A service that works in this process, at the time of `Clock`."""

    def start(**settings: Any) -> tuple[TestClient, Context]:
        app = create_app(
            Settings(data_dir=tmp_path, auth="off", rate_limit="", log_level="error", **settings)
        )
        parts: State = app.state.parts
        parts.database.upgrade()
        context = Context(Answers(real_windows), parts.windows)  # type: ignore[arg-type]

        async def run(_: ComputePool, task: Any, *arguments: Any, deadline: object) -> Any:
            return task(context, *arguments)

        monkeypatch.setattr(ComputePool, "run", run)
        monkeypatch.setattr(base, "datetime", Clock)
        monkeypatch.setattr(Sender, "send", lambda _, sent, __: outcome(sent.url))
        return TestClient(app, base_url="http://127.0.0.1"), context

    return start


def outcome(url: str) -> AttemptOutcome:
    """The receiver `lost` never answers."""
    return AttemptOutcome(None, "no answer") if "lost" in url else AttemptOutcome(200, None)


class Life:
    """What users, jobs and the service itself do in a day."""

    def __init__(self, client: TestClient, context: Context, window: Window) -> None:
        self.client, self.context, self.window = client, context, window
        self.parts: State = client.app.state.parts  # type: ignore[attr-defined]
        self.sweeper = Sweeper(
            self.parts.database,
            self.parts.incidents,
            self.parts.settings.incident_silence_seconds,
            listening=Listening(lambda: Clock.at, lambda: Clock.at.timestamp()),
        )
        for name in ("good", "lost"):
            self.post("/v1/webhooks", {"url": f"https://{name}.example.org/"})

    def post(self, path: str, document: Any) -> Any:
        answer = self.client.post(path, json=document)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def send(self, path: str, job: str, window: Window, **headers: str) -> Any:
        """Post a window of a job, as of now."""
        moved = shifted(window, Clock.at.timestamp() - window.job.end)
        body = replace(moved, job=moved.job.model_copy(update={"job_id": job})).to_arrow()
        answer = self.client.post(path, content=body, headers={"Content-Type": arrow.CONTENT_TYPE, **headers})
        assert answer.status_code < 300, answer.text
        return answer.json()

    def day(self, number: int) -> None:
        """Eight diagnoses, a stream, an incident with an action, feedback, shards, a training run."""
        for hour in range(4):
            for job in (f"sick-{number}", f"fine-{number}"):
                found = self.send("/v1/diagnoses", job, self.window, **{"Idempotency-Key": f"{job}-{hour}"})
                self._compare(found["diagnosis_id"])
            self.pass_time(hours=1)
        self.post(f"/v1/diagnoses/{found['diagnosis_id']}/feedback", {"verdict": "confirmed"})
        [incident] = self.client.get("/v1/incidents?state=open").json()["items"]
        self.post(f"/v1/incidents/{incident['id']}/actions", {"action": "other", "note": "drained"})
        self._stream(f"stream-{number}")
        data_set = {"name": f"set-{number}", "n_samples": 100, "shard_size": 10}
        self.post("/v1/data-shards", data_set)
        for worker in ("0", "1"):
            self.post(f"/v1/data-shards/set-{number}/leases", {"worker": worker})
        self.post(f"/v1/data-shards/set-{number}/releases", {"worker": "1"})
        run = self.post("/v1/training-runs", {"windows": 200})
        self.post(f"/v1/training-runs/{run['id']}/cancel", {})
        for _ in range(5):
            self.pass_time(hours=4)
        self.tidy()

    def _compare(self, diagnosis_id: str) -> None:
        """A challenger has diagnosed the window, too."""
        answers: Answers = self.context.bundles  # type: ignore[assignment]
        row = comparison(diagnosis_id, answers.sick, answers.sick, BundleRef(None, version=2))
        with self.parts.database.session() as session:
            session.add(row)

    def _stream(self, job: str) -> None:
        for first in range(0, 40, 10):
            part = between_steps(self.window, first, first + 9)
            self.send(f"/v1/jobs/{job}/telemetry", job, part)
            self.pass_time(hours=0.01)

    def pass_time(self, hours: float) -> None:
        """Let time pass; what runs in the background does its rounds."""
        Clock.at += timedelta(hours=hours)
        asyncio.run(self.parts.watcher.round())
        owner = new_id()
        for queued in self.parts.journal.claim(owner, 60.0, 10):
            answer = work.diagnose_stored(
                self.context,
                queued.window_digest,
                self.parts.models.champion,
                queued.diagnosis_id,
                self.parts.memory.current,
            )
            self.parts.journal.complete(owner, answer)
        while claimed := self.parts.webhook_dispatcher._claim(10):
            for each in claimed:
                self.parts.webhook_dispatcher._deliver(each)
        self.sweeper.sweep()

    def tidy(self) -> None:
        """What the service does each hour."""
        for each in tidying(self.parts):
            each.args[1]()  # type: ignore[attr-defined]

    def sizes(self) -> dict[str, int]:
        """Rows by table, and bytes of the stored windows."""
        with self.parts.database.reading() as session:
            found = {
                table.name: session.scalar(select(func.count()).select_from(table)) or 0
                for table in Base.metadata.sorted_tables
            }
            n_bytes = session.scalar(select(func.sum(WindowRow.n_bytes))) or 0
        return found | {"stored windows": len(list(self.parts.windows.digests())), "their bytes": n_bytes}


def lived(life: Life, days: int) -> Iterator[dict[str, int]]:
    for number in range(days):
        life.day(number)
        yield life.sizes()


@pytest.mark.system
@pytest.mark.parametrize(
    ("days", "kept"),
    [(12, 3.0), pytest.param(365, 60.0, marks=pytest.mark.long)],
    ids=["two weeks", "a year"],
)
def test_rows_and_windows_are_bounded_in_steady_use(
    serve: Callable[..., tuple[TestClient, Context]], make_window: Any, days: int, kept: float
) -> None:
    client, context = serve(
        diagnosis_days=kept,
        incident_days=kept,
        feedback_days=kept,
        training_run_days=kept,
        data_shard_days=kept / 2,
        window_days=kept / 2,
        webhook_keep_days=kept / 3,
        webhook_dead_days=kept / 2,
        webhook_attempts=2,
        incident_silence_seconds=4 * 3600.0,
    )
    seen: dict[str, list[int]] = defaultdict(list)
    for sizes in lived(Life(client, context, make_window(4, 40)), days):
        for name, size in sizes.items():
            seen[name].append(size)
    half, room = days // 2, 1.02  # Compressed windows differ by a few bytes.
    grown = {name for name, sizes in seen.items() if max(sizes[half:]) > room * max(sizes[:half])}
    assert grown == set()
    assert {name for name, sizes in seen.items() if not max(sizes)} <= BY_HAND
