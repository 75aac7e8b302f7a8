"""A process of our own at the other end of two pipes, talking in lines of JSON.

For what must not happen in the process that answers requests: MLflow's imports and its calls that hang, and
trainings that have to be ended in the middle of a fit. The companion leads a process group, so ending it ends
whatever it has started; and it ends itself, with its group, when its owner is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import orjson

Message = dict[str, Any]
#: What a module run as a companion is started with, before its own arguments.
REPORT = "--report"
_STDERR = 2


class Companion:
    """The owner's end.

    Parameters
    ----------
    command : sequence of str
        Of a process that uses `Owner`; where to report to is appended.
    log : Path, optional
        File that its output is appended to; where our own errors go if not given.
    """

    def __init__(self, command: Sequence[str], log: Path | None = None) -> None:
        told, report = os.pipe()
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
                os.close(told)
                raise
            finally:
                os.close(report)
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(told,), daemon=True, name="companion")
        self._reader.start()

    def send(self, message: Message) -> None:
        """Write a line; one that cannot be read any more is noticed by `next`."""
        pipe = self._process.stdin
        with suppress(OSError, ValueError):
            if pipe is not None:
                pipe.write(orjson.dumps(message) + b"\n")
                pipe.flush()

    def next(self, timeout: float) -> Message | None:
        """Wait for its next message.

        Raises
        ------
        TimeoutError
            If none came in time.

        Returns
        -------
        dict or None
            None once it has ended.
        """
        try:
            message = self._messages.get(timeout=timeout)
        except Empty:
            raise TimeoutError from None
        if message is None:
            # Stays so, however often it is asked.
            self._messages.put(None)
        return message

    @property
    def pid(self) -> int:
        """Its process id, and that of its group."""
        return self._process.pid

    def end(self) -> int:
        """Kill it and all it has started; its exit status, negative for a signal."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._reader.join()
        return status

    def _read(self, told: int) -> None:
        with os.fdopen(told, "rb") as lines:
            for line in lines:
                # A line cut off by its end is no message.
                with suppress(orjson.JSONDecodeError):
                    self._messages.put(orjson.loads(line))
        self._messages.put(None)


class Owner:
    """The companion's end: who started it, and what that says.

    Parameters
    ----------
    report : int
        File descriptor to write messages to.
    """

    def __init__(self, report: int) -> None:
        # What it starts itself must not hold the owner's pipe open.
        os.set_inheritable(report, False)
        self._report = os.fdopen(report, "wb", buffering=0)
        self._lock = threading.Lock()
        self._heard: SimpleQueue[Message] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True, name="owner").start()

    def tell(self, message: Message) -> None:
        """Send a message, from any thread."""
        with self._lock:
            self._report.write(orjson.dumps(message) + b"\n")

    def hear(self) -> Message:
        """Wait for the owner's next message."""
        return self._heard.get()

    def heard(self) -> Iterator[Message]:
        """All the owner ever says."""
        while True:
            yield self.hear()

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            self._heard.put(orjson.loads(line))
        os.killpg(0, signal.SIGKILL)
