"""``python -m benchmarks soak``: a real service at its capacity, then under four times its capacity.

Callers that wait for their answers measure the capacity. Then four times as many windows are offered at
random moments. What is accepted then should stay at 90 % of the capacity. At the end every acknowledged
diagnosis is read. The exit status is 1 only if a diagnosis is lost or duplicated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import orjson

from benchmarks.measure import machine, print_table
from benchmarks.service import ServiceConnection, started_service
from benchmarks.windows import WindowSize, make_window
from rca.window.encodings import arrow

PATH = "/v1/diagnoses"
#: Shares of windows by ranks and encoding, and of the ways in which requests are sent.
KINDS = {
    (8, "JSON"): 0.35, (8, "Arrow"): 0.15, (64, "JSON"): 0.25, (64, "Arrow"): 0.15, (256, "JSON"): 0.04,
    (256, "Arrow"): 0.06,
}  # fmt: skip
WAYS = {"at once": 0.55, "later": 0.2, "with a key": 0.15, "with a key, twice": 0.1}
#: Times the capacity.
OVERLOAD = 4.0
#: Status of a request that got no answer at all, and of those that the service puts off.
BROKEN, SHED = 0, (429, 503)
MAX_CALLERS = 64
_JOBS = 50
#: Servers close unused connections; ours after 5 s.
_IDLE_SECONDS, _SETTLE_SECONDS = 2.0, 600.0


@dataclass(frozen=True)
class WindowRequest:
    """One request to be sent, in pieces; its window is like no other's."""

    encoding: str
    way: str
    window_id: str
    body: list[bytes]

    @property
    def headers(self) -> dict[str, str]:
        kind = "application/json" if self.encoding == "JSON" else arrow.CONTENT_TYPE
        headers = {"Content_Type": kind, "Content_Length": str(sum(map(len, self.body)))}
        if self.way == "later":
            headers["Prefer"] = "respond-async"
        if "key" in self.way:
            headers["Idempotency_Key"] = self.window_id
        return headers


class RequestMix:
    """Draws requests; safe to use from many threads.

    A body is sent in pieces, of which only the names are new. To copy a megabyte for each request
    would cost the callers more time than a refusal costs the service.
    """

    def __init__(self, steps: int, seed: int) -> None:
        windows = {ranks: make_window(WindowSize(ranks, steps)) for ranks, _ in KINDS}
        self._pieces = [
            re.split(
                f'("benchmark(?:-{ranks})?")'.encode(),
                windows[ranks].to_json() if encoding == "JSON" else windows[ranks].to_arrow(),
            )
            for ranks, encoding in KINDS
        ]
        self._rng, self._lock, self._numbers = (
            np.random.default_rng(seed),
            threading.Lock(),
            itertools.count(),
        )

    def draw(self) -> WindowRequest:
        """Make the next request."""
        with self._lock:
            number = next(self._numbers)
            kind = int(self._rng.choice(len(KINDS), p=list(KINDS.values())))
            way = str(self._rng.choice(list(WAYS), p=list(WAYS.values())))
        ranks, encoding = list(KINDS)[kind]
        window_id, job = f"soak-{number:08}", f'"job-{number % _JOBS}"'.encode()
        names = {f'"benchmark-{ranks}"'.encode(): f'"{window_id}"'.encode(), b'"benchmark"': job}
        return WindowRequest(encoding, way, window_id, [names.get(each, each) for each in self._pieces[kind]])


