"""The service on a real socket in this process, with keys, for a browser."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from test_model_endpoints import FakeRegistry, version

from rca_api.shell.app import create_app
from rca_api.shell.security import keys
from rca_api.shell.security.principal import Scope
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State


class Registry(FakeRegistry):
    """Version 1 is the champion, 2 the challenger that passed."""

    def __init__(self) -> None:
        super().__init__()
        self.held = {"1": version(1, aliases=["champion"]), "2": version(2, aliases=["challenger"])}

    def promote(self, name: str, by: str, force: str | None) -> dict[str, Any]:
        told = super().promote(name, by, force)
        if told["promoted"]:
            old = next(each for each in self.held.values() if "champion" in each["aliases"])
            old["aliases"], self.held[name]["aliases"] = ["previous"], ["champion"]
        return told


@contextmanager
def served(folder: Path, registry: Registry | None = None, **more: Any) -> Iterator[tuple[str, str]]:
    """Serve until the context ends; gives the address and a key with all scopes.

    `registry` takes the place of the one in the data folder, and `more` are settings.
    """
    if registry is not None:
        more |= {"tracking_uri": "http://registry", "follow_seconds": 0}
    settings = Settings(data_dir=folder, auth="keys", processes=1, log_level="error", **more)
    app = create_app(settings)
    if registry is not None:
        app.state.parts = replace(app.state.parts, registry=registry)
    parts: State = app.state.parts
    parts.database.upgrade()
    with parts.database.session() as session:
        _, key = keys.create(session, "on-call", frozenset({Scope.admin}), None)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", key
        finally:
            server.should_exit = True
            thread.join(30.0)
