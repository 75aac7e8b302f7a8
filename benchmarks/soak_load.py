"""Callers of a soak: windows of mixed sizes sent in every way the service offers, and what was promised."""

from __future__ import annotations

import itertools
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson

from benchmarks.windows import Shape, make_window
from rca.window.encodings import arrow

PATH = "/v1/diagnoses"
#: How requests are sent, and what share of them.
WAYS = {"at once": 0.55, "later": 0.2, "with a key": 0.15, "with a key, twice": 0.1}
_JOBS = 50
#: Servers close unused connections; ours after 5 s.
_IDLE_SECONDS = 2.0


@dataclass(frozen=True)
class Kind:
    """Windows of one size in one encoding, and their share of all."""

    ranks: int
    encoding: str
    share: float


KINDS = (
    Kind(8, "JSON", 0.35),
    Kind(8, "Arrow", 0.15),
    Kind(64, "JSON", 0.25),
    Kind(64, "Arrow", 0.15),
    Kind(256, "JSON", 0.04),
    Kind(256, "Arrow", 0.06),
)


def bodies(steps: int) -> dict[Kind, bytes]:
    """One encoded window a kind."""
    windows = {ranks: make_window(Shape(ranks, steps)) for ranks in {kind.ranks for kind in KINDS}}
    return {
        kind: windows[kind.ranks].to_json() if kind.encoding == "JSON" else windows[kind.ranks].to_arrow()
        for kind in KINDS
    }


@dataclass(frozen=True)
class Request:
    """One request to be sent; its window is like no other's."""

    kind: Kind
    way: str
    window_id: str
    body: list[bytes]

    @property
    def headers(self) -> dict[str, str]:
        kind = "application/json" if self.kind.encoding == "JSON" else arrow.CONTENT_TYPE
        headers = {"Content-Type": kind, "Accept": "application/json"}
        headers["Content-Length"] = str(sum(map(len, self.body)))
        if self.way == "later":
            headers["Prefer"] = "respond-async"
        if "key" in self.way:
            headers["Idempotency-Key"] = self.window_id
        return headers


class Mix:
    """Draws requests; safe to use from many threads.

    A body is sent in pieces, of which only the names are new. To copy a megabyte for each request
    would cost the callers more time than a refusal costs the service.
    """

    def __init__(self, templates: dict[Kind, bytes], seed: int) -> None:
        self._pieces = {
            kind: re.split(f'("benchmark(?:-{kind.ranks})?")'.encode(), body)
            for kind, body in templates.items()
        }
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def draw(self) -> Request:
        """Make the next request."""
        with self._lock:
            number = next(self._numbers)
            kind = KINDS[self._rng.choice(len(KINDS), p=[each.share for each in KINDS])]
            way = str(self._rng.choice(list(WAYS), p=list(WAYS.values())))
        window_id = f"soak-{number:08}"
        names = {
            f'"benchmark-{kind.ranks}"'.encode(): f'"{window_id}"'.encode(),
            b'"benchmark"': f'"job-{number % _JOBS}"'.encode(),
        }
        return Request(kind, way, window_id, [names.get(piece, piece) for piece in self._pieces[kind]])


@dataclass(frozen=True)
class Outcome:
    """What became of one request; seconds count from when it was due."""

    kind: Kind
    way: str
    status: int
    seconds: float


@dataclass
class Ledger:
    """Answers to all callers.

    Attributes
    ----------
    acknowledged : dict of str to str
        Window by the id of its diagnosis.
    contradicted : int
        Repeated requests that got another diagnosis than the first time.
    """

    acknowledged: dict[str, str] = field(default_factory=dict)
    contradicted: int = 0


#: Status of a request that got no answer at all.
BROKEN = 0


class Callers:
    """Keep-alive connections, one a thread."""

    def __init__(self, url: str, mix: Mix, most: int = 64) -> None:
        at = urlsplit(url)
        self._address = (at.hostname or "127.0.0.1", at.port)
        self._mix = mix
        self._most = most
        self._held = threading.local()
        self._lock = threading.Lock()
        self.ledger = Ledger()

    def in_turn(self, seconds: float, at_once: int) -> list[Outcome]:
        """Send one after the other in so many threads: what the service takes at most."""
        end = time.perf_counter() + seconds

        def call(_: int) -> list[Outcome]:
            outcomes = []
            while time.perf_counter() < end:
                outcomes.append(self._call(self._mix.draw(), time.perf_counter()))
            return outcomes

        return self._gathered(call, at_once)

    def offered(self, rate: float, seconds: float, seed: int) -> list[Outcome]:
        """Send `rate` a second at random moments, whether or not the earlier ones were answered."""
        rng = np.random.default_rng(seed)
        gaps = rng.exponential(1 / rate, max(1, round(rate * seconds)))
        due = time.perf_counter() + np.cumsum(gaps)
        turns = itertools.count()

        def call(_: int) -> list[Outcome]:
            outcomes = []
            # `next` of a count is one step of the interpreter, so no two threads get the same turn.
            while (turn := next(turns)) < due.size:
                request = self._mix.draw()
                time.sleep(max(0.0, due[turn] - time.perf_counter()))
                outcomes.append(self._call(request, float(due[turn])))
            return outcomes

        return self._gathered(call, self._most)

    def found(self, diagnosis_ids: Iterable[str]) -> int:
        """How many of them the service has."""

        def call(diagnosis_id: str) -> bool:
            status, document = self._send("GET", f"{PATH}/{diagnosis_id}", None, {})
            return status == 200 and document.get("diagnosis_id") == diagnosis_id

        with ThreadPoolExecutor(4) as threads:
            return sum(threads.map(call, diagnosis_ids))

    def _gathered(self, call: Callable[[int], list[Outcome]], n_threads: int) -> list[Outcome]:
        with ThreadPoolExecutor(n_threads) as threads:
            return [outcome for outcomes in threads.map(call, range(n_threads)) for outcome in outcomes]

    def _call(self, request: Request, due: float) -> Outcome:
        status, document = self._send("POST", PATH, request.body, request.headers)
        outcome = Outcome(request.kind, request.way, status, time.perf_counter() - due)
        if status in (200, 202):
            self._acknowledge(request, document["diagnosis_id"])
        return outcome

    def _acknowledge(self, request: Request, diagnosis_id: str) -> None:
        with self._lock:
            self.ledger.acknowledged[diagnosis_id] = request.window_id
        if not request.way.endswith("twice"):
            return
        status, document = self._send("POST", PATH, request.body, request.headers)
        if status in (200, 202) and document["diagnosis_id"] != diagnosis_id:
            with self._lock:
                self.ledger.contradicted += 1

    def _send(
        self, method: str, path: str, body: list[bytes] | None, headers: dict[str, str]
    ) -> tuple[int, Any]:
        connection: HTTPConnection | None = getattr(self._held, "connection", None)
        if connection is None:
            connection = self._held.connection = HTTPConnection(*self._address, timeout=120)
        elif time.perf_counter() - self._held.used > _IDLE_SECONDS:
            connection.close()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, orjson.loads(answer.read())
        except (OSError, HTTPException, orjson.JSONDecodeError) as problem:
            connection.close()
            sys.stderr.write(f"soak: no answer to {method} {path}: {problem!r}\n")
            return BROKEN, None
        finally:
            self._held.used = time.perf_counter()


def statuses(outcomes: Iterable[Outcome]) -> Counter[int]:
    """How many requests ended how."""
    return Counter(outcome.status for outcome in outcomes)
