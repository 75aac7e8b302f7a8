"""A service that notes what it gets, and can be away, refuse or hang."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ServiceStub:
    """Requests by path; every request is answered with `status`, after `held` is set."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str | None, Any]] = []
        self.status = 200
        #: Status by the body of a request, and how many were refused by it.
        self.refuse: Callable[[Any], int] = lambda _: 200
        self.n_refused = 0
        self.held = threading.Event()
        self.held.set()
        self._changed = threading.Condition()
        self.url = ""

    def take(self, path: str, key: str | None, body: bytes) -> int:
        self.held.wait(20)
        with self._changed:
            document = json.loads(body) if body else None
            refused = 200 if document is None else self.refuse(document)
            if refused != 200:
                self.n_refused += 1
            elif self.status == 200:
                self.requests.append((path, key, document))
            self._changed.notify_all()
            return max(refused, self.status)

    def until(self, enough: Callable[[], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(enough, timeout=20)

    def steps(self) -> list[int]:
        """Finished steps that arrived, in the order of their arrival."""
        documents = [body["steps"] for _, _, body in self.requests if body and "steps" in body]
        return [
            step
            for each in documents
            for step, seconds in zip(each["step"], each["step_seconds"], strict=True)
            if seconds is not None
        ]


@contextmanager
def serving(port: int = 0) -> Iterator[ServiceStub]:
    stub = ServiceStub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = stub.take(self.path, self.headers.get("Authorization"), body)
            content = b'{"detail": "as the test wants it"}'
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
