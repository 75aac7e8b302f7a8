"""`rca.client` against servers that are slow, busy, gone or not this service."""

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
    #: None: read the request and close the connection without an answer.
    script: list[Scripted | None]
    seen: list[str]
    keys: list[str | None]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(f"{self.command} {self.path}")
        self.server.keys.append(self.headers.get("Idempotency-Key"))
        scripted = self.server.script.pop(0)
        if scripted is None:
            self.close_connection = True
            return
        status, headers, body = scripted
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
    held.script, held.seen, held.keys = [], [], []
    thread = threading.Thread(target=held.serve_forever)
    thread.start()
    yield held
    held.shutdown()
    thread.join()
    held.server_close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a client would wait; it does not wait."""
    held: list[float] = []
    # Only the clock of the client: threads of other tests sleep as well.
    monkeypatch.setattr("rca.client.time", SimpleNamespace(sleep=held.append))
    return held


def client_of(server: _Server, **options: int) -> Client:
    return Client(f"http://127.0.0.1:{server.server_port}", **options)


def test_a_busy_service_is_tried_again_after_the_wait_it_names(server: _Server, waits: list[float]) -> None:
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


@pytest.fixture(scope="module")
def content() -> bytes:
    """An answer of the service."""
    return rca.diagnose(rca.read_window(WHOLE)).to_json().encode()


def test_a_post_that_is_tried_again_keeps_its_key(
    server: _Server, waits: list[float], content: bytes
) -> None:
    server.script = [None, (503, {}, BUSY), (200, {}, content), (200, {}, content)]
    client = client_of(server)
    client.diagnose(rca.read_window(WHOLE))
    client.diagnose(rca.read_window(WHOLE))
    first, *tried_again, second = server.keys
    assert first
    assert tried_again == [first, first]
    assert second not in (None, first)


def test_a_caller_may_give_the_key(server: _Server, content: bytes) -> None:
    server.script = [(200, {}, content), (200, {}, b"text")]
    client_of(server).diagnose(rca.read_window(WHOLE), idempotency_key="night-shift-7")
    assert client_of(server).render(rca.read_window(WHOLE), idempotency_key="night-shift-8") == b"text"
    assert server.keys == ["night-shift-7", "night-shift-8"]


def test_a_key_among_the_headers_is_the_callers_key(server: _Server, content: bytes) -> None:
    server.script = [(200, {}, content)] * 2
    own = Client(f"http://127.0.0.1:{server.server_port}", headers={"idempotency-key": "mine"})
    own.diagnose(rca.read_window(WHOLE))
    own.diagnose(rca.read_window(WHOLE), idempotency_key="other")
    assert server.keys == ["mine", "other"]


@pytest.mark.parametrize("key", ["", "two words", "\u00e9", "line\nbreak", "k" * 201])
def test_a_key_that_the_service_would_refuse_is_not_sent(key: str) -> None:
    with pytest.raises(InvalidInput, match="visible ASCII"):
        Client("http://127.0.0.1:9").diagnose(rca.read_window(WHOLE), idempotency_key=key)


IN_PROGRESS = (409, {"Retry-After": "1"}, b'{"code": "conflict", "detail": "being worked on"}')


def test_the_answer_to_the_try_before_is_waited_for(
    server: _Server, waits: list[float], content: bytes
) -> None:
    server.script = [None, *[IN_PROGRESS] * 5, (200, {"Idempotency-Replayed": "true"}, content)]
    client_of(server, retries=1).diagnose(rca.read_window(WHOLE))
    assert waits[1:] == [1.0] * 5
    assert len(set(server.keys)) == 1


def test_an_answer_in_progress_is_waited_for_no_longer_than_the_timeout(
    server: _Server, waits: list[float]
) -> None:
    server.script = [IN_PROGRESS] * 4
    with pytest.raises(ServiceError, match="being worked on"):
        client_of(server, timeout_seconds=3).diagnose(rca.read_window(WHOLE))
    assert waits == [1.0] * 3


def test_a_conflict_without_a_time_is_final(server: _Server, waits: list[float]) -> None:
    server.script = [(409, {}, b'{"code": "conflict", "detail": "no"}')]
    with pytest.raises(ServiceError, match="no"):
        client_of(server).diagnose(rca.read_window(WHOLE))
    assert waits == []


def test_a_get_has_no_key(server: _Server) -> None:
    server.script = [(200, {}, b"{}")]
    client_of(server).ready()
    assert server.keys == [None]


def test_the_evidence_of_a_refused_window_arrives(server: _Server) -> None:
    body = (
        b'{"code": "invalid-window", "detail": "steps.rank: is wrong", "table": "steps", "column": "rank", '
        b'"rows": [{"row": 3}], "n_rows": 9, "expected": "0..3"}'
    )
    server.script = [(422, {}, body)]
    with pytest.raises(InvalidWindow) as here:
        client_of(server).diagnose(rca.read_window(WHOLE))
    error = here.value
    assert str(error) == "steps.rank: is wrong. Expected: 0..3. 9 bad rows, the first: row=3."


def test_an_answer_from_another_server_is_recognised(server: _Server) -> None:
    server.script = [(404, {}, b"<html>nginx</html>")]
    with pytest.raises(ServiceError, match="right address") as here:
        client_of(server).ready()
    assert here.value.status == 404


def test_a_refused_connection_is_reported(waits: list[float]) -> None:
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
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="http"):
        Client(address)
