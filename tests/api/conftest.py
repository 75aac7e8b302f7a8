"""A running app, and small windows to post to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings


@pytest.fixture(scope="session")
def client() -> Iterator[TestClient]:
    """The service as an operator gets it: shipped bundle, and a database and windows of its own."""
    with TestClient(create_app(Settings(processes=1)), raise_server_exceptions=False) as held:
        yield held


@pytest.fixture(scope="session")
def small_client() -> Iterator[TestClient]:
    """A service with limits small enough to be reached in a test."""
    settings = Settings(processes=1, max_body_bytes=50_000, max_decoded_bytes=80_000)
    with TestClient(create_app(settings), raise_server_exceptions=False) as held:
        yield held
