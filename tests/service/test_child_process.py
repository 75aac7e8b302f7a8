"""A child process and its parent: long messages, deadlines, and a parent that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from child_processes import command

from rca_api.shell.processes.child_process import UNEXPECTED, ChildProcess, JobFailed

pytestmark = [pytest.mark.system, pytest.mark.smoke]

#: Longer than a pipe holds.
LONG = "x" * 300_000
SERVES = """
import argparse
from rca_api.shell.processes.child_process import REPORT, Parent
parser = argparse.ArgumentParser()
parser.add_argument(REPORT, type=int)
Parent(parser.parse_args().report).serve({"set": lambda: {1, 2}, "bad": lambda: 1 / 0})
"""


@pytest.fixture
def started() -> Iterator[Callable[[list[str]], ChildProcess]]:
    children: list[ChildProcess] = []

    def start(arguments: list[str]) -> ChildProcess:
        children.append(ChildProcess(arguments))
        children[-1].await_ready(30.0)
        return children[-1]

    yield start
    for child in children:
        child.end()


def test_a_child_that_does_not_read_a_long_message_misses_the_deadline(started) -> None:
    child = started(command("echo"))
    os.kill(child.pid, signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        child.call("document", 1.0, text=LONG)
    assert time.monotonic() - begin < 10.0


def test_a_long_message_arrives(started) -> None:
    answer = started(command("echo")).call("document", 30.0, text=LONG)
    assert answer["arguments"]["text"] == LONG


def test_a_result_that_cannot_be_encoded_and_an_unknown_job_are_problems(started) -> None:
    child = started([sys.executable, "-c", SERVES])
    for job in ("set", "bad", "nothing"):
        with pytest.raises(JobFailed) as raised:
            child.call(job, 30.0)
        assert raised.value.code == UNEXPECTED


def test_a_child_ends_after_a_line_that_its_parent_could_not_finish() -> None:
    report, write = os.pipe()
    child = subprocess.Popen(
        [*command("echo"), "--report", str(write)],
        stdin=subprocess.PIPE,
        pass_fds=[write],
        start_new_session=True,
    )
    os.close(write)
    assert os.read(report, 100)
    assert child.stdin is not None
    child.stdin.write(b'{"job": "docu')
    child.stdin.close()
    assert child.wait(30) == -signal.SIGKILL
    os.close(report)
