"""Workers end with the process that started them, even if that is killed and can tell nobody."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SCRIPT = """
import os, sys, time
from rca.processes import pool

def told(folder):
    open(os.path.join(folder, str(os.getpid())), "w").close()

def slept(seconds):
    time.sleep(seconds)
    return seconds

if __name__ == "__main__":
    with pool(2, initializer=told, initargs=(sys.argv[1],)) as workers:
        list(workers.map(slept, [600.0, 600.0]))
"""


def running(process: int) -> bool:
    """Whether the process is there, and not merely waiting to be buried."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_workers_of_a_killed_process_end(tmp_path: Path) -> None:
    script, folder = tmp_path / "work.py", tmp_path / "workers"
    script.write_text(SCRIPT)
    folder.mkdir()
    with subprocess.Popen([sys.executable, str(script), str(folder)]) as parent:
        try:
            assert until(lambda: len(list(folder.iterdir())) == 2), "the workers did not start"
            workers = [int(place.name) for place in folder.iterdir()]
            assert all(map(running, workers))
        finally:
            parent.send_signal(signal.SIGKILL)
    assert until(lambda: not any(map(running, workers)))
