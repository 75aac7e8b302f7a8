"""A service in processes of its own, and keep-alive connections to it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import orjson

from benchmarks.measure import child_processes
from rca_api.shell.demo import running_service


@contextmanager
def started_service(settings: Mapping[str, str] | None = None) -> Iterator[tuple[str, int]]:
    """Run a service with these ``RCA_*`` variables; gives its address and the id of its API process."""
    others = set(child_processes())
    with running_service(settings=settings) as url:
        [server] = set(child_processes()) - others
        yield url, server


class ServiceConnection:
    """One keep-alive connection."""

    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self._held = HTTPConnection(at.hostname or "127.0.0.1", at.port, timeout=120)

    def ask(
        self, method: str, path: str, body: bytes | Sequence[bytes] | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and document of one answer; headers have ``_`` for ``-``."""
        if self._held.sock is None:
            self._held.connect()
            # A client that leaves Nagle's algorithm on measures delayed acknowledgements.
            self._held.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._held.request(
            method, path, body, {name.replace("_", "-"): held for name, held in headers.items()}
        )
        answer = self._held.getresponse()
        return answer.status, orjson.loads(answer.read())

    def close(self) -> None:
        """Open it anew for the next request."""
        self._held.close()
