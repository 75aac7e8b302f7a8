"""A child process and its parent: long messages, deadlines, ends, and a parent that is gone."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import child_processes
import pytest
from watched import until

from rca_api.shell.processes.child_process import ChildEnded, ChildProcess

pytestmark = [pytest.mark.system, pytest.mark.smoke]

#: Longer than a pipe holds.
LONG = "x" * 1_000_000
Start = Callable[..., ChildProcess]


@pytest.fixture
def started() -> Iterator[Start]:
    children: list[ChildProcess] = []

    def start(*context: Any) -> ChildProcess:
        children.append(ChildProcess(child_processes.serve, *context))
        children[-1].await_ready(30.0)
        return children[-1]

    yield start
    for child in children:
        child.end()


def test_a_child_that_does_not_read_a_long_message_misses_the_deadline(started: Start) -> None:
    child = started()
    os.kill(child.pid, signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        child.call(child_processes.echo, LONG, timeout=0.5)
    assert time.monotonic() - begin < 10.0


def test_a_long_message_arrives_and_its_answer_comes_back(started: Start) -> None:
    reply = started("context").call(child_processes.echo, LONG, timeout=30.0)
    assert reply.value == (("context",), (LONG,))
    assert reply.seconds > 0


def test_what_a_child_cannot_do_send_or_read_is_a_crash_and_the_child_goes_on(started: Start) -> None:
    child = started()
    for function, arguments, kind in (
        (child_processes.divide_by_zero, (), "ZeroDivisionError"),
        (child_processes.give_a_lambda, (), "PicklingError|AttributeError"),
        (child_processes.echo, (child_processes.Unreadable(),), "ValueError"),
    ):
        crash = child.call(function, *arguments, timeout=30.0).crash
        assert crash is not None
        assert crash.kind in kind
    assert child.call(child_processes.echo, timeout=30.0).value == ((), ())


def test_a_result_that_the_parent_cannot_read_is_no_answer(started: Start) -> None:
    with pytest.raises(ChildEnded, match="cannot be read: ValueError"):
        started().call(child_processes.give_what_cannot_be_read, timeout=30.0)


def test_an_end_during_a_call_differs_from_one_before_it(started: Start) -> None:
    with pytest.raises(ChildEnded, match="signal 9") as during:
        started().call(child_processes.die, timeout=30.0)
    assert during.value.at_work
    idle = started()
    os.kill(idle.pid, signal.SIGKILL)
    with pytest.raises(ChildEnded, match=r"signal 9 \(Killed\)") as before:
        idle.call(child_processes.echo, timeout=30.0)
    assert not before.value.at_work


def test_ending_a_child_ends_the_call_of_another_thread(started: Start) -> None:
    child = started()
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(ChildEnded):
            child.call(child_processes.hang)
        ended.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    child.end()
    assert ended.wait(10.0)
    waiting.join()
    child.end()


def test_a_program_that_fails_at_its_start_gives_the_reason() -> None:
    child = ChildProcess(child_processes.break_down)
    with pytest.raises(ChildEnded, match="no such setup"):
        child.await_ready(30.0)
    child.end()


def test_a_child_whose_parent_forgets_it_ends() -> None:
    child = ChildProcess(child_processes.stall)
    stdin = child._process.stdin
    assert stdin is not None
    stdin.close()
    until(lambda: child._process.poll() is not None)
    assert child._process.returncode == -signal.SIGKILL
    child.end()


def test_the_log_of_a_crash_has_the_ids_of_the_call(
    started: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    child = started()
    child.call(child_processes.log_as_the_service, timeout=30.0)
    child.call(child_processes.divide_by_zero, timeout=30.0, ids={"request_id": "r7"})
    logged = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert logged["request_id"] == "r7"
    assert logged["event"] == "divide_by_zero failed unexpectedly"
    assert "ZeroDivisionError" in logged["exception"]