class Callers:
    """Connections, one a thread, and what was acknowledged: window by the id of its diagnosis."""

    def __init__(self, url: str, mix: RequestMix) -> None:
        self._url, self._mix = url, mix
        self._held, self._lock = threading.local(), threading.Lock()
        self.acknowledged: dict[str, str] = {}
        #: Repeated requests that got another diagnosis than the first time.
        self.contradicted = 0

    def in_turn(self, seconds: float, at_once: int) -> list[tuple[int, float]]:
        """Send one after the other in so many threads; gives status and seconds of each request."""
        end = time.perf_counter() + seconds

        def call(_: int) -> list[tuple[int, float]]:
            outcomes = []
            while time.perf_counter() < end:
                outcomes.append(self._call(self._mix.draw(), time.perf_counter()))
            return outcomes

        return _gathered(call, at_once)

    def offered(self, rate: float, seconds: float, seed: int) -> list[tuple[int, float]]:
        """Send `rate` a second at random moments, whether or not the earlier ones were answered."""
        gaps = np.random.default_rng(seed).exponential(1 / rate, max(1, round(rate * seconds)))
        due = time.perf_counter() + np.cumsum(gaps)
        turns = itertools.count()

        def call(_: int) -> list[tuple[int, float]]:
            outcomes = []
            # `next` of a count is one step of the interpreter, so no two threads get the same turn.
            while (turn := next(turns)) < due.size:
                request = self._mix.draw()
                time.sleep(max(0.0, due[turn] - time.perf_counter()))
                outcomes.append(self._call(request, float(due[turn])))
            return outcomes

        return _gathered(call, MAX_CALLERS)

    def found(self) -> int:
        """How many of the acknowledged diagnoses the service has."""
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda each: self._send("GET", f"{PATH}/{each}"), self.acknowledged)
            pairs = zip(answers, self.acknowledged, strict=True)
            return sum(status == 200 and found["diagnosis_id"] == each for (status, found), each in pairs)

    def _call(self, request: WindowRequest, due: float) -> tuple[int, float]:
        """Status, and seconds from when the request was due."""
        status, document = self._send("POST", PATH, request.body, **request.headers)
        outcome = status, time.perf_counter() - due
        if status in (200, 202):
            diagnosis = document["diagnosis_id"]
            with self._lock:
                self.acknowledged[diagnosis] = request.window_id
            if request.way.endswith("twice"):
                again, document = self._send("POST", PATH, request.body, **request.headers)
                with self._lock:
                    self.contradicted += again in (200, 202) and document["diagnosis_id"] != diagnosis
        return outcome

    def _send(
        self, method: str, path: str, body: Sequence[bytes] | None = None, **headers: str
    ) -> tuple[int, Any]:
        held = self._held
        if not hasattr(held, "connection"):
            held.connection, held.used = ServiceConnection(self._url), 0.0
        if time.perf_counter() - held.used > _IDLE_SECONDS:
            held.connection.close()
        try:
            answer: tuple[int, Any] = held.connection.ask(method, path, body, **headers)
        except (OSError, HTTPException, orjson.JSONDecodeError) as problem:
            held.connection.close()
            sys.stderr.write(f"soak: no answer to {method} {path}: {problem!r}\n")
            return BROKEN, None
        held.used = time.perf_counter()
        return answer


def _gathered(call: Callable[[int], list[tuple[int, float]]], n: int) -> list[tuple[int, float]]:
    with ThreadPoolExecutor(n) as pool:
        return [outcome for outcomes in pool.map(call, range(n)) for outcome in outcomes]


