"""An HTTP server that receives a body and answers two bytes: the floor of any service on the same server."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def receiving_server() -> Iterator[str]:
    """Run the server on a free loopback port until the context ends; gives its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        # Connections queue from here on, so clients need not wait until the server is up.
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-m", "benchmarks.receiver", str(listener.fileno())]
        server = subprocess.Popen(command, pass_fds=[listener.fileno()], cwd=ROOT)
    try:
        yield url
    finally:
        server.terminate()
        server.wait()


async def receive_only(_scope: dict[str, Any], receive: Any, send: Any) -> None:
    """ASGI application: read the whole body, answer ``{}``."""
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


if __name__ == "__main__":
    config = uvicorn.Config(receive_only, log_config=None, access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
