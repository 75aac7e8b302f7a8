"""Limits on heads, trailers, waiting requests and connections: a real server process, and raw sockets."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rca_api.shell.requests.request_heads import MAX_HEAD_BYTES, MAX_HEADERS, MAX_URL_BYTES, MAX_WAITING

pytestmark = [pytest.mark.system, pytest.mark.smoke]

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
SECONDS = 0.5
MEGABYTE = 1 << 20
#: What a flood may add to the memory of the server.
FLAT = 8 * MEGABYTE


async def echo(scope: dict, receive: object, send: object) -> None:
    """Answer with the names of the headers and the length of the body; `/slow` answers late."""
    if scope["type"] != "http":
        return
    size, more = 0, scope["path"] != "/unread"
    while more:
        message = await receive()  # type: ignore[operator]
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    if scope["path"] == "/slow":
        await asyncio.sleep(SECONDS / 2)
    if scope["path"] == "/large":
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        for more in [True] * 400 + [False]:
            message = {"type": "http.response.body", "body": b"x" * 100_000, "more_body": more}
            await send(message)  # type: ignore[operator]
        return
    names = [name.decode() for name, _ in scope["headers"]]
    content = json.dumps({"path": scope["path"], "headers": names, "body": size}).encode()
    head = [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": content})  # type: ignore[operator]


def serve(descriptor: int) -> None:
    import uvicorn

    from rca_api.shell.requests import request_heads

    request_heads.HEAD_SECONDS = request_heads.LINGER_SECONDS = request_heads.READ_SECONDS = SECONDS
    config = uvicorn.Config(
        echo, http=request_heads.BoundedHeads, ws="none", log_config=None, access_log=False, lifespan="off"
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


class Server:
    """A process that serves `echo`."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self._status = Path(f"/proc/{pid}/status")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def peak(self) -> int:
        found = re.search(r"VmHWM:\s+(\d+) kB", self._status.read_text())
        assert found
        return int(found[1]) * 1024

    def ask(self, *pieces: bytes) -> bytes:
        """Send the pieces, and read until the server closes."""
        with self.connect() as link:
            for piece in pieces:
                link.sendall(piece)
            return rest(link)

    def flood(self, start: bytes, piece: bytes, most: int = 32 * MEGABYTE) -> tuple[int, bytes]:
        """Repeat a piece until the server closes or `most` bytes are sent; how many, and the answer."""
        sent = 0
        with self.connect() as link:
            link.sendall(start)
            try:
                while sent < most:
                    link.sendall(piece)
                    sent += len(piece)
            except (ConnectionError, TimeoutError):
                pass
            return sent, rest(link)


def rest(link: socket.socket) -> bytes:
    answer = b""
    try:
        while piece := link.recv(1 << 16):
            answer += piece
    except ConnectionError:
        pass
    return answer


