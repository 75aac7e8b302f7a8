"""Agents in real ranks over gloo: all change sizes at the same step, and the update is that of one batch."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Not imported here: that takes seconds, and only the ranks need it.
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        find_spec("torch") is None, reason="torch is not installed: pip install torch==2.13.0"
    ),
]


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("ddp_ranks.py")), str(port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks: list[dict[str, Any]] = json.loads(done.stdout)
    return ranks


def test_all_ranks_change_sizes_at_the_same_step(seen: list[dict[str, Any]]) -> None:
    assert len(seen) == 3
    assert seen[0]["samples"] == seen[1]["samples"] == seen[2]["samples"]
    assert len(seen[0]["samples"]) == 14


def test_the_slow_rank_gets_fewer_samples(seen: list[dict[str, Any]]) -> None:
    first, last = seen[0]["samples"][0], seen[0]["samples"][-1]
    assert first == [8, 10, 6]
    assert sum(last) == 24
    # A third of the speed: 24 / 7 samples.
    assert 2 <= last[1] <= 5


def test_training_is_that_of_one_process_with_the_whole_batch(seen: list[dict[str, Any]]) -> None:
    assert all(rank["apart"] < 1e-12 for rank in seen)
