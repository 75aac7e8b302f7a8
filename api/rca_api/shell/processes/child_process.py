"""Child processes of the service and of its workers: JSON lines over two pipes.

Three kinds of work run in a child process: calls to the MLflow registry, the trial of a bundle, and training.
Each of them may hang, use all memory or have to be killed, which must not affect the process that waits.
A child leads a process group, so that killing it kills all that it started. When its parent is gone, a child
kills itself and its group.

A child that serves jobs sends ``{"ready": true}`` first. Each message it then gets is
``{"job": name, "arguments": {...}}``. It answers each with ``{"result": ...}`` or with
``{"problem": {"code", "detail", "hint", "reason"}}``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import orjson
import structlog

from rca.errors import RcaError

Message = dict[str, Any]
#: Option that gives a child the file descriptor to write its messages to.
REPORT = "--report"
#: Problem code of a job that failed with an unexpected exception.
UNEXPECTED = "internal-error"
_STDERR = 2
_log = structlog.stdlib.get_logger("rca_api")


class ChildEnded(Exception):
    """The child ended before it answered."""


class JobFailed(Exception):
    """The child answered a call with a problem.

    Attributes
    ----------
    reason : str
        Text of an unexpected exception, for logs; it may hold passwords.
    """

    def __init__(self, code: str, detail: str, hint: str | None = None, reason: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint
        self.reason = reason


class ChildProcess:
    """The parent's end.

    Parameters
    ----------
    command : sequence of str
        Starts a process that uses `Parent`; the option `REPORT` is appended.
    log : Path, optional
        File that the output of the child is appended to; standard error of this process if not given.
    """

    def __init__(self, command: Sequence[str], log: Path | None = None) -> None:
        messages, report = os.pipe()
        with log.open("ab") if log is not None else os.fdopen(os.dup(_STDERR), "ab") as output:
            try:
                self._process = subprocess.Popen(  # noqa: S603  (our own interpreter and modules)
                    [*command, REPORT, str(report)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=[report],
                    start_new_session=True,
                )
            except OSError:
                os.close(messages)
                raise
            finally:
                os.close(report)
        #: Whether the child has sent its ready message, see `await_ready`.
        self.ready = False
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(messages,), daemon=True, name="child")
        self._reader.start()

    def send(self, message: Message) -> None:
        """Write a message; if the child has ended, `receive` notices it."""
        pipe = self._process.stdin
        with suppress(OSError, ValueError):
            if pipe is not None:
                pipe.write(orjson.dumps(message) + b"\n")
                pipe.flush()

    def receive(self, timeout: float) -> Message | None:
        """Wait `timeout` seconds for the next message.

        Raises
        ------
        TimeoutError
            If none came in time.

        Returns
        -------
        dict or None
            None once the child has ended.
        """
        try:
            message = self._messages.get(timeout=timeout)
        except Empty:
            raise TimeoutError from None
        if message is None:
            # Every later call has to return None as well.
            self._messages.put(None)
        return message

    def await_ready(self, timeout: float) -> None:
        """Wait `timeout` seconds until the child is ready to serve jobs.

        Raises
        ------
        TimeoutError
            If it is not ready in time; it goes on starting.
        ChildEnded
        """
        if not self.ready:
            self._required(timeout)
            self.ready = True

    def call(self, job: str, timeout: float, **arguments: Any) -> Any:
        """Have the child do a job, and give its result.

        Raises
        ------
        TimeoutError
            If there is no answer within `timeout` seconds. The child is of no more use then: its late answer
            would be taken for that of the next call.
        ChildEnded
        JobFailed
        """
        deadline = time.monotonic() + timeout
        # A child that does not read blocks a long message, so it is written by a thread of its own.
        message = {"job": job, "arguments": arguments}
        writer = threading.Thread(target=self.send, args=(message,), daemon=True, name="call")
        writer.start()
        writer.join(timeout)
        if writer.is_alive():
            raise TimeoutError
        answer = self._required(max(deadline - time.monotonic(), 0.0))
        if "problem" in answer:
            raise JobFailed(**answer["problem"])
        return answer["result"]

    @property
    def pid(self) -> int:
        """Process id of the child, and id of its group."""
        return self._process.pid

    def end(self) -> int:
        """Kill the child and all it has started; gives its exit status, negative for a signal."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._reader.join()
        return status

    def _required(self, timeout: float) -> Message:
        message = self.receive(timeout)
        if message is None:
            raise ChildEnded(f"exit status {self._process.wait()}")
        return message

    def _read(self, messages: int) -> None:
        with os.fdopen(messages, "rb") as lines:
            for line in lines:
                # A line that the end of the child cut off is no message.
                with suppress(orjson.JSONDecodeError):
                    self._messages.put(orjson.loads(line))
        self._messages.put(None)


class Parent:
    """The child's end.

    Parameters
    ----------
    report : int
        File descriptor to write messages to.
    """

    def __init__(self, report: int) -> None:
        # Processes that the child starts must not hold this pipe open.
        os.set_inheritable(report, False)
        self._report = os.fdopen(report, "wb", buffering=0)
        self._lock = threading.Lock()
        self._messages: SimpleQueue[Message] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True, name="parent").start()

    def send(self, message: Message) -> None:
        """Send a message, from any thread."""
        with self._lock:
            self._report.write(orjson.dumps(message) + b"\n")

    def receive(self) -> Message:
        """Wait for the parent's next message."""
        return self._messages.get()

    def serve(self, jobs: Mapping[str, Callable[..., Any]]) -> None:
        """Report that the child is ready, then do the jobs that the parent calls, until the parent ends."""
        self.send({"ready": True})
        while True:
            self._answer(jobs, self.receive())

    def _answer(self, jobs: Mapping[str, Callable[..., Any]], message: Message) -> None:
        """Do the job of a call and send its result; also what cannot be encoded becomes a problem."""
        try:
            self.send({"result": jobs[message["job"]](**message["arguments"])})
        except RcaError as error:
            self.send({"problem": {"code": error.code, "detail": error.message, "hint": error.hint}})
        except Exception as error:
            _log.exception("a job of a child process failed", job=message.get("job"))
            detail = f"unexpected {type(error).__name__}"
            reason = str(error).encode(errors="replace").decode()
            self.send({"problem": {"code": UNEXPECTED, "detail": detail, "reason": reason}})

    def _listen(self) -> None:
        try:
            for line in sys.stdin.buffer:
                self._messages.put(orjson.loads(line))
        finally:
            # Also after a line that the end of the parent cut off.
            os.killpg(0, signal.SIGKILL)
