"""The registry as the service sees it: asked over a companion, with a time limit, and away at any moment."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rca.errors import BundleError, InvalidInput, MissingExtra, RcaError, SourceError
from rca_api.subprocess_rpc import Companion

COMMAND = (sys.executable, "-m", "rca_api.models.fetch")
#: A helper that is not ready by then is replaced; MLflow from a cold disk on a busy machine takes minutes.
_START_SECONDS = 600.0
#: A helper that nobody asks for so long is ended; the next question starts another.
_IDLE_SECONDS = 300.0
_KNOWN: dict[str, type[RcaError]] = {
    error.code: error for error in (InvalidInput, BundleError, MissingExtra, SourceError)
}


class RegistryAway(SourceError):
    """The registry did not answer, or not in time."""

    code = "registry-unavailable"


class RegistryClient:
    """Questions to the registry; safe to use from many threads, which take turns.

    Parameters
    ----------
    uri : str
        MLflow tracking URI.
    timeout_seconds : float
        For a question and for what it waits for before: turns, and a helper that starts. One that starts is
        not ended by it, so that the next question finds it further on.
    log_level : str
        Of the helper, which logs where this process does.
    """

    def __init__(
        self,
        uri: str,
        timeout_seconds: float,
        log_level: str = "info",
        command: Sequence[str] = COMMAND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.uri = uri
        self._timeout = timeout_seconds
        self._command = (*command, uri, "--log-level", log_level)
        self._clock = clock
        self._turn = threading.Lock()
        self._companion: Companion | None = None
        self._started = 0.0
        self._ready = False
        self._asked = 0.0

    def versions(self) -> list[dict[str, Any]]:
        """Every version, the newest first."""
        found: list[dict[str, Any]] = self._ask("versions")
        return found

    def version(self, name: str) -> dict[str, Any] | None:
        """One version by number or alias."""
        found: dict[str, Any] | None = self._ask("version", name=name)
        return found

    def card(self, name: str) -> str | None:
        """The model card of a version; None if there is no such version."""
        found: str | None = self._ask("card", name=name)
        return found

    def aliases(self) -> dict[str, dict[str, Any]]:
        """Version and digest behind each alias."""
        found: dict[str, dict[str, Any]] = self._ask("aliases")
        return found

    def fetch(self, number: int, output: Path) -> None:
        """Copy a version's bundle to a folder."""
        self._ask("fetch", name=str(number), output=str(output))

    def promote(self, name: str, by: str, force: str | None) -> dict[str, Any]:
        """Promote by the kept verdict."""
        found: dict[str, Any] = self._ask("promote", name=name, by=by, force=force)
        return found

    def rollback(self, reason: str, expected: int) -> dict[str, Any]:
        """Move the champion back, if it still is the expected one."""
        found: dict[str, Any] = self._ask("rollback", reason=reason, expected=expected)
        return found

    def retry(self, name: str) -> dict[str, Any]:
        """Have a version tried again by all who follow the registry."""
        found: dict[str, Any] = self._ask("retry", name=name)
        return found

    def rest(self) -> None:
        """End the helper if nobody has needed it for long."""
        if self._clock() - self._asked > _IDLE_SECONDS and self._turn.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._turn.release()

    def close(self) -> None:
        """End the helper, whatever it does."""
        companion = self._companion
        if companion is not None:
            # A question that waits for it gets an error and lets the turn go.
            companion.end()

    def _ask(self, ask: str, **details: Any) -> Any:
        deadline = self._clock() + self._timeout
        if not self._turn.acquire(timeout=self._timeout):
            raise RegistryAway("the registry is busy with other questions")
        try:
            self._asked = self._clock()
            companion = self._helper(deadline)
            return self._answer(companion, {"ask": ask, **details}, self._left(deadline))
        finally:
            self._turn.release()

    def _left(self, deadline: float) -> float:
        return max(0.1, deadline - self._clock())

    def _helper(self, deadline: float) -> Companion:
        """The helper, once it has said that it is ready."""
        if self._companion is None:
            self._companion = Companion(self._command)
            self._started, self._ready = self._clock(), False
        if not self._ready:
            try:
                self._heard(self._companion, self._left(deadline))
            except TimeoutError:
                if self._clock() - self._started > _START_SECONDS:
                    self._end()
                raise RegistryAway("the process that talks to the registry is still starting") from None
            self._ready = True
        return self._companion

    def _answer(self, companion: Companion, question: dict[str, Any], timeout: float) -> Any:
        companion.send(question)
        try:
            message = self._heard(companion, timeout)
        except TimeoutError:
            # Its answer would be taken for that of the next question.
            self._end()
            raise RegistryAway(f"the registry did not answer within {timeout:.0f} s") from None
        if "problem" not in message:
            return message["answer"]
        problem = message["problem"]
        if problem["code"] == "source-error":
            raise RegistryAway(problem["detail"], hint=problem.get("hint"))
        raise _KNOWN.get(problem["code"], RcaError)(problem["detail"], hint=problem.get("hint"))

    def _heard(self, companion: Companion, timeout: float) -> dict[str, Any]:
        message = companion.next(timeout)
        if message is None:
            self._end()
            raise RegistryAway("the process that talks to the registry died")
        return message

    def _end(self) -> None:
        if self._companion is not None:
            self._companion.end()
            self._companion = None
