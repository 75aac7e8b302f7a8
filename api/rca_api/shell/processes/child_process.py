"""Child processes of the service and of its workers: a function of a module runs in one, on a pipe.

Diagnoses, calls to the MLflow registry, the trial of a bundle and training run in a child process. Each of
them may hang, use all memory or have to be killed, which must not affect the process that waits.
A child leads a process group, so that killing it kills all that it started. When its parent is gone, a child
kills itself and its group.

A child runs ``program(parent, *arguments)``. Its last message is the `Reply` with what the program returned
or raised. A program that ends with `Parent.serve` answers the calls of its parent instead.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NoReturn

import structlog

from rca.errors import RcaError
from rca_api.shell.observability.tracing import Timed

#: The first message holds the import path, because programs may be in modules that only the parent finds.
_MAIN = "from rca_api.shell.processes.child_process import main; main()"
#: Message of a child that has taken a call.
_TAKEN = "taken"
#: A child that still runs so long after it has closed its pipe is killed.
_EXIT_SECONDS = 5.0
_STDERR = 2
# Of the standard library, because a program may log without structlog.
_log = logging.getLogger("rca_api")


class ChildEnded(Exception):
    """The child ended before it answered; the text says how.

    Attributes
    ----------
    at_work : bool
        Whether the child had taken a call.
    """

    def __init__(self, how: str, *, at_work: bool = False) -> None:
        super().__init__(how)
        self.at_work = at_work


@dataclass(frozen=True)
class Crash:
    """An unexpected exception, which the child has logged; its text may hold passwords."""

    kind: str
    text: str


@dataclass(frozen=True)
class Reply:
    """Outcome of a call or of a program: its value, its error, or an unexpected exception."""

    value: Any = None
    error: RcaError | None = None
    crash: Crash | None = None
    seconds: float = 0.0
    stages: dict[str, Timed] = field(default_factory=dict)


class ChildProcess:
    """The parent's end.

    Parameters
    ----------
    program : callable
        Function of a module that runs in the child; it gets a `Parent` and `arguments`.
    arguments
        Picklable. They are not on the command line, where other users see it: they may hold passwords.
    log : Path, optional
        File that the output of the child is appended to; standard error of this process if not given.
    """

    def __init__(self, program: Callable[..., Any], *arguments: Any, log: Path | None = None) -> None:
        self._pipe, theirs = Pipe()
        # For people who look at the list of processes.
        name = f"{program.__module__}.{program.__qualname__}"
        with theirs, log.open("ab") if log is not None else os.fdopen(os.dup(_STDERR), "ab") as output:
            self._process = subprocess.Popen(  # noqa: S603  (our own interpreter and function)
                [sys.executable, "-P", "-c", _MAIN, str(theirs.fileno()), name],
                # The child notices the end of its parent by the end of this pipe.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        #: What the child reported when it was ready, in a tuple; None before, see `await_ready`.
        self.ready: tuple[Any] | None = None
        self._ending = threading.Lock()
        self.send(sys.path)
        self.send((program, arguments))

    @property
    def pid(self) -> int:
        """Process id of the child, and id of its group."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send a message; if the child has ended, `receive` notices it."""
        with suppress(OSError):
            self._pipe.send(message)

    def receive(self, timeout: float | None = None) -> Any:
        """Wait `timeout` seconds for the next message.

        Raises
        ------
        TimeoutError
            If none came in time.
        ChildEnded
        """
        with suppress(EOFError, ConnectionError):
            if self._pipe.poll(timeout):
                return self._received()
            # A process that the child forked may hold the pipe open.
            if self._process.poll() is None:
                raise TimeoutError
        raise ChildEnded(how_ended(self._status()))

    def await_ready(self, timeout: float) -> Any:
        """Wait `timeout` seconds until the child serves calls; gives what it reported.

        Raises
        ------
        TimeoutError
            If it is not ready in time; it goes on starting.
        ChildEnded
        """
        if self.ready is None:
            message = self.receive(timeout)
            if isinstance(message, Reply):
                raise ChildEnded(str(message.error or message.crash))
            self.ready = (message,)
        return self.ready[0]

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        timeout: float | None = None,
        ids: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Have the child run ``function(context, *arguments)``, where the context is that of `Parent.serve`.

        Parameters
        ----------
        ids : mapping, optional
            Ids for the log lines of the child meanwhile.

        Raises
        ------
        TimeoutError
            If there is no answer within `timeout` seconds; the child is killed.
        ChildEnded
        """
        late, taken = threading.Event(), False
        with self._killed_after(timeout, late):
            try:
                self.send((function, arguments, ids or {}))
                taken = self.receive() == _TAKEN
                reply: Reply = self.receive()
            except ChildEnded as error:
                if not late.is_set():
                    raise ChildEnded(str(error), at_work=taken) from error
        if late.is_set():
            raise TimeoutError
        return reply

    def end(self) -> None:
        """Kill the child and all it has started."""
        self._kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _received(self) -> Any:
        content = self._pipe.recv_bytes()
        try:
            return ForkingPickler.loads(content)
        except Exception as error:
            raise ChildEnded(f"an answer that cannot be read: {type(error).__name__}: {error}") from error

    @contextmanager
    def _killed_after(self, timeout: float | None, late: threading.Event) -> Iterator[None]:
        """Kill the child after `timeout` seconds. That also ends a long message that it does not read."""

        def kill() -> None:
            late.set()
            self._kill()

        timer = threading.Timer(timeout or 0.0, kill)
        timer.daemon = True
        if timeout is not None:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _status(self) -> int:
        """Exit status of a child that has closed its pipe."""
        try:
            return self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            return self._process.wait()
        finally:
            # At once, for what it has started: later the number may be that of another process.
            self._kill()

    def _kill(self) -> None:
        # Once: afterwards the number may be that of another process.
        if self._ending.acquire(blocking=False):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def how_ended(code: int) -> str:
    """The end of a process in words, from its exit code, which is negative for a signal."""
    if code >= 0:
        return f"exit code {code}"
    cause = ", which the kernel sends when memory runs out" if -code == signal.SIGKILL else ""
    return f"signal {-code} ({signal.strsignal(-code)}){cause}"


class Parent:
    """The child's end."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """Send a message, from any thread."""
        with self._sending:
            self._pipe.send(message)

    def receive(self) -> Any:
        """Wait for the parent's next message."""
        return ForkingPickler.loads(self._content())

    def serve(self, context: Any, ready: Any = None, run: Callable[..., Reply] | None = None) -> None:
        """Report that the child is ready, then run what the parent calls, until the parent ends.

        Parameters
        ----------
        context
            First argument of each function that is called.
        ready
            What `ChildProcess.await_ready` gives.
        run : callable
            Runs a call in place of `outcome`.
        """
        self.send(ready)
        while True:
            content = self._content()
            self.send(_TAKEN)
            try:
                function, arguments, ids = ForkingPickler.loads(content)
                with structlog.contextvars.bound_contextvars(**ids):
                    self.send((run or outcome)(function, context, *arguments))
            except Exception as error:
                # An unknown function, or a result that cannot be sent.
                self.send(_crashed("a call", error))

    def _content(self) -> bytes:
        try:
            return self._pipe.recv_bytes()
        except EOFError:
            _end_this_group()


