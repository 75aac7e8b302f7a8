"""Processes for tests to supervise: ``python child_processes.py BEHAVIOUR [FOLDER] --report FD``."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rca_api.models.bundle_check import Hindered
from rca_api.shell.processes.child_process import REPORT, Parent


#: Command of a child that behaves as named.
def command(behaviour: str) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), behaviour]


RESULT = {"version": 7}
#: File of a child that has begun to write.
WRITING = "writing"


def echo(parent: Parent, _: Path) -> None:
    """Give every call back as its result; the jobs ``hang`` and ``die`` do what they say."""
    parent.send({"ready": True})
    while True:
        act(parent, parent.receive())


def act(parent: Parent, message: dict[str, Any]) -> None:
    if message["job"] == "hang":
        time.sleep(60)
    if message["job"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    parent.send({"result": message})


def echo_after_setup(parent: Parent, _: Path) -> None:
    """As `echo`, after a first message, which the job ``setup`` gives back together with the command line."""
    setup = parent.receive()
    parent.send({"ready": True})
    while True:
        message = parent.receive()
        if message["job"] != "setup":
            act(parent, message)
        else:
            parent.send({"result": {"setup": setup, "command": Path("/proc/self/cmdline").read_text()}})


def echo_late(parent: Parent, _: Path) -> None:
    """As `echo_after_setup`, after a start that takes longer than most calls wait; logs that it starts."""
    logging.basicConfig(stream=sys.stderr)
    logging.getLogger("child").warning("the child starts")
    time.sleep(1.5)
    echo_after_setup(parent, Path())


def stall(_: Parent, __: Path) -> None:
    time.sleep(600)


def succeed(parent: Parent, _: Path) -> None:
    parent.send({"phase": "fitting", "completed": 1, "total": 2})
    parent.send({"may_write": True})
    parent.receive()
    parent.send({"result": RESULT})


def fail(parent: Parent, _: Path) -> None:
    parent.send({"problem": {"code": "invalid-input", "detail": "two windows are one"}})


def die(parent: Parent, _: Path) -> None:
    parent.send({"phase": "fitting", "completed": 1, "total": 2})
    os.kill(os.getpid(), signal.SIGKILL)


def toil(parent: Parent, _: Path) -> None:
    """Work for ever, with a process of its own."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    parent.send({"phase": "fitting", "completed": 1, "total": 2})
    time.sleep(600)


def write_slowly(parent: Parent, folder: Path) -> None:
    """Take a second to write to the registry."""
    _begin_to_write(parent, folder)
    time.sleep(1.0)
    parent.send({"result": RESULT})


def write_for_ever(parent: Parent, folder: Path) -> None:
    _begin_to_write(parent, folder)
    time.sleep(600)


def _begin_to_write(parent: Parent, folder: Path) -> None:
    parent.send({"may_write": True})
    parent.receive()
    (folder / WRITING).touch()


def try_and_die(parent: Parent, _: Path) -> None:
    _serve_trials(parent, lambda: os.kill(os.getpid(), signal.SIGKILL))


def try_for_ever(parent: Parent, _: Path) -> None:
    _serve_trials(parent, signal.pause)


def try_and_crash(parent: Parent, _: Path) -> None:
    _serve_trials(parent, lambda: [][0])


def try_and_be_hindered(parent: Parent, _: Path) -> None:
    def hinder() -> None:
        raise Hindered("OSError: too many open files")

    _serve_trials(parent, hinder)


def try_and_answer_in_a_later_format(parent: Parent, _: Path) -> None:
    _serve_trials(parent, lambda: '{"format": 3}')


def _serve_trials(parent: Parent, act: Callable[[], object]) -> None:
    """Get the setup of a trial, then answer each diagnosis with `act`."""
    parent.receive()
    parent.serve({"diagnose": lambda **_: act()})


BEHAVIOURS = (
    echo,
    echo_after_setup,
    echo_late,
    stall,
    succeed,
    fail,
    die,
    toil,
    write_slowly,
    write_for_ever,
    try_and_die,
    try_for_ever,
    try_and_crash,
    try_and_be_hindered,
    try_and_answer_in_a_later_format,
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("behaviour")
    parser.add_argument("folder", nargs="?", type=Path, default=Path())
    parser.add_argument(REPORT, type=int, required=True)
    given = parser.parse_args()
    behave = {each.__name__: each for each in BEHAVIOURS}[given.behaviour.replace("-", "_")]
    behave(Parent(given.report), given.folder)
