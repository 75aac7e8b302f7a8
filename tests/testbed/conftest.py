"""Captures of several workers take turns: the testbed allows one at a time on a machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rca.lab.testbed.process import ProcessTable


@pytest.fixture(scope="module", autouse=True)
def _one_module_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    base = tmp_path_factory.getbasetemp()
    # Each worker of pytest-xdist has a folder of its own in that of the run.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "captures.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def process_table(tmp_path: Path) -> Iterator[ProcessTable]:
    held = ProcessTable(tmp_path / "log")
    yield held
    held.end_all()
