"""A service that is ready says where its page is."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
import uvicorn
from structlog.testing import capture_logs

from rca_api.shell.server import Server, page_url

pytestmark = [pytest.mark.system, pytest.mark.smoke]


async def _app(_scope: Any, _receive: Any, _send: Any) -> None:
    """Answers nothing: it is not asked."""


async def _started() -> int:
    config = uvicorn.Config(_app, host="127.0.0.1", port=0, lifespan="off", log_config=None)
    config.load()
    server = Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = int(server.servers[0].sockets[0].getsockname()[1])
    await server.shutdown()
    return port


@pytest.mark.parametrize("terminal", [True, False])
def test_the_address_of_the_page_is_logged_and_printed_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with capture_logs() as logs:
        port = asyncio.run(_started())
    url = f"http://127.0.0.1:{port}/ui"
    assert logs == [{"event": "ready", "url": url, "log_level": "info"}]
    assert (f"open {url}\n" in capsys.readouterr().err) is terminal


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("gpu-1", "gpu-1")],  # noqa: S104
)
def test_the_address_is_one_that_a_browser_takes(host: str, shown: str) -> None:
    assert page_url(host, 80) == f"http://{shown}:80/ui"