def started(*arguments: str) -> tuple[subprocess.Popen[bytes], Server]:
    """A process that serves `echo`, with the arguments behind that of its socket."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1000)
        command = [sys.executable, str(Path(__file__)), str(listener.fileno()), *arguments]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()])
        return process, Server(listener.getsockname()[1], process.pid)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    process, held = started()
    try:
        assert held.ask(HEAD + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")
        yield held
    finally:
        process.kill()
        process.wait()


FLOODS = {
    "an endless header": (HEAD + b"X: ", b"a" * 65536, b"431"),
    "endless headers": (HEAD, b"X-a: b\r\n" * 8000, b"431"),
    "an endless name of a header": (HEAD, b"a" * 65536, b"431"),
    "an endless URL": (b"GET /?", b"a" * 65536, b"414"),
    "blank lines": (b"", b"\r\n" * 32768, b"431"),
    "an endless trailer": (CHUNKED + b"0\r\nX: ", b"a" * 65536, b""),
    "endless trailers": (CHUNKED + b"0\r\n", b"X-a: b\r\n" * 8000, b""),
    "an endless chunk extension": (CHUNKED + b"5;", b"a" * 65536, b""),
    "endless requests": (b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n", (HEAD + b"\r\n") * 3000, b""),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_refused_and_takes_no_memory(server: Server, name: str) -> None:
    start, piece, status = FLOODS[name]
    before = server.peak()
    _, answer = server.flood(start, piece)
    # An answer that would be taken for the one to an earlier request is not sent.
    assert answer.startswith(b"HTTP/1.1 " + status) if status else not answer
    assert server.peak() - before < FLAT


def test_a_refusal_is_a_problem_document(server: Server) -> None:
    head, _, content = server.ask(HEAD + b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n").partition(b"\r\n\r\n")
    assert b"Content-Type: application/problem+json" in head
    assert b"Connection: close" in head
    problem = json.loads(content)
    assert (problem["status"], problem["code"]) == (431, "head-too-large")
    assert "65,536 bytes" in problem["detail"]


def test_what_is_no_http_is_a_problem_document(server: Server) -> None:
    head, _, content = server.ask(b"NONSENSE\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(content)["code"] == "http-error"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (HEAD + b"X: y\r\n" * (MAX_HEADERS - 2), 200),
        (HEAD + b"X: y\r\n" * MAX_HEADERS, 431),
        (HEAD + b"X: " + b"a" * (MAX_HEAD_BYTES - 200) + b"\r\n", 200),
        (HEAD + b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n", 431),
        (b"GET /" + b"a" * (MAX_URL_BYTES - 1) + b" HTTP/1.1\r\nHost: x\r\n", 200),
        (b"GET /" + b"a" * MAX_URL_BYTES + b" HTTP/1.1\r\nHost: x\r\n", 414),
    ],
    ids=["most headers", "too many headers", "long header", "too long header", "long URL", "too long URL"],
)
@pytest.mark.parametrize("piece", [1 << 20, 1000], ids=["at once", "in pieces"])
def test_limits_hold_however_the_head_arrives(server: Server, head: bytes, status: int, piece: int) -> None:
    sent = head + b"Connection: close\r\n\r\n"
    answer = server.ask(*(sent[at : at + piece] for at in range(0, len(sent), piece)))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


def test_a_head_that_does_not_end_is_closed_in_time(server: Server) -> None:
    began = time.monotonic()
    assert server.ask(HEAD).startswith(b"HTTP/1.1 408 ")
    assert SECONDS / 2 < time.monotonic() - began < 10 * SECONDS


@pytest.mark.parametrize("start", [b"", b"\r\n"], ids=["nothing", "blank line"])
def test_a_connection_without_a_request_is_closed_in_time(server: Server, start: bytes) -> None:
    began = time.monotonic()
    assert server.ask(start) == b""
    assert time.monotonic() - began < 10 * SECONDS


def test_bytes_that_trickle_do_not_extend_the_time(server: Server) -> None:
    with server.connect() as link:
        link.sendall(HEAD)
        assert is_closed_while_sending(link, b"X: y\r\n")


def test_the_rest_of_an_answered_body_has_to_arrive_in_time(server: Server) -> None:
    with server.connect() as link:
        link.sendall(b"POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert link.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert is_closed_while_sending(link, b"y")


def is_closed_while_sending(link: socket.socket, piece: bytes) -> bool:
    """Send a piece again and again, in shorter pauses than any limit."""
    began = time.monotonic()
    try:
        while time.monotonic() - began < 20 * SECONDS:
            link.sendall(piece)
            time.sleep(SECONDS / 10)
    except ConnectionError:
        return True
    return False


def test_a_slow_answer_is_not_cut_off(server: Server) -> None:
    paths = re.findall(rb'"path": "([^"]+)"', server.ask(*slow_requests(3)))
    assert paths == [b"/slow"] * 3 + [b"/"]


def slow_requests(n: int) -> list[bytes]:
    return [b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"] * n + [HEAD + b"Connection: close\r\n\r\n"]


def test_a_caller_that_does_not_read_is_closed_in_time(server: Server) -> None:
    before = server.peak()
    with server.connect() as link:
        link.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(3 * SECONDS)
        assert len(rest(link)) < 30_000_000
    assert server.peak() - before < FLAT


def test_a_caller_that_reads_slowly_gets_all(server: Server) -> None:
    with server.connect() as link:
        link.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        read = 0
        while piece := link.recv(1 << 20):
            read += len(piece)
            time.sleep(SECONDS / 50)
        assert read > 40_000_000


def test_a_few_requests_may_wait(server: Server) -> None:
    sent = b"".join(slow_requests(1)[:1] + [HEAD + b"\r\n"] * (MAX_WAITING - 1) + slow_requests(0))
    assert server.ask(sent).count(b"HTTP/1.1 200 OK") == MAX_WAITING + 1


def test_bodies_of_any_size_pass(server: Server) -> None:
    body = b"y" * (3 * MEGABYTE)
    head = POST + b"Connection: close\r\n"
    whole = server.ask(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    chunks = b"".join(b"%x;name=value\r\n%b\r\n" % (20_000, b"y" * 20_000) for _ in range(150))
    chunked = server.ask(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert b'"body": %d' % len(body) in whole
    assert b'"body": 3000000' in chunked


def test_a_trailer_is_not_a_header(server: Server) -> None:
    head = POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = server.ask(head + b"1\r\ny\r\n0\r\nAuthorization: Bearer z\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n")
    assert b'"headers": ["host", "connection", "transfer-encoding"], "body": 1' in answer


def test_an_upgrade_is_an_ordinary_request(server: Server) -> None:
    asked = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    with server.connect() as link:
        link.sendall(HEAD + asked + b"\r\n")
        assert link.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_connections_beyond_the_limit_are_closed_and_leave_room_for_files() -> None:
    # The server sets its own limit: a test run before this one may hold more than 100 files here.
    process, held = started("100")
    try:
        assert held.ask(HEAD + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")
        links = [held.connect() for _ in range(120)]
        began = time.monotonic()
        assert rest(links[-1]) == b""
        assert time.monotonic() - began < SECONDS
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 95
        for link in links:
            link.close()
        assert held.ask(HEAD + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        files = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    serve(int(sys.argv[1]))
