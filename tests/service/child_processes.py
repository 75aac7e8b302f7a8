"""Programs and calls for tests to supervise; a module of its own, because child processes import it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from rca.errors import InvalidInput
from rca_api.models.bundle_trial import Hindered
from rca_api.shell.observability import logs
from rca_api.shell.processes.child_process import Parent, outcome
from rca_api.training_runs.task import Task

RESULT = {"version": 7}
#: File of a child that has begun to write.
WRITING = "writing"


# Calls of a child that serves: their first argument is its context.


def echo(context: Any, *given: Any) -> Any:
    return context, given


def command_line(context: Any) -> str:
    return Path("/proc/self/cmdline").read_text()


def give_a_lambda(context: Any) -> Any:
    return lambda: None


class Unreadable:
    """Can be pickled, but not be read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def give_what_cannot_be_read(context: Any) -> Unreadable:
    return Unreadable()


def divide_by_zero(context: Any) -> float:
    return 1 / 0


def log_as_the_service(context: Any) -> None:
    logs.configure("info")


def hang(context: Any) -> None:
    time.sleep(60)


def die(context: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


# Programs.


def serve(parent: Parent, *context: Any) -> None:
    parent.serve(context)


def serve_late(parent: Parent, *context: Any) -> None:
    """As `serve`, after a start that takes longer than most calls wait; logs that it starts."""
    logging.basicConfig(stream=sys.stderr)
    logging.getLogger("child").warning("the child starts")
    time.sleep(1.5)
    serve(parent, *context)


def stall(parent: Parent, *_: Any) -> None:
    time.sleep(600)


def break_down(parent: Parent, *_: Any) -> None:
    raise InvalidInput("no such setup")


def succeed(parent: Parent, task: Task) -> dict[str, int]:
    parent.send({"phase": "fitting", "completed": 1, "total": 2})
    parent.send({"may_write": True})
    parent.receive()
    return RESULT


def fail(parent: Parent, task: Task) -> None:
    raise InvalidInput("two windows are one")


def end(parent: Parent, task: Task) -> None:
    parent.send({"phase": "fitting", "completed": 1, "total": 2})
    die(None)


def toil(parent: Parent, *_: Any) -> None:
    """Work for ever, with a process of its own."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    parent.send({"phase": "fitting", "completed": 1, "total": 2})
    time.sleep(600)


def write_slowly(parent: Parent, task: Task) -> dict[str, int]:
    """Take a second to write to the registry."""
    _begin_to_write(parent, task)
    time.sleep(1.0)
    return RESULT


def write_for_ever(parent: Parent, task: Task) -> None:
    _begin_to_write(parent, task)
    time.sleep(600)


def _begin_to_write(parent: Parent, task: Task) -> None:
    parent.send({"may_write": True})
    parent.receive()
    (task.folder / WRITING).touch()


def try_and_die(parent: Parent, _: Any) -> None:
    parent.serve(None, run=lambda *_: outcome(die, None))


def try_for_ever(parent: Parent, _: Any) -> None:
    parent.serve(None, run=lambda *_: outcome(signal.pause))


def try_and_crash_with_a_log(parent: Parent, setup: Any) -> None:
    logs.configure("info")
    try_and_crash(parent, setup)


def try_and_crash(parent: Parent, _: Any) -> None:
    def crash() -> None:
        [][0]

    parent.serve(None, run=lambda *_: outcome(crash))


def try_and_be_hindered(parent: Parent, _: Any) -> None:
    def hinder() -> None:
        raise Hindered("OSError: too many open files")

    parent.serve(None, run=lambda *_: outcome(hinder))


def try_and_answer_in_a_later_format(parent: Parent, _: Any) -> None:
    parent.serve(None, run=lambda *_: outcome(str, '{"format": 3}'))


def task_in(folder: Path, **given: Any) -> Task:
    defaults = {"id": "0" * 32, "kind": "train", "tracking_uri": "http://registry", "processes": 1}
    more = {"folder": folder, "cache": folder, "gate_windows": 20, "patience_seconds": 100.0}
    return Task.model_validate(defaults | more | given)
