"""Backup workers in real ranks that share shards: each sample is in one update, whatever is dropped."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from rca.errors import InvalidInput
from rca.runtime.star.grouping import FirstReports, SeenTimes, XOrder


@pytest.mark.system
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: pip install torch==2.13.0")
def test_dropped_and_killed_workers_lose_and_repeat_no_sample(tmp_path: Path) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    script = Path(__file__).with_name("backup_ranks.py")
    command = [sys.executable, str(script), str(port), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert seen["codes"] == [0, 0, -signal.SIGKILL, 0]
    assert seen["server"]["lost"] == [2]
    assert seen["server"]["dropped"] > 0
    trained = [sample for batches in seen["trained"].values() for batch in batches for sample in batch]
    assert sorted(trained) == list(range(120))
    assert seen["server"]["samples"] == 120


def test_updates_wait_for_as_many_workers_as_make_most_progress() -> None:
    choose = FirstReports(most=1, every=2)

    def seen(last: float) -> SeenTimes:
        return SeenTimes(np.array([[float("nan")], [1.0], [1.0], [1.0], [last]]))

    assert choose(1, 4, seen(4.0)) is None
    assert choose(2, 8, seen(4.0)) == XOrder(3)
    # One in four samples is worth more than a tenth of the time.
    assert choose(2, 8, seen(1.1)) == XOrder(4)
    # With little noise, fewer samples do as well.
    assert FirstReports(1, batch=64.0, noise=1.0)(8, 32, seen(1.1)) == XOrder(3)
    with pytest.raises(InvalidInput, match="0 backup workers"):
        FirstReports(0)
