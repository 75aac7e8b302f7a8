"""`rca.client` against servers that are slow, busy, gone or not this service.

Each test runs for both clients, the one for asyncio in an event loop of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from bad_windows import WHOLE

import rca
from rca.client import AsyncClient, Client, ServiceError
from rca.client import service as client_service
from rca.client.service import Call
from rca.errors import InvalidInput, InvalidWindow, TooLarge
from rca_api.shell.requests.problems import MEDIA_TYPE
from tests.telemetry.prometheus_servers import dripping, talking

pytestmark = [pytest.mark.system, pytest.mark.smoke]

Scripted = tuple[int, dict[str, str], bytes]
BUSY = b'{"code": "busy", "detail": "at its limit"}'


class _Server(HTTPServer):
    #: None: read the request and close the connection without an answer.
    script: list[Scripted | None]
    seen: list[str]
    keys: list[str | None]
    authorizations: list[list[str] | None]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(f"{self.command} {self.path}")
        self.server.keys.append(self.headers.get("Idempotency-Key"))
        self.server.authorizations.append(self.headers.get_all("Authorization"))
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
    held.script, held.seen, held.keys, held.authorizations = [], [], [], []
    thread = threading.Thread(target=held.serve_forever, args=(0.01,))
    thread.start()
    yield held
    held.shutdown()
    thread.join()
    held.server_close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a client would wait; it does not wait."""
    held: list[float] = []

    async def wait(seconds: float) -> None:
        held.append(seconds)

    # Only the clock of the clients: threads of other tests sleep as well.
    monkeypatch.setattr("rca.client.clients.sleep", held.append)
    monkeypatch.setattr("rca.client.clients.asleep", wait)
    return held


class Driven:
    """An `AsyncClient` with the methods of a `Client`."""

    def __init__(self, base_url: str, **options: Any) -> None:
        self._client = AsyncClient(base_url, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*arguments: Any, **options: Any) -> Any:
            return await getattr(self._client, name)(*arguments, **options)

        return lambda *arguments, **options: asyncio.run(call(*arguments, **options))


Connect = Callable[..., Any]


