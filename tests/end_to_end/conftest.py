from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

import rca
from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings


@pytest.fixture(scope="session")
def service() -> Iterator[TestClient]:
    """The service with its default settings and the shipped bundle."""
    with TestClient(create_app(Settings(processes=1)), raise_server_exceptions=False) as held:
        yield held


@pytest.fixture(scope="session")
def bare_window():
    """A window's phases without any metric."""

    def strip(window: rca.Window) -> rca.Window:
        return rca.Window.from_tables(window.job, window.steps, None, window.events)

    return strip
