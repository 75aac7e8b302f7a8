"""Answers of Prometheus that are hostile or huge, and servers that never end: limits of memory and time."""

from __future__ import annotations

import gzip
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rca
from rca import timed_http
from rca.sources.prometheus import answers, client, matrix, queries
from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.queries import Query, read_samples
from rca.sources.prometheus.rank_places import natural
from tests.for_each import for_each
from tests.telemetry.prometheus_servers import Answer, dripping, failure, stub, success, talking

pytestmark = pytest.mark.system

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
#: Reads a job in a process of its own, and prints the error and the most memory that the process had, MiB.
CHILD = """
import re, sys
from pathlib import Path
import rca
try:
    rca.read_prometheus(sys.argv[1], "llama", timeout=30)
except rca.RcaError as error:
    print(error, error.hint)
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10)
"""
BEGIN = b'{"status":"success","data":['


def packed(unit: bytes, n_bytes: int, begin: bytes = BEGIN) -> bytes:
    """gzip of a text that repeats `unit`."""
    packer = zlib.compressobj(1, wbits=31)
    block = unit * (1 + (1 << 20) // len(unit))
    pieces = [packer.compress(begin), *(packer.compress(block) for _ in range(n_bytes // len(block)))]
    return b"".join([*pieces, packer.flush()])


@contextmanager
def sending(body: bytes, status: bytes = b"200 OK") -> Iterator[str]:
    head = HEAD.replace(b"200 OK", status) + b"Content-Encoding: gzip\r\n\r\n"
    with talking(lambda connection: connection.sendall(head + body)) as url:
        yield url


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@for_each(
    ("begin", "unit", "said"),
    [
        (BEGIN, b'[1,"1"],', "need more than 256 MiB of memory"),
        (BEGIN, b'{"metric":{},"values":[]},', "need more than 256 MiB of memory"),
        (BEGIN, b"[", "need more than 256 MiB of memory"),
        (BEGIN + b'"', b"a", "more than 50,331,648 bytes"),
        (BEGIN, b"9" * 5000 + b",", "more than 50,331,648 bytes"),
    ],
    ids=["samples", "empty-series", "nested", "long-string", "long-numbers"],
)
def test_a_bomb_is_refused_in_little_memory(begin: bytes, unit: bytes, said: str) -> None:
    with sending(packed(unit, 100 << 20, begin)) as url:
        ran = subprocess.run([sys.executable, "-c", CHILD, url], capture_output=True, text=True, check=True)
    refused, memory = ran.stdout.splitlines()
    assert said in refused
    assert "shorten --since, or select less with --match" in refused
    assert int(memory) < 500


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"[" * 100_000, "cannot be read"),
        (b'["' + b"9" * 5000, "cannot be read"),
        (b"[" + b"9" * 5000 + b"]}", "reports|no metric|cannot be read"),
        (b'"' + b"9" * 5000 + b'"}', "no metric"),
    ],
)
def test_small_odd_answers_are_an_error_with_a_reason(data: bytes, said: str) -> None:
    body = b'{"status":"success","data":' + data
    with stub(lambda *_: (200, "application/json", body)) as url, pytest.raises(rca.RcaError, match=said):
        rca.read_prometheus(url, "llama")


@for_each(
    "result",
    [
        [{"metric": {}}],
        [{"metric": {"a": 1}, "values": [[1, "1"]]}],
        [{"metric": {"a": {}}, "values": [[1, "1"]]}],
        [{"metric": [], "values": [[1, "1"]]}],
        [{"metric": {}, "values": [[1, "one"]]}],
        [{"metric": {}, "values": [[[], "1"]]}],
        [{"metric": {}, "values": [1]}],
        [1],
    ],
)
def test_series_of_another_form_are_an_error(result: Any) -> None:
    asked: list[Callable[[Prometheus], Any]] = [
        lambda server: server.query("up", 1.0),
        lambda server: server.samples("up[1m]", 0.0, 60.0),
    ]
    with stub(lambda *_: success({"result": result})) as url:
        if "values" in str(result) or result == [1]:
            with pytest.raises(rca.SourceError):
                asked[1](Prometheus(url))
        with pytest.raises(rca.SourceError, match="another form"):
            asked[0](Prometheus(url))


@pytest.mark.parametrize("data", [[1], [{"a": 1}], [{"a": None}]])
def test_labels_of_another_form_are_an_error(data: Any) -> None:
    with stub(lambda *_: success(data)) as url, pytest.raises(rca.SourceError, match="another form"):
        Prometheus(url).series(["up"], 0.0, 1.0)


def test_values_of_thousands_of_digits_are_read() -> None:
    result = [{"metric": {"gpu": "9" * 4000}, "values": [[1, "9" * 5000], [2, "1"]]}]
    with stub(lambda *_: success({"result": result})) as url:
        found = Prometheus(url).samples("up[1m]", 0.0, 60.0)
    assert found.infinite == 1
    assert len(natural("node-" + "9" * 5000)) == 2


def test_a_label_that_takes_long_to_search_is_refused() -> None:
    found = [{"gpu": "1" * (matrix.MAX_LABEL_CHARACTERS + 1)}]
    with stub(lambda *_: success(found)) as url, pytest.raises(rca.SourceError, match="4,096 characters"):
        Prometheus(url).series(["up"], 0.0, 1.0)


def test_tens_of_thousands_of_series_are_read() -> None:
    labels = {f"label_{number}": "a value of some length" for number in range(10)}
    found = [{**labels, "gpu": str(number)} for number in range(40_000)]
    with stub(lambda *_: success(found)) as url:
        assert len(Prometheus(url).series(["up"], 0.0, 1.0)) == 40_000


@pytest.mark.parametrize("status", [b"400 Bad Request", b"422 Unprocessable Entity", b"404 Not Found"])
def test_the_body_of_an_error_is_read_in_part(status: bytes) -> None:
    body = packed(b"x", 100 << 20, b'{"status":"error","error":"')
    with sending(body, status) as url, pytest.raises(rca.SourceError, match="no Prometheus API"):
        Prometheus(url).query("up", 1.0)


@pytest.mark.parametrize("n_values", [0, 1, 60_000])
def test_gzip_is_unpacked(n_values: int) -> None:
    values = [f"metric_{number}" for number in range(n_values)]
    body = gzip.compress(json.dumps({"status": "success", "data": values}).encode(), 1)
    with sending(body) as url:
        assert Prometheus(url).label_values("__name__", [], 0.0, 1.0) == values


def test_gzip_that_is_cut_or_damaged_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "sleep", lambda _: None)
    whole = packed(b'"up",', 1 << 20)
    for body, said in ((whole[:-20], "cannot be read"), (b"\x1f\x8b" + b"x" * 100, "answer is damaged")):
        with sending(body) as url, pytest.raises(rca.SourceError, match=said):
            Prometheus(url).series(["up"], 0.0, 1.0)


