from __future__ import annotations

import pytest

import rca


@pytest.fixture(scope="session")
def bare_window():
    """A window's phases without any metric."""

    def strip(window: rca.Window) -> rca.Window:
        return rca.Window.from_tables(window.job, window.steps, None, window.events)

    return strip
