"""Processes for tests to supervise: ``python companions.py BEHAVIOUR [FOLDER] --report FD``."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rca_api.subprocess_rpc import REPORT, Owner


#: Command of a companion that behaves as named.
def command(behaviour: str) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), behaviour]


RESULT = {"version": 7}
#: File of a companion that has begun to write.
WRITING = "writing"


def echo(owner: Owner, _: Path) -> None:
    """Answer what is asked, as the registry's helper does; ``hang`` and ``die`` are done."""
    owner.tell({"ready": True})
    for message in owner.heard():
        if message["ask"] == "hang":
            time.sleep(60)
        if message["ask"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        owner.tell({"answer": message})


def echo_late(owner: Owner, _: Path) -> None:
    """As `echo`, after a start that takes longer than most questions wait; logs that it starts."""
    logging.basicConfig(stream=sys.stderr)
    logging.getLogger("helper").warning("the helper starts")
    time.sleep(1.5)
    echo(owner, Path())


def stall(_: Owner, __: Path) -> None:
    time.sleep(600)


def succeed(owner: Owner, _: Path) -> None:
    owner.tell({"phase": "fitting", "completed": 1, "total": 2})
    owner.tell({"may_write": True})
    owner.hear()
    owner.tell({"result": RESULT})


def fail(owner: Owner, _: Path) -> None:
    owner.tell({"problem": {"code": "invalid-input", "detail": "two windows are one"}})


def die(owner: Owner, _: Path) -> None:
    owner.tell({"phase": "fitting", "completed": 1, "total": 2})
    os.kill(os.getpid(), signal.SIGKILL)


def toil(owner: Owner, _: Path) -> None:
    """Work for ever, with a process of its own."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    owner.tell({"phase": "fitting", "completed": 1, "total": 2})
    time.sleep(600)


def write_slowly(owner: Owner, folder: Path) -> None:
    """Take a second to write to the registry."""
    _begin_to_write(owner, folder)
    time.sleep(1.0)
    owner.tell({"result": RESULT})


def write_for_ever(owner: Owner, folder: Path) -> None:
    _begin_to_write(owner, folder)
    time.sleep(600)


def _begin_to_write(owner: Owner, folder: Path) -> None:
    owner.tell({"may_write": True})
    owner.hear()
    (folder / WRITING).touch()


BEHAVIOURS = (echo, echo_late, stall, succeed, fail, die, toil, write_slowly, write_for_ever)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("behaviour")
    parser.add_argument("folder", nargs="?", type=Path, default=Path())
    parser.add_argument("--log-level")
    parser.add_argument(REPORT, type=int, required=True)
    given = parser.parse_args()
    behave = {each.__name__: each for each in BEHAVIOURS}[given.behaviour.replace("-", "_")]
    behave(Owner(given.report), given.folder)
