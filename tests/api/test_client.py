"""`rca.client` against servers that are slow, busy, gone or something else entirely."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from bad_windows import WHOLE

import rca
from rca.client import Client, ServiceError
from rca.errors import InvalidInput, InvalidWindow, TooLarge
from rca_api.problems import MEDIA_TYPE

Scripted = tuple[int, dict[str, str], bytes]
BUSY = b'{"code": "busy", "detail": "at its limit"}'


class _Server(HTTPServer):
    script: list[Scripted]
    seen: list[str]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(f"{self.command} {self.path}")
        status, headers, body = self.server.script.pop(0)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer  # noqa: N815  (names the standard library calls)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    """A server that answers from a script."""
    held = _Server(("127.0.0.1", 0), _Handler)
    held.script, held.seen = [], []
    thread = threading.Thread(target=held.serve_forever)
    thread.start()
    yield held
    held.shutdown()
    thread.join()
    held.server_close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits a client asks for, without waiting."""
    held: list[float] = []
    # The client's own clock alone: threads of pools that other tests left behind sleep, too.
    monkeypatch.setattr("rca.client.time", SimpleNamespace(sleep=held.append))
    return held


def client_of(server: _Server, **options: int) -> Client:
    return Client(f"http://127.0.0.1:{server.server_port}", **options)


def test_a_busy_service_is_asked_again_when_it_says(server: _Server, waits: list[float]) -> None:
    server.script = [(503, {"Retry-After": "7"}, BUSY), (429, {}, BUSY), (200, {}, b'{"status": "ready"}')]
    assert client_of(server).ready() == {"status": "ready"}
    assert waits[0] == 7.0
    assert 0.0 < waits[1] < 1.0
    assert len(server.seen) == 3


def test_retries_end(server: _Server, waits: list[float]) -> None:
    server.script = [(503, {}, BUSY)] * 3
    with pytest.raises(ServiceError, match="at its limit") as here:
        client_of(server, retries=2).ready()
    assert (here.value.code, here.value.status) == ("busy", 503)
    assert len(waits) == 2


def test_a_refusal_is_not_retried(server: _Server, waits: list[float]) -> None:
    server.script = [
        (413, {"Content-Type": MEDIA_TYPE}, b'{"code": "too-large", "detail": "no", "hint": "less"}')
    ]
    with pytest.raises(TooLarge) as here:
        client_of(server).diagnose(rca.read_window(WHOLE))
    assert here.value.hint == "less"
    assert waits == []


def test_the_evidence_of_a_refused_window_arrives(server: _Server) -> None:
    body = (
        b'{"code": "invalid-window", "detail": "steps.rank: is wrong", "table": "steps", "column": "rank", '
        b'"rows": [{"row": 3}], "n_rows": 9, "expected": "0..3"}'
    )
    server.script = [(422, {}, body)]
    with pytest.raises(InvalidWindow) as here:
        client_of(server).diagnose(rca.read_window(WHOLE))
    error = here.value
    assert str(error) == "steps.rank: is wrong; expected 0..3 [9 row(s), first: row=3]"


def test_an_answer_from_something_else_is_told_apart(server: _Server) -> None:
    server.script = [(404, {}, b"<html>nginx</html>")]
    with pytest.raises(ServiceError, match="right address") as here:
        client_of(server).ready()
    assert here.value.status == 404


def test_nobody_there_is_said_plainly(waits: list[float]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServiceError, match="cannot be reached") as here:
        Client(f"http://127.0.0.1:{port}", retries=1).ready()
    assert here.value.code == "service-unreachable"
    assert len(waits) == 1


def test_a_silent_service_times_out() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServiceError, match="no answer in time"):
            Client(address, timeout_seconds=0.2).ready()


def test_a_path_prefix_is_kept(server: _Server) -> None:
    server.script = [(200, {}, b"{}")]
    Client(f"http://127.0.0.1:{server.server_port}/rca/").ready()
    assert server.seen == ["GET /rca/readyz"]


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "ftp://x", "http://", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="http"):
        Client(address)
