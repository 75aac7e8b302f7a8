"""Tasks that go wrong in every way; a module of its own, because processes of the pool import it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from rca.errors import InvalidWindow
from rca_api.shell.processes.process import Context


def process_id(context: Context) -> int:
    return os.getpid()


def end_the_process(context: Context, tally: Path, deaths: int) -> int:
    """End this process as the kernel does when memory runs out, the first `deaths` times."""
    with tally.open("a") as file:
        file.write("x")
    if tally.stat().st_size <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return tally.stat().st_size


def take_seconds(context: Context, seconds: float) -> None:
    time.sleep(seconds)


def refuse(context: Context) -> None:
    raise InvalidWindow(
        "is negative", table="steps", column="gc_seconds", rows=[{"row": 3}], n_rows=7, expected="time"
    )


def fail(context: Context) -> None:
    raise RuntimeError("secret at /srv/bundle")
