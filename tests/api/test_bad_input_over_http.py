"""What callers send wrong is refused with 4xx, the place and the expectation; never 5xx."""

from __future__ import annotations

import gzip
import time
import types
import zlib
from collections.abc import Iterator
from contextlib import nullcontext

import orjson
import pyarrow as pa
import pytest
from bad_windows import REFUSED, WHOLE, nested
from httpx2 import Response
from starlette.testclient import TestClient

import rca
from rca.errors import RcaError
from rca.window.encodings import arrow
from rca.window.window import Window
from rca_api.diagnoses import work
from rca_api.shell.requests.decoding import Body, Limits, Sent
from rca_api.shell.requests.problems import CATALOGUE, from_rca_error
from tests.for_each import for_each

pytestmark = pytest.mark.system

JSON = {"Content-Type": "application/json"}
GIGABYTE = 1_000_000_000


def problem(answer: Response, status: int, code: str) -> dict[str, object]:
    """Check that `answer` is a well-formed problem, and return it."""
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, object] = orjson.loads(answer.content)
    assert (answer.status_code, body["status"], body["code"]) == (status, status, code), body
    assert body["type"] == f"urn:straggler-rca:problem:{code}"
    assert body["title"] == CATALOGUE[code].title
    assert body["detail"]
    assert body["instance"] == "/v1/diagnoses"
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


@for_each("name", REFUSED)
def test_a_malformed_window_is_refused_with_its_place(client: TestClient, name: str) -> None:
    case = REFUSED[name]
    body = problem(client.post("/v1/diagnoses", content=case.body, headers=JSON), 422, "invalid-window")
    assert body["table"] == case.table
    if case.column is not None:
        assert body["column"] == case.column
    assert body["expected"]
    assert len(orjson.dumps(body)) < 8000


def test_the_first_offending_rows_are_shown(client: TestClient) -> None:
    case = REFUSED["negative duration"]
    body = problem(client.post("/v1/diagnoses", content=case.body, headers=JSON), 422, "invalid-window")
    assert body["n_rows"] == 1
    assert body["rows"] == [{"row": 3, "rank": 3, "step": 0, "forward_seconds": -0.01}]


def test_milliseconds_are_recognized(client: TestClient) -> None:
    case = REFUSED["clock in milliseconds"]
    body = problem(client.post("/v1/diagnoses", content=case.body, headers=JSON), 422, "invalid-window")
    assert "milliseconds" in str(body["hint"])


def test_an_empty_body_is_refused(client: TestClient) -> None:
    problem(client.post("/v1/diagnoses", content=b"", headers=JSON), 400, "invalid-input")


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", "garbage", ""])
def test_other_media_types_are_refused(client: TestClient, content_type: str) -> None:
    answer = client.post("/v1/diagnoses", content=WHOLE, headers={"Content-Type": content_type})
    body = problem(answer, 415, "unsupported-media-type")
    assert "application/json" in str(body["expected"])


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip"])
def test_other_content_codings_are_refused(client: TestClient, encoding: str) -> None:
    answer = client.post("/v1/diagnoses", content=WHOLE, headers={**JSON, "Content-Encoding": encoding})
    problem(answer, 415, "unsupported-encoding")
    assert answer.headers["accept-encoding"] == "gzip, zstd, identity"


@pytest.mark.parametrize(
    "accept", ["image/png", "text/plain", "application/json;q=0", "application/json;q=x"]
)
def test_an_unmatched_accept_is_refused(client: TestClient, accept: str) -> None:
    answer = client.post("/v1/diagnoses", content=WHOLE, headers={**JSON, "Accept": accept})
    problem(answer, 406, "not-acceptable")