@pytest.fixture(params=[Client, Driven], ids=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Makes a client of each kind, for an address or a server."""
    kind = request.param

    def made(where: str | HTTPServer, **options: Any) -> Any:
        return kind(where if isinstance(where, str) else f"http://127.0.0.1:{where.server_port}", **options)

    return made


def test_a_busy_service_is_tried_again_after_the_wait_it_names(
    connect: Connect, server: _Server, waits: list[float]
) -> None:
    server.script = [(503, {"Retry-After": "7"}, BUSY), (429, {}, BUSY), (200, {}, b'{"status": "ready"}')]
    assert connect(server).ready() == {"status": "ready"}
    assert waits[0] == 7.0
    assert 0.0 < waits[1] < 1.0
    assert len(server.seen) == 3


def test_the_client_knows_the_time_of_the_service(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(f"http://127.0.0.1:{server.server_port}")
    assert client.answered_at is None
    server.script = [(200, {}, b"{}"), (200, {}, b"{}")]
    monkeypatch.setattr(
        server.RequestHandlerClass, "date_time_string", lambda *_: "Sat, 28 Nov 2026 22:00:00 GMT"
    )
    client.get("/healthz")
    assert client.answered_at == 1795903200.0
    monkeypatch.setattr(server.RequestHandlerClass, "date_time_string", lambda *_: "yesterday")
    client.get("/healthz")
    assert client.answered_at is None


def test_retries_end(connect: Connect, server: _Server, waits: list[float]) -> None:
    server.script = [(503, {}, BUSY)] * 3
    with pytest.raises(ServiceError, match="at its limit") as here:
        connect(server, retries=2).ready()
    assert (here.value.code, here.value.status) == ("busy", 503)
    assert len(waits) == 2


def test_a_refusal_is_not_retried(connect: Connect, server: _Server, waits: list[float]) -> None:
    server.script = [
        (413, {"Content-Type": MEDIA_TYPE}, b'{"code": "too-large", "detail": "no", "hint": "less"}')
    ]
    with pytest.raises(TooLarge) as here:
        connect(server).diagnose(rca.read_window(WHOLE))
    assert here.value.hint == "less"
    assert waits == []


@pytest.fixture(scope="module")
def content() -> bytes:
    """An answer of the service."""
    return rca.diagnose(rca.read_window(WHOLE)).to_json().encode()


def test_a_post_that_is_tried_again_keeps_its_key(
    connect: Connect, server: _Server, waits: list[float], content: bytes
) -> None:
    server.script = [None, (503, {}, BUSY), (200, {}, content), (200, {}, content)]
    client = connect(server)
    client.diagnose(rca.read_window(WHOLE))
    client.diagnose(rca.read_window(WHOLE))
    first, *tried_again, second = server.keys
    assert first
    assert tried_again == [first, first]
    assert second not in (None, first)


def test_a_caller_may_give_the_key(connect: Connect, server: _Server, content: bytes) -> None:
    server.script = [(200, {}, content), (200, {}, b"text")]
    connect(server).diagnose(rca.read_window(WHOLE), idempotency_key="night-shift-7")
    assert connect(server).render(rca.read_window(WHOLE), idempotency_key="night-shift-8") == b"text"
    assert server.keys == ["night-shift-7", "night-shift-8"]


def test_a_key_among_the_headers_is_the_callers_key(
    connect: Connect, server: _Server, content: bytes
) -> None:
    server.script = [(200, {}, content)] * 2
    own = connect(server, headers={"idempotency-key": "mine"})
    own.diagnose(rca.read_window(WHOLE))
    own.diagnose(rca.read_window(WHOLE), idempotency_key="other")
    assert server.keys == ["mine", "other"]


@pytest.mark.parametrize("key", ["", "two words", "\u00e9", "line\nbreak", "k" * 201])
def test_a_key_that_the_service_would_refuse_is_not_sent(connect: Connect, key: str) -> None:
    with pytest.raises(InvalidInput, match="visible ASCII"):
        connect("http://127.0.0.1:9").diagnose(rca.read_window(WHOLE), idempotency_key=key)


IN_PROGRESS = (409, {"Retry-After": "1"}, b'{"code": "conflict", "detail": "being worked on"}')


def test_the_answer_to_the_try_before_is_waited_for(
    connect: Connect, server: _Server, waits: list[float], content: bytes
) -> None:
    server.script = [None, *[IN_PROGRESS] * 5, (200, {"Idempotency-Replayed": "true"}, content)]
    connect(server, retries=1).diagnose(rca.read_window(WHOLE))
    assert waits[1:] == [1.0] * 5
    assert len(set(server.keys)) == 1


def test_an_answer_in_progress_is_waited_for_no_longer_than_the_timeout(
    connect: Connect, server: _Server, waits: list[float]
) -> None:
    server.script = [IN_PROGRESS] * 4
    with pytest.raises(ServiceError, match="being worked on"):
        connect(server, timeout_seconds=3).diagnose(rca.read_window(WHOLE))
    assert waits == [1.0] * 3


def test_a_conflict_without_a_time_is_final(connect: Connect, server: _Server, waits: list[float]) -> None:
    server.script = [(409, {}, b'{"code": "conflict", "detail": "no"}')]
    with pytest.raises(ServiceError, match="no"):
        connect(server).diagnose(rca.read_window(WHOLE))
    assert waits == []


def test_a_get_has_no_key(connect: Connect, server: _Server) -> None:
    server.script = [(200, {}, b"{}")]
    connect(server).ready()
    assert server.keys == [None]


def test_the_evidence_of_a_refused_window_arrives(connect: Connect, server: _Server) -> None:
    body = (
        b'{"code": "invalid-window", "detail": "steps.rank: is wrong", "table": "steps", "column": "rank", '
        b'"rows": [{"row": 3}], "n_rows": 9, "expected": "0..3"}'
    )
    server.script = [(422, {}, body)]
    with pytest.raises(InvalidWindow) as here:
        connect(server).diagnose(rca.read_window(WHOLE))
    error = here.value
    assert str(error) == "steps.rank: is wrong. Expected: 0..3. 9 bad rows, the first: row=3."


def test_an_answer_from_another_server_is_recognised(connect: Connect, server: _Server) -> None:
    server.script = [(404, {}, b"<html>nginx</html>")]
    with pytest.raises(ServiceError, match="right address") as here:
        connect(server).ready()
    assert here.value.status == 404


def test_a_refused_connection_is_reported(connect: Connect, waits: list[float]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServiceError, match="cannot be reached") as here:
        connect(f"http://127.0.0.1:{port}", retries=1).ready()
    assert here.value.code == "service-unreachable"
    assert len(waits) == 1


def test_a_silent_service_times_out(connect: Connect) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServiceError, match="no answer in time"):
            connect(address, timeout_seconds=0.2).ready()


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"])
def test_an_answer_byte_by_byte_ends_with_the_timeout(connect: Connect, head: bytes) -> None:
    content = b"{" + b" " * 499 if head else b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 500
    began = time.monotonic()
    with talking(dripping(content, head)) as url, pytest.raises(ServiceError, match="no answer in time"):
        connect(url, timeout_seconds=0.3, retries=0).ready()
    assert time.monotonic() - began < 5


def test_an_answer_beyond_the_limit_is_not_read_to_its_end(
    connect: Connect, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_service, "MAX_ANSWER_BYTES", 1000)
    server.script = [(200, {}, b" " * 5000)]
    with pytest.raises(TooLarge, match="more than 1,000 bytes"):
        connect(server, retries=0).ready()


def test_a_path_prefix_is_kept(connect: Connect, server: _Server) -> None:
    server.script = [(200, {}, b"{}")]
    connect(f"http://127.0.0.1:{server.server_port}/rca/").ready()
    assert server.seen == ["GET /rca/readyz"]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:8080", "ftp://x", "http://", "", "http://x:99999", "http://x:y", "http://[", "http://a b"],
)
def test_a_malformed_address_is_refused(connect: Connect, address: str) -> None:
    with pytest.raises(InvalidInput, match="http"):
        connect(address)


def test_both_clients_have_the_same_methods_and_parameters() -> None:
    def public(kind: type) -> dict[str, list[str]]:
        named = {name: held for name, held in vars(kind).items() if name == "__init__" or name[0] != "_"}
        return {name: list(inspect.signature(held).parameters) for name, held in named.items()}

    assert public(AsyncClient) == public(Client)


@pytest.fixture
def early() -> Iterator[str]:
    """Address of a service that refuses a request by its head, and reads no body."""
    body = b'{"code": "too-large", "detail": "at most 1 byte"}'
    head = f"HTTP/1.1 413 Content Too Large\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(1000)
                link.sendall(head + body)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_the_reason_of_an_early_refusal_arrives(connect: Connect, early: str) -> None:
    # Larger than what the kernel takes without a reader.
    call = Call("POST", "/v1/diagnoses", bytes, {}, bytes(16_000_000))
    with pytest.raises(TooLarge, match="at most 1 byte"):
        connect(early, retries=0)._send(call)


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 2\r\n\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;a=b\r\n}\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Checked: yes\r\n\r\n",
    ],
)
def test_an_answer_ends_where_it_says_so_on_a_connection_that_stays_open(
    connect: Connect, body: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(1000)
                # In pieces, which may arrive apart.
                for piece in (b"HTTP/1.1 200 OK\r\n", body[:-3], body[-3:]):
                    link.sendall(piece)
                link.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert connect(address, timeout_seconds=5, retries=0).ready() == {}
        thread.join()


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, {}, b""),
        (200, {"Content-Type": "text/html"}, b"<html>sign in</html>"),
        (302, {"Location": "https://sso.example.org/"}, b""),
        (304, {}, b""),
    ],
)
def test_only_a_readable_answer_of_the_service_is_taken(
    connect: Connect, server: _Server, waits: list[float], status: int, headers: dict[str, str], body: bytes
) -> None:
    server.script = [(status, headers, body)] * 3
    window = rca.read_window(WHOLE)
    for call in (
        lambda client: client.ready(),
        lambda client: client.diagnose(window),
        lambda client: client.render(window),
    ):
        with pytest.raises(ServiceError) as here:
            call(connect(server))
        assert (here.value.code, here.value.status) == ("http-error", status)
        assert headers.get("Location", "") in str(here.value)
    assert waits == []


def test_json_of_another_shape_is_no_answer(connect: Connect, server: _Server) -> None:
    server.script = [(200, {}, b"[1]")] * 2
    with pytest.raises(ServiceError, match="not an answer"):
        connect(server).ready()
    with pytest.raises(ServiceError, match="not an answer"):
        connect(server).diagnose(rca.read_window(WHOLE))


def test_a_page_that_was_asked_for_is_an_answer(connect: Connect, server: _Server) -> None:
    server.script = [(200, {"Content-Type": "text/html"}, b"<html>")]
    assert connect(server).render(rca.read_window(WHOLE), "text/html") == b"<html>"


def test_a_problem_with_members_of_other_types_is_a_refusal(connect: Connect, server: _Server) -> None:
    body = (
        b'{"code": "invalid-window", "detail": "is wrong", "hint": 3, "table": null, "column": [], '
        b'"rows": [1, {"row": 3}], "n_rows": "9", "expected": null}'
    )
    server.script = [(422, {}, body)]
    with pytest.raises(InvalidWindow, match="is wrong"):
        connect(server).ready()


def test_the_newline_of_a_key_file_is_not_sent(connect: Connect, server: _Server) -> None:
    server.script = [(200, {}, b"{}")]
    connect(server, api_key="hush\n").ready()
    assert server.authorizations == [["Bearer hush"]]


def test_an_authorization_header_takes_the_place_of_the_key(connect: Connect, server: _Server) -> None:
    server.script = [(200, {}, b"{}")]
    connect(server, api_key="hush", headers={"authorization": "Basic eA=="}).ready()
    assert server.authorizations == [["Basic eA=="]]


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": "hu\nsh"},
        {"api_key": "hush\u20ac"},
        {"headers": {"X-Token": "hush\n"}},
        {"headers": {"X Token": "hush"}},
        {"where": "http://jane:hush@127.0.0.1:9"},
        {"where": "ftp://jane:hush@127.0.0.1"},
        {"retries": -1},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("nan")},
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_without_its_secret(
    connect: Connect, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput) as here:
        connect(**{"where": "http://127.0.0.1:9"} | options)
    assert "hu" not in f"{here.value} {here.value.hint}"
    assert here.value.__cause__ is None


@pytest.mark.parametrize("path", ["/a b", "readyz", "/\u00e9", "", "/v1/../a", "/a/./b", "/a#b"])
def test_a_path_that_no_request_can_have_is_refused_at_once(
    connect: Connect, waits: list[float], path: str
) -> None:
    with pytest.raises(InvalidInput, match="path of a request"):
        connect("http://127.0.0.1:9").get(path)
    assert waits == []


class _Meeting(ThreadingHTTPServer):
    daemon_threads = False
    together = threading.Barrier(5, timeout=20)


class _AnswersTogether(BaseHTTPRequestHandler):
    server: _Meeting

    def do_GET(self) -> None:
        self.server.together.wait()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def test_requests_of_one_event_loop_are_under_way_together() -> None:
    """Each is answered only once all five have arrived."""
    server = _Meeting(("127.0.0.1", 0), _AnswersTogether)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    async def five() -> list[dict[str, Any]]:
        client = AsyncClient(f"http://127.0.0.1:{server.server_port}", retries=0)
        return await asyncio.gather(*(client.ready() for _ in range(5)))

    assert asyncio.run(five()) == [{}] * 5
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_cancelled_call_closes_its_connection() -> None:
    async def cancelled(listener: socket.socket) -> bytes:
        loop = asyncio.get_running_loop()
        client = AsyncClient(f"http://127.0.0.1:{listener.getsockname()[1]}")
        call = asyncio.ensure_future(client.ready())
        link, _ = await loop.sock_accept(listener)
        with link:
            link.setblocking(False)
            assert (await loop.sock_recv(link, 1000)).startswith(b"GET /readyz ")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            return await loop.sock_recv(link, 1000)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        began = time.monotonic()
        assert asyncio.run(asyncio.wait_for(cancelled(listener), 20)) == b""
        assert time.monotonic() - began < 10


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1, signed by itself, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    # fmt: off
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", path, "-out", f"{path}.crt"],
        check=True, capture_output=True,
    )
    # fmt: on
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.fixture
def secure(server: _Server, certificate: Path) -> str:
    """Address of the scripted server behind TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return f"https://127.0.0.1:{server.server_port}"


def test_a_service_behind_tls_is_called(
    connect: Connect, server: _Server, secure: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", f"{certificate}.crt")
    server.script = [(200, {}, b'{"status": "ready"}')]
    assert connect(secure).ready() == {"status": "ready"}


def test_a_certificate_that_is_not_trusted_is_refused(connect: Connect, secure: str) -> None:
    with pytest.raises(ServiceError, match="certificate verify failed"):
        connect(secure, retries=0).ready()
