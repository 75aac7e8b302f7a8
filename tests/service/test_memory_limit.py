"""A request that needs more memory than the limit is refused before any work, on every route for windows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from rca.errors import TooLarge
from rca.window.encodings import arrow
from rca.window.memory import WindowCounts
from rca.window.window import Window
from rca_api.diagnoses import work
from rca_api.diagnoses.history import EarlierWindows, HealthyWindow, History
from rca_api.shell.app import create_app
from rca_api.shell.processes.bundles import LoadedBundles, small_window
from rca_api.shell.processes.process import Context
from rca_api.shell.requests.decoding import Limits
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from rca_api.shell.store.canonical import CanonicalPieces
from rca_api.shell.store.window_store import WindowStore
from rca_api.what_if.work import WhatIfOptions, answered, refuse_long_replays
from tests.conftest import MakeWindow
from tests.for_each import for_each
from tests.shifted_windows import shifted

pytestmark = pytest.mark.system

LIMIT = 48 << 20
JSON = {"Content-Type": "application/json"}
ARROW = {"Content-Type": arrow.CONTENT_TYPE}
ROUTES = ["/v1/diagnoses", "/v1/what-if"]


def large(world: int = 16_000) -> Window:
    """Four of many ranks report a step."""
    small = small_window(4, 1)
    job = small.job.model_copy(update={"world_size": world, "window_id": f"{world} ranks"})
    return Window.from_tables(job, small.steps)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("data")
    settings = Settings(processes=1, data_dir=folder, max_window_memory_bytes=LIMIT)
    with TestClient(create_app(settings), raise_server_exceptions=False) as held:
        yield held


def stored_windows(client: TestClient) -> list[str]:
    assert isinstance(client.app, FastAPI)
    parts: State = client.app.state.parts
    return list(parts.windows.digests())


@for_each("route", ROUTES)
@for_each("prefer", ["", "respond-async"])
@for_each("encoding", ["JSON", "Arrow"])
def test_beyond_the_limit_a_window_gets_413_and_is_not_stored(
    client: TestClient, route: str, prefer: str, encoding: str
) -> None:
    body, headers = (large().to_json(), JSON) if encoding == "JSON" else (large().to_arrow(), ARROW)
    found = client.post(route, content=body, headers=headers | ({"Prefer": prefer} if prefer else {}))
    problem = found.json()
    assert (found.status_code, problem["code"]) == (413, "too-large")
    assert problem["detail"].startswith("16,000 ranks, 1 steps, 0 samples, 0 events need about ")
    assert "RCA_MAX_WINDOW_MEMORY_BYTES" in problem["hint"]
    assert stored_windows(client) == []


@pytest.mark.parametrize("route", ROUTES)
def test_a_world_of_a_million_ranks_in_few_bytes_is_refused_at_once(client: TestClient, route: str) -> None:
    job = {"job_id": "j", "world_size": 1_000_000, "start": 0.0, "end": 10.0}
    steps = {"rank": [0, 1, 2, 3], "step": [1] * 4, "start_time": [1.0] * 4, "step_seconds": [0.2] * 4}
    began = time.perf_counter()
    found = client.post(route, content=orjson.dumps({"job": job, "steps": steps}), headers=JSON)
    assert time.perf_counter() - began < 2.0
    assert (found.status_code, found.json()["column"]) == (422, "world_size")


def test_of_a_batch_only_the_large_window_is_refused(client: TestClient) -> None:
    before = len(stored_windows(client))
    body = b'{"windows": [' + large().to_json() + b"," + small_window().to_json() + b"]}"
    refused, found = client.post("/v1/diagnoses/batch", content=body, headers=JSON).json()["items"]
    assert (refused["status"], refused["problem"]["code"]) == (413, "too-large")
    assert (found["status"], found["diagnosis"]["failure_mode"]) == (200, "healthy")
    assert len(stored_windows(client)) == before + 1


def test_a_window_within_the_limit_is_answered(client: TestClient) -> None:
    for route in ROUTES:
        assert client.post(route, content=small_window().to_json(), headers=JSON).status_code == 200


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(LoadedBundles(), WindowStore(str(tmp_path)))


def diagnosed(context: Context, window: Window, earlier: Window) -> dict[str, Any]:
    """The stored answer about a window whose job has an earlier one."""
    known = HealthyWindow(context.windows.put(earlier).digest, earlier.job.start, earlier.job.end)
    history = History(windows=EarlierWindows({window.job.job_id: (known,)}))
    digest = context.windows.put(window).digest
    found = work.diagnose_stored(context, digest, work.BundleRef(None), "id", history)
    document: dict[str, Any] = orjson.loads(found.document)
    return document


@pytest.mark.parametrize(
    ("room", "compared"), [(-100_000, False), (100_000, True)], ids=["too little for both", "enough for both"]
)
def test_an_earlier_window_is_compared_only_if_both_are_within_the_limit(
    context: Context, make_window: MakeWindow, room: int, compared: bool
) -> None:
    window = make_window(8, 40, transfer=0.05)
    earlier = shifted(make_window(8, 40, transfer=0.01), -3600.0)
    counts = WindowCounts.of(window)
    context.max_memory_bytes = counts.after(WindowCounts.of(earlier)).memory() + room
    assert (diagnosed(context, window, earlier)["earlier"] is not None) == compared


def test_an_earlier_window_that_is_too_large_is_not_even_unpacked(
    context: Context, make_window: MakeWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = make_window(8, 40, transfer=0.05)
    earlier = shifted(make_window(64, 200), -3600.0)
    context.max_memory_bytes = WindowCounts.of(window).memory() + 10_000
    read = []
    from_arrow = Window.from_arrow

    def counted(body: bytes, *arguments: Any, **options: Any) -> Window:
        read.append(len(body))
        return from_arrow(body, *arguments, **options)

    monkeypatch.setattr(Window, "from_arrow", counted)
    assert diagnosed(context, window, earlier)["earlier"] is None
    assert len(read) == 1


def test_a_stored_window_is_read_within_a_limit(context: Context, make_window: MakeWindow) -> None:
    window = make_window(8, 40)
    digest = context.windows.put(window).digest
    size = sum(map(len, CanonicalPieces(window)))
    assert len(context.windows.read(digest, size)) == size
    with pytest.raises(TooLarge):
        context.windows.read(digest, size - 1)


def test_a_window_is_stored_without_a_copy_of_its_numbers(context: Context) -> None:
    n = 400_000
    steps = pa.table(
        {
            "rank": pa.array(np.arange(n) % 64, pa.int32()),
            "step": pa.array(np.arange(n) // 64),
            "start_time": 1.7e9 + np.arange(n) * 1e-4,
            "step_seconds": np.full(n, 1e-4),
        }
    )
    values = {"time": 1.7e9 + np.arange(n) * 1e-4, "value": np.ones(n)}
    names = pa.array(["x"]).take(pa.array(np.zeros(n, dtype=int)))
    job: dict[str, object] = {"job_id": "j", "world_size": 64, "start": 1.7e9, "end": 1.7e9 + 60}
    window = Window.from_tables(job, steps, pa.table(values | {"name": names}))
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in CanonicalPieces(window)]
    # Only codes of texts are written anew.
    assert max(held) < 0.3 * max(window.steps.nbytes, window.metrics.nbytes)


def replayed(window: Window, limit: int | None, *, worker_steps: bool = False) -> bytes:
    wanted, limits = WhatIfOptions("full", True, worker_steps, {}), Limits(1 << 30, 1 << 30, 1 << 30)
    return answered(window.to_arrow(), arrow.CONTENT_TYPE, wanted, limits, limit)


def test_numbers_of_every_worker_and_step_count() -> None:
    window = small_window(200, 200)
    limit = WindowCounts.of(window).memory("replay") + 1_000
    assert replayed(window, limit)
    with pytest.raises(TooLarge):
        replayed(window, limit, worker_steps=True)


def operations(n_steps: int, microbatches: int) -> Window:
    step, kind, batch = (axis.ravel() for axis in np.indices((n_steps, 2, microbatches)))
    kinds = pa.DictionaryArray.from_arrays(
        kind.astype(np.int32), pa.array(["forward-compute", "backward-compute"])
    )
    zero, none = np.zeros_like(step), np.full(step.size, -1)
    table = {
        "rank": zero,
        "dp_rank": zero,
        "stage": zero,
        "step": step,
        "optype": kinds,
        "seq_id": batch,
        "mc": zero,
        "gmc": none,
        "mb_id": none,
        "start_ts": 1.7e9 + step * 10.0 + 0.01 * (2 * batch + kind),
        "duration": np.full(step.size, 0.01),
    }
    window = small_window(1, 2)
    return Window.from_tables(window.job, window.steps, ops=pa.table(table))


@pytest.mark.parametrize(
    ("n_steps", "microbatches", "what"),
    [(4_000, 4, "32,000 operations need"), (1, 10_000, "dependencies of 20,000 operations need")],
    ids=["many rows", "a large graph"],
)
def test_operation_traces_have_the_same_limit(n_steps: int, microbatches: int, what: str) -> None:
    with pytest.raises(TooLarge, match=what):
        replayed(operations(n_steps, microbatches), 44 << 20)


@pytest.mark.parametrize(("stages", "refused"), [(1, False), (16, False), (4_096, True)])
def test_every_pipeline_stage_replays_the_job(stages: int, refused: bool) -> None:
    small = small_window(4, 30)
    sizes = {"data": 4_096 // stages, "pipeline": stages}
    job = small.job.model_dump(exclude_none=True) | {"world_size": 4_096, "parallelism": sizes}
    window = Window.from_tables(job, small.steps)
    refuse: Callable[[], None] = lambda: refuse_long_replays(window, 0)  # noqa: E731
    if refused:
        with pytest.raises(TooLarge, match="0 scenarios and 4,096 stages of 122,880 rows"):
            refuse()
    else:
        refuse()
