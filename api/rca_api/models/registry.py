"""Client of the model registry: calls to a child process, each with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rca.errors import SourceError
from rca_api.models import registry_process
from rca_api.shell.processes.child_process import ChildEnded, ChildProcess, Reply

#: A child that is not ready by then is replaced. Importing MLflow from a cold disk takes minutes.
_REGISTRY_START_SECONDS = 600.0
#: A child that gets no call for so long is ended; the next call starts another.
_IDLE_SECONDS = 300.0
Result = TypeVar("Result")


class RegistryAway(SourceError):
    """The registry did not answer, or not in time."""

    code = "registry-unavailable"


class RegistryClient:
    """Calls to the registry from any thread, one at a time.

    Parameters
    ----------
    uri : str
        MLflow tracking URI.
    timeout_seconds : float
        For one call, including the wait for other calls and for a child that starts. A child that is still
        starting then is kept for the next call.
    log_level : str
        Of the child, which logs to standard error of this process.
    """

    def __init__(
        self,
        uri: str,
        timeout_seconds: float,
        log_level: str = "info",
        program: Callable[..., None] = registry_process.serve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.uri = uri
        self._timeout = timeout_seconds
        self._program = program
        self._log_level = log_level
        self._clock = clock
        self._turn = threading.Lock()
        self._child: ChildProcess | None = None
        self._started = 0.0
        self._last_call = 0.0

    def versions(self) -> list[dict[str, Any]]:
        """Every version, the newest first."""
        return self._call(registry_process.versions)

    def version(self, name: str) -> dict[str, Any] | None:
        """One version by number or alias."""
        return self._call(registry_process.version, name)

    def card(self, name: str) -> str | None:
        """The model card of a version; None if there is no such version."""
        return self._call(registry_process.card, name)

    def aliases(self) -> dict[str, dict[str, Any]]:
        """Version and digest behind each alias."""
        return self._call(registry_process.aliases)

    def fetch(self, number: int, output: Path) -> None:
        """Copy a version's bundle to a folder."""
        self._call(registry_process.fetch, str(number), str(output))

    def promote(self, name: str, by: str, force: str | None) -> dict[str, Any]:
        """Promote by the kept verdict."""
        return self._call(registry_process.promote, name, by, force)

    def rollback(self, reason: str, expected: int) -> dict[str, Any]:
        """Move the champion back, if it still is the expected one."""
        return self._call(registry_process.rollback, reason, expected)

    def retry(self, name: str) -> dict[str, Any]:
        """Have every replica that follows the registry try a version again."""
        return self._call(registry_process.retry, name)

    def rest(self) -> None:
        """End a child that has been idle for long."""
        if self._clock() - self._last_call > _IDLE_SECONDS and self._turn.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._turn.release()

    def close(self) -> None:
        """End the child at once; a call in progress fails."""
        child = self._child
        if child is not None:
            child.end()

    def _call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        deadline = self._clock() + self._timeout
        if not self._turn.acquire(timeout=self._timeout):
            raise RegistryAway("the registry is busy with other calls")
        try:
            self._last_call = self._clock()
            child, timeout = self._ready_child(deadline), self._left(deadline)
            try:
                reply = child.call(function, *arguments, timeout=timeout)
            except TimeoutError:
                self._end()
                raise RegistryAway(f"the registry did not answer within {timeout:.0f} s") from None
            found: Result = _result(reply)
            return found
        except ChildEnded:
            self._end()
            raise RegistryAway("the process that talks to the registry died") from None
        finally:
            self._turn.release()

    def _left(self, deadline: float) -> float:
        return max(0.1, deadline - self._clock())

    def _ready_child(self, deadline: float) -> ChildProcess:
        if self._child is None:
            self._child = ChildProcess(self._program, self.uri, self._log_level)
            self._started = self._clock()
        try:
            self._child.await_ready(self._left(deadline))
        except TimeoutError:
            if self._clock() - self._started > _REGISTRY_START_SECONDS:
                self._end()
            raise RegistryAway("the process that talks to the registry is still starting") from None
        return self._child

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


def _result(reply: Reply) -> Any:
    if reply.crash is not None:
        # Its text stays in the log: it may hold the registry's password.
        raise RegistryAway(f"unexpected {reply.crash.kind}")
    if reply.error is None:
        return reply.value
    if reply.error.code == SourceError.code:
        raise RegistryAway(reply.error.message, hint=reply.error.hint)
    raise reply.error
