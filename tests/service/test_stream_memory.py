"""Looks at large jobs: as many of the newest steps as memory allows, and a reason where it allows too few."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from incident_service import state_of
from starlette.testclient import TestClient
from streaming import fragments, send, step_rows

from rca.errors import TooLarge
from rca.features.step_time_change import StepTimeChange
from rca.window.memory import WindowCounts
from rca.window.window import Window
from rca_api.jobs import segments, watcher, work
from rca_api.jobs.tables import StreamedJobRow
from rca_api.jobs.work import WantedLook
from rca_api.shell.app import create_app
from rca_api.shell.processes.bundles import LoadedBundles
from rca_api.shell.processes.held_segments import HeldSegments
from rca_api.shell.processes.process import Context
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.window_store import WindowStore
from tests.waiting import until

pytestmark = pytest.mark.system

N_RANKS = 64


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(LoadedBundles(), WindowStore(str(tmp_path)))


def stored(context: Context, n_steps: int, slow_from: int | None = None, every: int = 20) -> list[str]:
    """Segments of a job, each with some steps of all ranks."""
    rows = step_rows(n_steps, slow_from=slow_from, n_ranks=N_RANKS, start=time.time() - 60.0)
    digests = []
    for first in range(0, n_steps, every):
        chosen = (rows["step"] >= first) & (rows["step"] < first + every)
        table = pa.table({name: values[chosen] for name, values in rows.items()})
        begin = table["start_time"].to_numpy()
        job = {"job_id": "j", "world_size": N_RANKS, "start": begin.min(), "end": begin.max() + 1.0}
        digests.append(context.windows.put(Window.from_tables(job, table, scope="fragment")).digest)
    return digests


def test_a_window_has_as_many_of_the_newest_steps_as_memory_allows(context: Context) -> None:
    digests = stored(context, 200, slow_from=190)
    whole = work.look(context, digests, WantedLook(None, None, 64))
    assert whole.window is not None
    context.max_memory_bytes = 18 << 20
    found = work.look(context, digests, WantedLook(None, None, 64))
    assert found.window is not None
    assert (found.change, found.last_step) == (whole.change, whole.last_step)
    window = context.windows.get(found.window.digest)
    number = np.unique(window.steps["step"].to_numpy())
    assert segments.MIN_STEPS_DIAGNOSED <= number.size < 100
    assert np.array_equal(number, np.arange(200 - number.size, 200))
    assert WindowCounts.of(window).memory() <= context.max_memory_bytes


def test_a_look_reads_only_the_newest_segments(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = stored(context, 1000)
    read = []
    whole = context.windows.read
    monkeypatch.setattr(
        context.windows, "read", lambda digest, *rest: read.append(digest) or whole(digest, *rest)
    )
    work.look(context, digests, WantedLook(None, None, None))
    steps = segments.MAX_STEPS_LOOKED_AT + segments.MAX_STEPS_BEHIND
    assert set(read) == set(digests[steps // -20 :])


def test_a_short_segment_is_read_once_and_a_long_one_each_time(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = [*stored(context, 200, every=100), *stored(context, 210)[-1:]]
    read = []
    whole = context.windows.read
    monkeypatch.setattr(
        context.windows, "read", lambda digest, *rest: read.append(digest) or whole(digest, *rest)
    )
    monkeypatch.setattr(segments, "MAX_HELD_BYTES", 50_000)
    for _ in range(2):
        work.look(context, digests, WantedLook(None, None, None))
    assert sorted(read) == sorted([*digests, *digests[:2]])


def test_the_oldest_segments_leave_a_process_first(context: Context) -> None:
    digests = stored(context, 4, every=1)
    context.segments = HeldSegments(most=2)
    segments.gathered(context, digests)
    assert [context.segments.get(digest) is not None for digest in digests] == [True, True, False, False]


def test_telemetry_leaves_a_process_that_does_nothing_once_nobody_looks_at_it(context: Context) -> None:
    """It may be deleted: then no look asks for it again."""
    digests = stored(context, 4, every=1)
    context.segments = HeldSegments(unused_seconds=0.2)
    segments.gathered(context, digests)
    assert len(context.segments) == 4
    until(lambda: not len(context.segments))


def test_telemetry_that_is_looked_at_stays_in_the_process(context: Context) -> None:
    digests = stored(context, 2, every=1)
    context.segments = held = HeldSegments(unused_seconds=0.2)
    segments.gathered(context, digests)
    until(lambda: held.get(digests[0]) is not None and len(held) == 1)


def test_too_few_steps_are_refused(context: Context) -> None:
    digests = stored(context, 100)
    context.max_memory_bytes = 17 << 20
    with pytest.raises(TooLarge, match="64 ranks need about"):
        work.look(context, digests, WantedLook(None, None, 64))


def test_a_merge_takes_as_many_segments_as_memory_allows(context: Context) -> None:
    digests = stored(context, 100, every=5)
    size = segments.COPIES * context.windows.get(digests[0], scope="stored").steps.nbytes
    context.max_memory_bytes = int(3.5 * size)
    merged, taken = work.merge(context, digests)
    assert taken == digests[:3]
    assert (merged.first_step, merged.last_step) == (0, 14)


def test_a_fragment_of_few_ranks_may_have_many_steps() -> None:
    step, rank = (axis.ravel() for axis in np.indices((100, 8)))
    table = pa.table(
        {"rank": rank, "step": step, "start_time": 1e9 + step, "step_seconds": np.ones(step.size)}
    )
    job = {"job_id": "j", "world_size": 65_536, "start": 1e9, "end": 1e9 + 100.0}
    assert Window.from_tables(job, table, scope="fragment").steps.num_rows == 800


@pytest.fixture
def small_service(tmp_path: Path) -> Iterator[TestClient]:
    settings = Settings(processes=1, data_dir=tmp_path, watch_seconds=1e-6, max_window_memory_bytes=16 << 20)
    with TestClient(create_app(settings)) as client:
        yield client


def test_a_job_that_is_too_large_says_so_and_is_not_looked_at_for_ever(
    small_service: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    state, portal = state_of(small_service), small_service.portal
    assert portal is not None
    for content in fragments("large", step_rows(90, start=time.time() - 20.0), every=45):
        send(small_service, "large", content)
    mine = watcher.Watcher(
        state.database, state.pool, state.journal, state.dispatcher, state.settings, state.listening
    )
    deadline = time.monotonic() + 60
    pending = True
    while pending:
        assert time.monotonic() < deadline
        portal.call(mine.round)
        with state.database.reading() as session:
            pending = session.get_one(StreamedJobRow, "large").pending
    [remark] = small_service.get("/v1/jobs/large/telemetry").json()["remarks"]
    assert remark.startswith("4 ranks need about 17 MiB of memory; the limit is 16 MiB: send fewer")
    logged = [record for record in caplog.records if remark in str(record.msg)]
    assert len(logged) == 1


def test_a_change_of_an_earlier_attempt_delays_no_diagnosis() -> None:
    change = StepTimeChange(40)
    assert work.is_due(change, 60, WantedLook(changed_step=500, next_step=520, first_step=None))
    assert not work.is_due(change, 60, WantedLook(changed_step=40, next_step=70, first_step=None))