def outcome(function: Callable[..., Any], *arguments: Any) -> Reply:
    """Run a function; unexpected exceptions are logged."""
    began = time.perf_counter()
    try:
        return Reply(function(*arguments), seconds=time.perf_counter() - began)
    except RcaError as error:
        reply = Reply(error=error.with_traceback(None))
    except Exception as error:
        reply = _crashed(function.__name__, error)
    return replace(reply, seconds=time.perf_counter() - began)


def main() -> None:
    """Run the program that the parent names."""
    descriptor = int(sys.argv[1])
    # Processes that the child starts must not hold the pipe open.
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_with_the_parent, daemon=True, name="parent").start()
    parent = Parent(Connection(descriptor))
    sys.path[:] = parent.receive()
    program, arguments = parent.receive()
    parent.send(outcome(program, parent, *arguments))


def _crashed(what: str, error: Exception) -> Reply:
    _log.error("%s failed unexpectedly", what, exc_info=error)
    return Reply(crash=Crash(type(error).__name__, str(error)))


def _end_with_the_parent() -> None:
    # Not by `sys.stdin`, whose lock processes that the child forks would find taken.
    os.read(0, 1)
    _end_this_group()


def _end_this_group() -> NoReturn:
    os.killpg(0, signal.SIGKILL)
    raise SystemExit
