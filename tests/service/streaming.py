"""Jobs that send telemetry to a service of a test: rows, bodies, requests and looks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import orjson
from diagnosed import Clock
from incident_service import state_of
from starlette.testclient import TestClient

from rca_api.jobs import watcher
from rca_api.shell.store.base import now
from rca_api.shell.store.waits import Listening
from tests.waiting import until

JSON = {"Content-Type": "application/json"}
START = 1_795_000_000.0
N_RANKS = 4


def step_rows(
    n_steps: int,
    *,
    slow_from: int | None = None,
    seed: int = 0,
    n_ranks: int = N_RANKS,
    start: float = START,
) -> dict[str, np.ndarray]:
    """Steps of a data-parallel job whose rank 1 loads data slowly from a step on."""
    draw = np.random.default_rng(seed)
    loading = 0.005 + draw.normal(0.0, 2e-4, (n_steps, n_ranks)).clip(-0.004)
    if slow_from is not None:
        loading[slow_from:, 1] += 0.08
    compute = 0.1 + draw.normal(0.0, 1e-3, (n_steps, n_ranks))
    own = loading + compute
    seconds = own.max(axis=1) + 0.01
    begin = start + np.concatenate([[0.0], seconds.cumsum()[:-1]])
    wide = np.ones((1, n_ranks))
    return {
        "rank": np.tile(np.arange(n_ranks), n_steps),
        "step": np.repeat(np.arange(n_steps), n_ranks),
        "start_time": (begin[:, None] * wide).ravel(),
        "data_loading_seconds": loading.ravel(),
        "forward_seconds": (compute / 3).ravel(),
        "backward_seconds": (compute * 2 / 3).ravel(),
        "communication_wait_seconds": (own.max(axis=1, keepdims=True) - own).ravel(),
        "communication_transfer_seconds": np.full(own.size, 0.01),
        "step_seconds": (seconds[:, None] * wide).ravel(),
    }


def body(job_id: str, rows: dict[str, np.ndarray], chosen: np.ndarray, world_size: int = N_RANKS) -> bytes:
    steps = {name: values[chosen].tolist() for name, values in rows.items()}
    first, last = min(steps["start_time"]), max(steps["start_time"])
    job = {
        "job_id": job_id,
        "world_size": world_size,
        "ranks": [{"rank": rank, "node": f"node-{rank}"} for rank in range(world_size)],
        "start": first,
        "end": last + 0.2,
    }
    return orjson.dumps({"job": job, "steps": steps})


def fragments(job_id: str, rows: dict[str, np.ndarray], first: int = 0, every: int = 10) -> list[bytes]:
    """One body per rank and ten steps."""
    bodies = []
    n_ranks = int(rows["rank"].max()) + 1
    for begin in range(first, int(rows["step"].max()) + 1, every):
        for rank in range(n_ranks):
            chosen = (rows["rank"] == rank) & (rows["step"] >= begin) & (rows["step"] < begin + every)
            if chosen.any():
                bodies.append(body(job_id, rows, chosen, n_ranks))
    return bodies


def send(client: TestClient, job_id: str, content: bytes) -> dict[str, Any]:
    answer = client.post(f"/v1/jobs/{job_id}/telemetry", content=content, headers=JSON)
    assert answer.status_code == 200, answer.text
    receipt: dict[str, Any] = answer.json()
    return receipt


def watch(
    client: TestClient,
    job_id: str,
    later: timedelta = timedelta(0),
    *,
    listened: float = 1e6,
    silence: float = 3600.0,
) -> dict[str, Any]:
    """Look at the jobs after the service's own first look, and give the job.

    The look is `later` than now, by a service that has listened for so many seconds, and to which a job
    without steps for `silence` seconds is silent.
    """
    running = Clock()
    listening = Listening(running, lambda: running.ticks)
    running.go(listened)
    state = state_of(client)
    until(lambda: client.get(f"/v1/jobs/{job_id}/telemetry").json()["step_seconds"] is not None)
    mine = watcher.Watcher(
        state.database,
        state.pool,
        state.journal,
        state.dispatcher,
        state.settings.model_copy(update={"watch_seconds": 1e-6, "job_silence_seconds": silence}),
        listening,
        clock=lambda: now() + later,
    )
    portal = client.portal
    assert portal is not None
    portal.call(mine.round)
    found: dict[str, Any] = client.get(f"/v1/jobs/{job_id}/telemetry").json()
    return found


def diagnosed(client: TestClient, diagnosis_id: str) -> dict[str, Any]:
    found: dict[str, Any] = answered_later(client, f"/v1/diagnoses/{diagnosis_id}").json()
    return found


def answered_later(client: TestClient, location: str) -> Any:
    """The answer at an address that says 202 until it is there."""

    def answer() -> Any:
        got = client.get(location)
        if got.status_code != 202:
            return got
        assert int(got.headers["retry-after"]) > 0
        return None

    return until(answer)
