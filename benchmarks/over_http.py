"""Latency over a real socket: keep-alive POSTs to the service, compared with a server that does nothing.

`benchmarks.diagnosis` runs it in a new process. Client and server share its core, and the peak memory is of
one size only. It prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.measure import Budget, child_processes, peak_memory, repeat, summary
from benchmarks.receiver import receiving_server
from rca.window.encodings import arrow
from rca_api.shell.demo import running_service

PATH = "/v1/diagnoses"


class Caller:
    """One keep-alive connection that posts the same body again and again."""

    def __init__(self, url: str, body: bytes) -> None:
        at = urlsplit(url)
        self._connection = HTTPConnection(at.hostname or "127.0.0.1", at.port, timeout=120)
        self._connection.connect()
        # A client that leaves Nagle's algorithm on measures delayed acknowledgements.
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._body = body
        kind = "application/json" if body.startswith(b"{") else arrow.CONTENT_TYPE
        self._headers = {"Content-Type": kind, "Accept": "application/json"}

    def post(self) -> None:
        """One request and its whole answer."""
        self._connection.request("POST", PATH, self._body, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"HTTP {answer.status}: {content[:500].decode(errors='replace')}")


def measured(body: bytes, budget: Budget) -> dict[str, Any]:
    """Seconds per request to the service and to a server that only receives; the service's peak memory."""
    others = set(child_processes())
    with running_service() as url:
        [server] = set(child_processes()) - others
        post = Caller(url, body).post
        post()
        service = summary(repeat(post, budget))
        # The API process and those that compute: each one's own peak, so what is shared counts twice.
        peak = sum(peak_memory(each) for each in (server, *child_processes(server)))
    with receiving_server() as url:
        post = Caller(url, body).post
        post()
        floor = summary(repeat(post, budget))
    return {"service": service, "receive_only": floor, "memory_peak_bytes": peak}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("body", type=Path)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--least", type=int, default=5)
    given = parser.parse_args()
    if given.bundle:
        os.environ["RCA_BUNDLE"] = str(given.bundle.resolve())
    json.dump(measured(given.body.read_bytes(), Budget(given.seconds, given.least)), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
