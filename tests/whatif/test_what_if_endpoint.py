"""POST /v1/what-if: windows with phases, windows with operations, bare traces."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient
from synthetic_jobs import execute, make_job

pytestmark = pytest.mark.system

WINDOW = {
    "job": {"format": 1, "job_id": "job", "world_size": 2, "start": 1.7e9, "end": 1.7e9 + 1},
    "steps": {
        "rank": [0, 1, 0, 1],
        "step": [0, 0, 1, 1],
        "start_time": [1.7e9, 1.7e9, 1.7e9 + 0.3, 1.7e9 + 0.3],
        "forward_seconds": [0.2, 0.1, 0.2, 0.1],
        "communication_wait_seconds": [0.0, 0.1, 0.0, 0.1],
        "step_seconds": [0.25, 0.25, 0.25, 0.25],
    },
}
PARQUET = {"Content-Type": "application/vnd.apache.parquet"}
EXECUTION = execute(make_job(pp=2, dp=2, microbatches=4))


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def test_a_window_of_phases_is_replayed(client: TestClient) -> None:
    answer = client.post("/v1/what-if", json=WINDOW)
    assert answer.status_code == 200, answer.text
    assert answer.json()["source"] == "phases"
    assert answer.json()["workers"][0]["rank"] == 0


def test_a_bare_trace_is_replayed(client: TestClient) -> None:
    query = {"dp_size": 2, "pp_size": 2, "per_step": "false"}
    answer = client.post("/v1/what-if", params=query, content=parquet(EXECUTION.table), headers=PARQUET)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["source"] == "operations"
    assert len(body["workers"]) == 4
    assert "steps" not in body


def test_the_published_layout(client: TestClient) -> None:
    query = {"form": "published"}
    answer = client.post("/v1/what-if", params=query, content=parquet(EXECUTION.table), headers=PARQUET)
    assert {"blocking_slowdown", "Mw", "Ms"} <= set(answer.json())


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid-input"),
        (b"PAR1 or not", "invalid-trace"),
        (parquet(EXECUTION.table.drop_columns(["optype"])), "invalid-trace"),
        (parquet(EXECUTION.table.slice(0, 0)), "invalid-trace"),
    ],
)
def test_invalid_traces_are_named_problems(client: TestClient, body: bytes, code: str) -> None:
    answer = client.post("/v1/what-if", content=body, headers=PARQUET)
    assert answer.json()["code"] == code


def test_sizes_with_a_window_are_refused(client: TestClient) -> None:
    answer = client.post("/v1/what-if", params={"dp_size": 2}, json=WINDOW)
    assert answer.json()["code"] == "invalid-input"


def test_a_trace_that_unpacks_too_far_is_refused(small_client: TestClient) -> None:
    large = pa.concat_tables([EXECUTION.table] * 20)
    answer = small_client.post("/v1/what-if", content=parquet(large), headers=PARQUET)
    assert answer.status_code == 413


def test_the_answer_has_the_documented_fields(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()["components"]["schemas"]["WhatIfAnswer"]
    body = client.post("/v1/what-if", content=parquet(EXECUTION.table), headers=PARQUET).json()
    assert set(body) == set(schema["properties"]) - {"scenarios"}, json.dumps(body)[:300]
