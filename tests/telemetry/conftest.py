"""Prometheus without pauses between attempts, and without credentials of the user who runs the tests."""

from __future__ import annotations

import pytest

from rca.sources.prometheus import client, credentials


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses between attempts are listed, not waited for."""
    waited: list[float] = []
    monkeypatch.setattr(client, "sleep", waited.append)
    for name in (credentials.TOKEN, credentials.USER, credentials.PASSWORD):
        monkeypatch.delenv(name, raising=False)
    return waited
