"""Runs the service under uvicorn, and says where its page is as soon as it answers."""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Any

import structlog
import uvicorn

from rca_api.ui.endpoints import PATH

_log = structlog.stdlib.get_logger("rca_api.shell.server")
#: Exit code of a service that could not start, as uvicorn's own.
_START_FAILED = 3


class Server(uvicorn.Server):
    """A server that logs the address of the page, and prints it in a terminal."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer, then say where."""
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        url = page_url(self.config.host, port)
        _log.info("ready", url=url)
        if sys.stderr.isatty():
            # Readable between the JSON lines of the log.
            print(f"open {url}", file=sys.stderr, flush=True)


def run(app: str, **options: Any) -> None:
    """Serve until a signal ends it, like ``uvicorn.run``.

    Parameters
    ----------
    app : str
        Import path of the application or of its factory.
    **options
        Of ``uvicorn.Config``.
    """
    config = uvicorn.Config(app, **options)
    config.load_app()
    server = Server(config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(_START_FAILED)


def page_url(host: str, port: int) -> str:
    """Address of the page for a browser on this machine."""
    # A server that listens on all addresses answers on loopback as well.
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://{f'[{name}]' if ':' in name else name}:{port}{PATH}"
