"""`POST /v1/diagnoses`: encodings in, media types out."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from bad_windows import WHOLE, window_document
from starlette.testclient import TestClient

import rca
from rca.window.encodings import arrow
from tests.for_each import for_each

pytestmark = pytest.mark.system

WINDOWS = sorted(path.parent for path in Path("data/windows").glob("*/window.json"))
JSON = {"Content-Type": "application/json"}
VOLATILE = ("diagnosis_id", "created_at")


def lasting(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """Everything but what is new with each answer."""
    return {key: value for key, value in diagnosis.items() if key not in VOLATILE}


@for_each("path", WINDOWS, ids=lambda path: path.name)
def test_real_windows_get_the_answer_the_library_gives(client: TestClient, path: Path) -> None:
    window = rca.read_window(path)
    answer = client.post("/v1/diagnoses", content=window.to_json(), headers=JSON)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    expected = orjson.loads(orjson.dumps(rca.diagnose(window).to_dict()))
    # JSON regroups metric samples by series, so sums may differ in the last digits.
    assert_close(lasting(answer.json()), lasting(expected))


def assert_close(one: Any, other: Any, where: str = "") -> None:
    if isinstance(other, dict):
        assert one.keys() == other.keys(), where
        for key in other:
            assert_close(one[key], other[key], f"{where}.{key}")
    elif isinstance(other, list):
        assert len(one) == len(other), where
        for place, pair in enumerate(zip(one, other, strict=True)):
            assert_close(*pair, f"{where}[{place}]")
    elif isinstance(other, float):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-9), where
    else:
        assert one == other, where


@pytest.mark.parametrize("encoding", ["json", "arrow"])
def test_records_of_collectives_without_steps_are_diagnosed(client: TestClient, encoding: str) -> None:
    rows = [(rank, "finished", 48) if rank == 3 else (rank, "waiting", 50) for rank in range(4)]
    columns = zip(*rows, strict=True)
    table = pa.table(dict(zip(("rank", "state", "sequence"), map(list, columns), strict=True)))
    table = table.append_column("group", pa.array(["world"] * 4))
    table = table.append_column("waiting_since", pa.array([1e9 + 5, 1e9 + 5, 1e9 + 5, None]))
    job = {"job_id": "stuck", "world_size": 4, "start": 1e9, "end": 1e9 + 600}
    window = rca.Window.from_tables(job, collectives=table)
    body, kind = (
        (window.to_json(), "application/json")
        if encoding == "json"
        else (window.to_arrow(), arrow.CONTENT_TYPE)
    )
    answer = client.post("/v1/diagnoses", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 200
    assert answer.json()["failure_mode"] == "fail_stop"
    assert [each["ranks"] for each in answer.json()["stragglers"]] == [[3]]
    kept = client.get(answer.headers["Location"])
    assert kept.json() == answer.json()
    assert client.post("/v1/what-if", content=body, headers={"Content-Type": kind}).status_code == 422


def test_arrow_gets_the_same_answer_as_json(client: TestClient) -> None:
    window = rca.read_window(WHOLE)
    by_json = client.post("/v1/diagnoses", content=WHOLE, headers=JSON)
    by_arrow = client.post(
        "/v1/diagnoses", content=window.to_arrow(), headers={"Content-Type": arrow.CONTENT_TYPE}
    )
    assert by_arrow.status_code == 200
    assert lasting(by_arrow.json()) == lasting(by_json.json())


@for_each(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("GZIP", lambda body: gzip.compress(body[:100]) + gzip.compress(body[100:])),
        ("zstd", lambda body: pa.compress(body, "zstd", asbytes=True)),
        ("identity", bytes),
    ],
)
def test_compressed_bodies_are_unpacked(client: TestClient, encoding: str, pack: Any) -> None:
    answer = client.post("/v1/diagnoses", content=pack(WHOLE), headers={**JSON, "Content-Encoding": encoding})
    assert answer.status_code == 200
    assert answer.json()["job_id"] == "job-1"


@for_each(
    ("accept", "media_type"),
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("text/markdown", "text/markdown"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html"),
        ("application/json;q=0.5, text/markdown;q=0.9", "text/markdown"),
        ("text/*", "text/markdown"),
        ("application/json;q=0, */*", "text/markdown"),
    ],
)
def test_the_answer_comes_in_the_accepted_type(
    client: TestClient, accept: str | None, media_type: str
) -> None:
    headers = JSON if accept is None else {**JSON, "Accept": accept}
    answer = client.post("/v1/diagnoses", content=WHOLE, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == media_type


def test_markdown_begins_with_the_verdict(client: TestClient) -> None:
    answer = client.post("/v1/diagnoses", content=WHOLE, headers={**JSON, "Accept": "text/markdown"})
    assert answer.text.startswith("# ")
    assert "job-1" in answer.text


@pytest.mark.parametrize(("n_ranks", "n_steps"), [(1, 6), (4, 1), (1, 1), (2, 2)])
def test_the_smallest_windows_are_diagnosed(client: TestClient, n_ranks: int, n_steps: int) -> None:
    body = orjson.dumps(window_document(n_ranks, n_steps))
    answer = client.post("/v1/diagnoses", content=body, headers=JSON)
    assert answer.status_code == 200
    assert answer.json()["stragglers"] == []


def test_no_answer_holds_a_bare_nan(client: TestClient) -> None:
    document = window_document()
    document["steps"]["forward_seconds"] = [None] * len(document["steps"]["rank"])
    answer = client.post("/v1/diagnoses", content=orjson.dumps(document), headers=JSON)
    assert answer.status_code == 200
    orjson.loads(answer.content)  # strict: refuses NaN and Infinity


def test_the_documented_example_is_a_valid_window(client: TestClient) -> None:
    from rca_api.diagnoses.schemas import EXAMPLE

    answer = client.post("/v1/diagnoses", content=orjson.dumps(EXAMPLE), headers=JSON)
    assert answer.status_code == 200