def test_a_query_beyond_the_limit_is_split_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWER_MEMORY", 40_000)

    def handle(path: str, parameters: dict[str, list[str]], headers: Any) -> Answer:
        end = float(parameters["time"][0])
        span = float(parameters["query"][0].split("[")[1].removesuffix("ms]")) / 1000
        values = [[at, "1"] for at in range(int(end - span), int(end) + 1)]
        return success({"result": [{"metric": {"__name__": "up"}, "values": values}]})

    with stub(handle) as url:
        found = read_samples(Prometheus(url), [Query("up", 1000.0, 1400.0)], lambda *_: None)
    assert len(found) > 1
    assert sum(each.time.size for each in found) == 400


def test_series_are_counted_over_all_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MAX_SERIES", 3)
    result = [{"metric": {"gpu": str(number)}, "values": [[1, "1"]]} for number in range(2)]
    with (
        stub(lambda *_: success({"result": result})) as url,
        pytest.raises(rca.TooLarge, match="more than 3 series") as refused,
    ):
        read_samples(Prometheus(url), [Query("up", 0.0, 60.0), Query("down", 0.0, 60.0)], lambda *_: None)
    assert "--since" in str(refused.value.hint)


LONG = json.dumps({"status": "success", "data": ["up"] * 100}).encode()
ENDLESS: dict[str, Callable[[socket.socket], None]] = {
    "a byte at a time": dripping(LONG, HEAD + b"\r\n"),
    "headers a byte at a time": dripping(HEAD * 10),
    "chunks of a byte": dripping(b"1\r\n[\r\n" * 100, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", 0.01),
    "interim answers": dripping(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, every=0.005),
}


@pytest.mark.parametrize("talk", ENDLESS.values(), ids=ENDLESS)
def test_a_server_that_sends_byte_by_byte_ends_with_the_time_limit(
    talk: Callable[[socket.socket], None],
) -> None:
    began = time.monotonic()
    with talking(talk) as url, pytest.raises(rca.SourceError, match=r"not answer within 0\.3 s") as refused:
        rca.read_prometheus(url, "llama", timeout=0.3)
    assert time.monotonic() - began < 2.0
    assert "--timeout" in str(refused.value.hint)


def test_a_server_that_accepts_and_never_answers_ends_with_the_time_limit() -> None:
    ended = threading.Event()
    began = time.monotonic()
    with talking(lambda _: bool(ended.wait(10))) as url:  # type: ignore[arg-type,return-value]
        with pytest.raises(rca.SourceError, match=r"not answer within 0\.3 s"):
            rca.read_prometheus(url, "llama", timeout=0.3)
        ended.set()
    assert time.monotonic() - began < 2.0


def test_a_name_that_is_not_resolved_ends_with_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(timed_http.socket, "getaddrinfo", lambda *_, **__: ended.wait(10) and [])
    began = time.monotonic()
    with pytest.raises(rca.SourceError, match=r"not answer within 0\.3 s"):
        rca.read_prometheus("http://prometheus.example", "llama", timeout=0.3)
    ended.set()
    assert time.monotonic() - began < 2.0


def test_an_address_that_never_accepts_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub(lambda *_: success(["up"])) as url, socket.socket() as full:
        # A full queue of a listening socket accepts no further connection.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        held = [socket.socket() for _ in range(3)]
        for each in held:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        kind = socket.AF_INET, socket.SOCK_STREAM, 6, ""
        places = [(*kind, full.getsockname()), (*kind, ("127.0.0.1", int(url.rpartition(":")[2])))]
        monkeypatch.setattr(timed_http.socket, "getaddrinfo", lambda *_, **__: places)
        assert Prometheus(url, timeout=0.6).label_values("__name__", [], 0.0, 1.0) == ["up"]
        for each in held:
            each.close()


def test_a_server_that_asks_for_a_longer_pause_is_not_waited_for() -> None:
    head = b"HTTP/1.1 503 Busy\r\nRetry-After: 20\r\nContent-Length: 4\r\n\r\nbusy"
    began = time.monotonic()
    with (
        talking(lambda connection: connection.sendall(head)) as url,
        pytest.raises(rca.SourceError, match="failed once, with 503: busy"),
    ):
        Prometheus(url, timeout=5.0).query("up", 1.0)
    assert time.monotonic() - began < 2.0


def test_the_time_limit_is_that_of_all_queries_together() -> None:
    held = threading.Event()

    def handle(*_: Any) -> Answer:
        held.wait(0.15)
        return success({"result": []})

    began = time.monotonic()
    with stub(handle) as url, pytest.raises(rca.SourceError, match=r"0\.4 s, with all requests together"):
        read_samples(
            Prometheus(url, timeout=0.4),
            [Query(f"up_{number}", 0.0, 60.0) for number in range(40)],
            lambda *_: None,
        )
    assert time.monotonic() - began < 1.2


def test_failures_are_repeated_within_the_time_limit_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(client, "sleep", pauses.append)
    with (
        stub(lambda *_: failure(500, "internal", "oops")) as url,
        pytest.raises(rca.SourceError, match="failed 2 times, at last with 500"),
    ):
        Prometheus(url, timeout=0.99).query("up", 1.0)
    assert pauses == [0.5]


@pytest.mark.skipif(os.system("command -v openssl > /dev/null") != 0, reason="not installed: openssl")  # noqa: S605
def test_tls_byte_by_byte_ends_with_the_time_limit(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=prometheus"]
    subprocess.run([*made, *files, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    began = time.monotonic()
    with (
        talking(dripping(LONG, HEAD + b"\r\n"), tls) as url,
        pytest.raises(rca.SourceError, match=r"not answer within 0\.5 s"),
    ):
        rca.read_prometheus(url, "llama", timeout=0.5, ca_file=certificate)
    assert time.monotonic() - began < 2.0