def main(arguments: list[str]) -> int:
    """Soak, print a table, and say by the exit status whether everything is there once."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="of load, both phases together")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help="of each window")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, too")
    given = parser.parse_args(arguments)
    settings = {"RCA_PROCESSES": str(given.processes), "RCA_RATE_LIMIT": "", "RCA_LOG_LEVEL": "warning"}
    with started_service(settings) as (url, _):
        found = _soaked(url, RequestMix(given.steps, given.seed), given)
    columns = (
        "phase",
        "offered /s",
        "answered /s",
        "diagnosed /s",
        "p50 s",
        "p99 s",
        "shed",
        "broken",
        "other",
    )
    print_table(f"Requests and windows per second. {machine()}", columns, map(_row, found["phases"].items()))
    kept = found["kept"]
    print(f"Kept at {OVERLOAD:g} times the capacity: {found['share_under_overload']:.0%}. Asked: 90 %.")
    print(", ".join(f"{each} {number:,}" for each, number in kept.items()))
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(kept["lost"] > 0 or kept["duplicated"] > 0)


def _soaked(url: str, mix: RequestMix, given: argparse.Namespace) -> dict[str, Any]:
    callers, at_once = Callers(url, mix), 2 * given.processes
    callers.in_turn(max(1.0, 0.04 * given.seconds), at_once)
    _settle(url)

    def phase(name: str, call: Callable[[], list[tuple[int, float]]]) -> dict[str, Any]:
        sys.stderr.write(f"soak: {name} ...\n")
        before, began = _diagnosed(url), time.perf_counter()
        outcomes = call()
        done, seconds = _diagnosed(url) - before, time.perf_counter() - began
        _settle(url)
        direct = [took for status, took in outcomes if status == 200] or [float("nan")]
        statuses = [status for status, _ in outcomes]
        counts = {"answered": (200, 202), "shed": SHED, "broken": (BROKEN,)}
        ended = {each: sum(status in kinds for status in statuses) for each, kinds in counts.items()}
        p50, p99 = np.quantile(direct, [0.5, 0.99], method="higher").tolist()
        other = len(outcomes) - sum(ended.values())
        figures = {"seconds": seconds, "diagnosed": done, "requests": len(outcomes), "other": other}
        return figures | ended | {"p50": p50, "p99": p99}

    most = phase("at most", lambda: callers.in_turn(given.seconds / 2, at_once))
    rate = OVERLOAD * most["diagnosed"] / most["seconds"]
    over = phase("4 times it", lambda: callers.offered(rate, given.seconds / 2, given.seed + 1))
    share = over["answered"] / over["seconds"] / (most["answered"] / most["seconds"])
    sys.stderr.write("soak: looking for every acknowledged diagnosis ...\n")
    rows, acknowledged, known = _listed(url), callers.acknowledged, callers.found()
    kept = {
        "acknowledged": len(acknowledged),
        "found": known,
        "lost": len(acknowledged) - known,
        "duplicated": len(rows) - len({window for _, window in rows}) + callers.contradicted,
        "unclaimed": len({diagnosis for diagnosis, _ in rows} - set(acknowledged)),
    }
    return {"phases": {"at most": most, "4 times it": over}, "share_under_overload": share, "kept": kept}


def _row(phase: tuple[str, dict[str, Any]]) -> list[str]:
    name, found = phase
    rates = [f"{found[each] / found['seconds']:.1f}" for each in ("requests", "answered", "diagnosed")]
    share = found["shed"] / max(1, found["requests"])
    times = [f"{found[each]:.3f}" for each in ("p50", "p99")]
    return [name, *rates, *times, f"{share:.1%}", str(found["broken"]), str(found["other"])]


def _listed(url: str) -> list[tuple[str, str]]:
    """Id and window of every diagnosis."""
    rows: list[tuple[str, str]] = []
    cursor = ""
    while True:
        page = _asked(f"{url}{PATH}?limit=200{cursor}")
        rows += [(item["diagnosis_id"], item["window_id"]) for item in page["items"]]
        if page["next"] is None:
            return rows
        cursor = f"&cursor={page['next']}"


def _settle(url: str) -> None:
    """Wait until nothing is queued any more."""
    end = time.perf_counter() + _SETTLE_SECONDS
    while any(_asked(f"{url}{PATH}?limit=1&state={each}")["items"] for each in ("queued", "running")):
        if time.perf_counter() > end:
            raise TimeoutError(f"diagnoses are still queued after {_SETTLE_SECONDS:.0f} s")
        time.sleep(0.1)


def _diagnosed(url: str) -> float:
    """Diagnoses made so far."""
    text = urlopen(f"{url}/metrics", timeout=60).read().decode()
    lines = [line for line in text.splitlines() if line.startswith("rca_diagnoses_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _asked(address: str) -> Any:
    with urlopen(address, timeout=60) as answer:
        return orjson.loads(answer.read())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