@pytest.mark.parametrize(
    "body",
    [b"not gzip", gzip.compress(WHOLE)[:-9], gzip.compress(WHOLE)[:5], gzip.compress(WHOLE) + b"tail"],
    ids=["garbage", "truncated", "header only", "trailing garbage"],
)
def test_damaged_gzip_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/v1/diagnoses", content=body, headers={**JSON, "Content-Encoding": "gzip"})
    problem(answer, 400, "invalid-input")


def test_damaged_zstd_is_refused(client: TestClient) -> None:
    packed = pa.compress(WHOLE, "zstd", asbytes=True)
    answer = client.post("/v1/diagnoses", content=packed[:-9], headers={**JSON, "Content-Encoding": "zstd"})
    problem(answer, 400, "invalid-input")


def test_a_declared_gigabyte_is_refused_without_reading_it(client: TestClient) -> None:
    answer = client.post("/v1/diagnoses", content=WHOLE, headers={**JSON, "Content-Length": str(GIGABYTE)})
    problem(answer, 413, "too-large")
    assert answer.headers["connection"] == "close"


def gzip_bomb() -> bytes:
    """Pack a gigabyte of spaces into a megabyte."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    piece = packer.compress(b" " * (GIGABYTE // 16)) + packer.flush()
    return piece * 16


def zstd_bomb() -> bytes:
    return bytes(pa.compress(b" " * (GIGABYTE // 16), "zstd", asbytes=True) * 16)


@pytest.mark.parametrize(("encoding", "bomb"), [("gzip", gzip_bomb), ("zstd", zstd_bomb)])
def test_a_compressed_gigabyte_is_cut_off(client: TestClient, encoding: str, bomb: object) -> None:
    assert callable(bomb)
    answer = client.post("/v1/diagnoses", content=bomb(), headers={**JSON, "Content-Encoding": encoding})
    body = problem(answer, 413, "too-large")
    assert "larger after decompression" in str(body["detail"])


def test_an_endless_body_is_cut_off_at_the_limit(small_client: TestClient) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 10_000_000:
            sent += 10_000
            yield b" " * 10_000

    problem(small_client.post("/v1/diagnoses", content=endless(), headers=JSON), 413, "too-large")


def test_arrow_that_unpacks_beyond_the_limit_is_refused(small_client: TestClient) -> None:
    window = rca.read_window("data/windows/healthy")
    slim = Window.from_tables(window.job, window.steps.combine_chunks(), window.metrics.slice(0, 4000))
    body = slim.to_arrow()
    if len(body) > 50_000:
        body = Window.from_tables(window.job, window.steps, window.metrics.slice(0, 100)).to_arrow()
    answer = small_client.post("/v1/diagnoses", content=body, headers={"Content-Type": arrow.CONTENT_TYPE})
    problem(answer, 413, "too-large")


@pytest.mark.parametrize(
    "body",
    [b"--x\r\n\r\n", b"no boundary here", rca.read_window(WHOLE).to_arrow()[:900]],
    ids=["nameless part", "no boundary", "truncated"],
)
def test_damaged_multipart_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/v1/diagnoses", content=body, headers={"Content-Type": arrow.CONTENT_TYPE})
    problem(answer, 422, "invalid-window")


def test_multipart_without_a_boundary_is_refused(client: TestClient) -> None:
    answer = client.post("/v1/diagnoses", content=b"x", headers={"Content-Type": "multipart/form-data"})
    problem(answer, 422, "invalid-window")


def packed(start: bytes, unit: bytes, end: bytes, size: int) -> bytes:
    """Pack so many bytes of repetitions into a few kilobytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(start)]
    piece = unit * (1_000_000 // len(unit))
    pieces += [packer.compress(piece) for _ in range(size // len(piece))]
    return b"".join([*pieces, packer.compress(end), packer.flush()])


@pytest.mark.parametrize(
    ("path", "kind", "start", "unit", "end"),
    [
        ("/v1/diagnoses/batch", "json", b'{"windows":[', b"0,", b"0]}"),
        ("/v1/diagnoses/batch", "json", b'{"windows":[', b"{},", b"{}]}"),
        ("/v1/diagnoses", "json", b'{"x":[', b"{},", b"0]}"),
        ("/v1/diagnoses", "json", b'{"x":[', b"[],", b"0]}"),
        ("/v1/what-if", "json", b'{"scenarios":[', b"{},", b"0]}"),
        (
            "/v1/diagnoses/batch",
            "form",
            b"",
            b'--x\r\nContent-Disposition: a; name="window"\r\n\r\n\r\n',
            b"",
        ),
    ],
)
@pytest.mark.parametrize("size", [60_000_000, 300_000_000])
def test_a_few_kilobytes_are_refused_within_seconds(
    client: TestClient, path: str, kind: str, start: bytes, unit: bytes, end: bytes, size: int
) -> None:
    content_type = "application/json" if kind == "json" else "multipart/form-data; boundary=x"
    body = packed(start, unit, end, size)
    assert len(body) < 3_000_000
    began = time.monotonic()
    answer = client.post(
        path, content=body, headers={"Content-Type": content_type, "Content-Encoding": "gzip"}
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "too-large"), answer.text
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("levels", [100, 253, 900, 1000])
def test_one_deep_window_does_not_fail_its_batch(client: TestClient, levels: int) -> None:
    body = b'{"windows":[' + WHOLE + b"," + nested(levels) + b"," + WHOLE + b"]}"
    answer = client.post("/v1/diagnoses/batch", content=body, headers=JSON)
    assert [item["status"] for item in answer.json()["items"]] == [200, 422, 200]
    assert answer.json()["items"][1]["problem"]["column"] == "hints"


def test_one_odd_part_does_not_fail_its_batch(client: TestClient) -> None:
    window = rca.read_window(WHOLE).to_arrow()
    odd = window.replace(b"Content-Length: ", b"Content-Length: " + b"9" * 5000, 1)
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="window"\r\n\r\n' + each + b"\r\n"
        for each in (window, odd)
    ]
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = client.post("/v1/diagnoses/batch", content=b"".join(parts) + b"--x--\r\n", headers=headers)
    # Headers of parts are limited; numbers in them as well.
    assert [item["status"] for item in answer.json()["items"]] == [200, 422]


def test_a_window_that_cannot_be_read_unexpectedly_does_not_fail_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Window, "from_document", lambda _: 1 / 0)
    context = types.SimpleNamespace(stage=lambda _: nullcontext())
    sent = Sent(Body(b'{"windows":[{}]}', None), "application/json", "identity", Limits(10**6, 10**6, 10**6))
    (error,) = work.accept_batch(context, sent, 4)  # type: ignore[arg-type]
    assert isinstance(error, RcaError)
    assert from_rca_error(error, 1).code == "internal-error"


def test_a_batch_that_repeats_a_key_is_refused(client: TestClient) -> None:
    body = b'{"windows":[{"job":{},"job":{}}]}'
    answer = client.post("/v1/diagnoses/batch", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["detail"]) == (
        400,
        "the batch has an object that repeats the key 'job'",
    )


@pytest.mark.parametrize("header", ["Content-Type", "Content-Encoding"])
def test_a_long_header_is_not_repeated_in_the_answer(client: TestClient, header: str) -> None:
    answer = client.post("/v1/diagnoses", content=WHOLE, headers={**JSON, header: "x" * 10_000})
    assert answer.status_code == 415
    assert len(answer.content) < 1500


def test_a_declared_length_of_many_digits_is_refused(client: TestClient) -> None:
    answer = client.post("/v1/diagnoses", content=WHOLE, headers={**JSON, "Content-Length": "9" * 5000})
    problem(answer, 413, "too-large")


def test_a_short_document_of_many_members_is_refused(client: TestClient) -> None:
    body = b"{" + b",".join(b'"%x":0' % number for number in range(80_000)) + b"}"
    answer = client.post("/v1/webhooks", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "too-large")
