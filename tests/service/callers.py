"""Callers that never give up: every request is repeated until it is acknowledged."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from watched import asked, stored

from tests.waiting import until

#: What each window's id is replaced by: ids are of one length, so that bodies are, too.
TEMPLATE_ID = "window-00000000"
_PAUSE_SECONDS = 0.05


class Crowd:
    """Threads that post windows one after the other, with idempotency keys.

    Every third one is asked for later (`Prefer: respond-async`). Every fourth is sent once more although it
    was acknowledged, as by a caller that has lost the answer.

    Parameters
    ----------
    body : bytes
        A window as JSON whose id is `TEMPLATE_ID`.
    """

    def __init__(self, body: bytes, headers: dict[str, str] | None = None, callers: int = 3) -> None:
        assert TEMPLATE_ID.encode() in body
        self.url = ""
        self.acknowledged: dict[str, str] = {}
        self.refused: Counter[int | str] = Counter()
        self.contradicted: list[str] = []
        self._body = body
        self.headers = headers or {}
        self._numbers = itertools.count(1)
        self._stopped, self._given_up = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._call_on, daemon=True) for _ in range(callers)]

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Call while the context lasts, as soon as there is a `url`."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._given_up.set()
            self.rest()

    def rest(self) -> None:
        """Ask nothing new, and wait until the last request is acknowledged."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(60.0)
        assert not any(thread.is_alive() for thread in self._threads)

    def goes_on(self, more: int = 8) -> None:
        """Wait for further acknowledgements."""
        known = len(self.acknowledged)
        until(lambda: len(self.acknowledged) >= known + more)

    def is_refused(self, more: int = 5) -> None:
        """Wait for further refusals."""
        known = self.refused.total()
        until(lambda: self.refused.total() >= known + more)

    def _call_on(self) -> None:
        while not self.url and not self._stopped.is_set():
            time.sleep(_PAUSE_SECONDS)
        while not self._stopped.is_set():
            number = next(self._numbers)
            window = f"window-{number:08}"
            acknowledged = self._until_acknowledged(number, window)
            again = self._until_acknowledged(number, window) if number % 4 == 0 else acknowledged
            with self._lock:
                if acknowledged is not None:
                    self.acknowledged[acknowledged] = window
                if again not in (acknowledged, None):
                    self.contradicted.append(window)
            # The machine has other things to do as well, such as starting what was killed.
            time.sleep(_PAUSE_SECONDS)

    def _until_acknowledged(self, number: int, window: str) -> str | None:
        headers = self.headers | {"Content-Type": "application/json", "Idempotency-Key": window}
        if number % 3 == 0:
            headers["Prefer"] = "respond-async"
        body = self._body.replace(TEMPLATE_ID.encode(), window.encode())
        while not self._given_up.is_set():
            try:
                with urlopen(Request(f"{self.url}/v1/diagnoses", body, headers), timeout=30) as answer:
                    told: str = json.loads(answer.read())["diagnosis_id"]
                    return told
            except HTTPError as error:
                error.close()
                self._refuse(error.code)
            except (OSError, HTTPException, ValueError):
                self._refuse("broken")
            time.sleep(_PAUSE_SECONDS)
        return None

    def _refuse(self, how: int | str) -> None:
        with self._lock:
            self.refused[how] += 1


class Verdict:
    """What a crowd was promised beside what the service has."""

    def __init__(self, crowd: Crowd, url: str) -> None:
        crowd.rest()
        until(lambda: _ready(url))
        until(lambda: {item["state"] for item in stored(url, crowd.headers)} <= {"done", "failed"})
        # Streamed jobs have diagnoses that no caller asked for.
        mine = TEMPLATE_ID.rstrip("0")
        rows = [row for row in stored(url, crowd.headers) if (row["window_id"] or "").startswith(mine)]
        self.acknowledged = len(crowd.acknowledged)
        self.found = sum(
            answered(f"{url}/v1/diagnoses/{promised}", crowd.headers) for promised in crowd.acknowledged
        )
        #: Acknowledged, and ended with a stated reason, because each of its attempts was killed.
        self.given_up = sum(row["state"] == "failed" for row in rows)
        self.windows = sum(
            _window_is_there(url, item["window_digest"], crowd.headers)
            for item in rows
            if item["diagnosis_id"] in crowd.acknowledged
        )
        self.duplicated = len(rows) - len({item["window_id"] for item in rows}) + len(crowd.contradicted)
        #: Stored though nobody was told: a repetition would have found it.
        self.unclaimed = len({item["diagnosis_id"] for item in rows} - set(crowd.acknowledged))
        self.refused = crowd.refused

    def line(self) -> str:
        """For the table."""
        refused = ", ".join(f"{n} x {how}" for how, n in sorted(self.refused.items(), key=str)) or "none"
        return f"{self.acknowledged:>12} {self.found:>6} {self.windows:>7} {self.duplicated:>10}  {refused}"


def _ready(url: str) -> bool:
    try:
        return bool(asked(f"{url}/readyz")["status"] == "ready")
    except OSError:
        return False


def _window_is_there(url: str, digest: str | None, headers: dict[str, str]) -> bool:
    """Whether the window of a diagnosis can be fetched, and is the one that was posted."""
    try:
        with urlopen(Request(f"{url}/v1/windows/{digest}", headers=headers), timeout=30) as answer:
            return hashlib.sha256(answer.read()).hexdigest() == digest
    except HTTPError as error:
        error.close()
        return False


def answered(address: str, headers: dict[str, str] | None = None) -> bool:
    """Whether there is something at an address, and it may be seen."""
    try:
        with urlopen(Request(address, headers=headers or {}), timeout=30) as answer:
            return bool(answer.status == 200)
    except HTTPError as error:
        error.close()
        return False
