"""``python -m benchmarks soak``: a real service under load for minutes, then under four times its capacity.

One service with two processes has three phases. Callers that wait for their answers measure the capacity.
Then 0.8 of the capacity is offered at random moments, then 4 times the capacity. What is accepted then
should stay at 90 % of the capacity. At the end every acknowledged diagnosis is read. The exit status is 1
only if a diagnosis is lost or duplicated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import orjson
from rich.console import Console

import rca
from benchmarks.measure import (
    Budget,
    child_processes,
    machine,
    memory,
    processor_seconds,
    proportional_memory,
    repeat,
    summary,
)
from benchmarks.soak_load import KINDS, Callers, Kind, Mix, Outcome, bodies
from benchmarks.soak_report import kept_under_overload, latencies, render
from rca_api.shell.demo import running_service

#: Shares of the whole time.
CAPACITY, STEADY, OVERLOAD = 0.25, 0.5, 0.25
STEADY_LOAD, OVERLOAD_LOAD = 0.8, 4.0
_SETTLE_SECONDS = 600.0


class MemoryLog(threading.Thread):
    """Memory of the service's processes, read again and again."""

    def __init__(self, server: int, every_seconds: float) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._every_seconds = every_seconds
        self._stopped = threading.Event()
        self._samples: list[dict[str, tuple[int, int]]] = []

    def run(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            named = {"API": [self._server], "pool": child_processes(self._server)}
            # A process that is replaced just now makes no sample.
            with suppress(OSError):
                self._samples.append({name: _held(processes) for name, processes in named.items()})

    def thirds(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Means of the first and the last third, by process and kind of memory."""
        self._stopped.set()
        self.join()
        third = max(1, len(self._samples) // 3)
        return {
            name: {
                kind: (
                    float(np.mean([each[name][place] for each in self._samples[:third]])),
                    float(np.mean([each[name][place] for each in self._samples[-third:]])),
                )
                for place, kind in enumerate(("resident", "proportional"))
            }
            for name in (self._samples[0] if self._samples else ())
        }


def _held(processes: list[int]) -> tuple[int, int]:
    """Resident and proportional memory of some processes together."""
    return sum(map(memory, processes)), sum(map(proportional_memory, processes))


def main(arguments: list[str]) -> int:
    """Soak, print tables, and say by the exit status whether everything is there once."""
    given = _options(arguments)
    load = os.getloadavg()[0]
    templates = bodies(given.steps)
    _progress("the same windows in process")
    floor = _floor(templates, Budget(given.seconds / 100, 3))
    others = set(child_processes())
    settings = {"RCA_PROCESSES": str(given.processes), "RCA_RATE_LIMIT": "", "RCA_LOG_LEVEL": "warning"}
    with running_service(settings=settings) as url:
        [server] = set(child_processes()) - others
        found = _soaked(url, server, Mix(templates, given.seed), given)
    found |= {
        "floor": {"seconds": floor, "rate": given.processes / floor},
        "processes": given.processes,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": load,
        "machine": machine(),
    }
    render(found, Console(width=None if sys.stdout.isatty() else 180))
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(found["kept"]["lost"] > 0 or found["kept"]["duplicated"] > 0)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="of load, all phases together")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help="of each window")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, too")
    return parser.parse_args(arguments)


def _floor(templates: dict[Kind, bytes], budget: Budget) -> float:
    """Seconds per window of the mix, bytes in and bytes out, in one process and without a service."""
    return sum(kind.share * summary(repeat(_in_process(templates[kind]), budget))["p50"] for kind in KINDS)


def _in_process(body: bytes) -> Callable[[], bytes]:
    return lambda: orjson.dumps(rca.diagnose(rca.read_window(body)).to_dict())


def _soaked(url: str, server: int, mix: Mix, given: argparse.Namespace) -> dict[str, Any]:
    callers = Callers(url, mix)
    _progress("getting warm")
    callers.in_turn(max(1.0, 0.02 * given.seconds), 2 * given.processes)
    _settle(url)

    def phase(name: str, call: Callable[[], list[Outcome]]) -> dict[str, Any]:
        _progress(name)
        before, spent, began = _diagnosed(url), _spent(server), time.perf_counter()
        outcomes = call()
        # What was put off is part of the load.
        done = _diagnosed(url) - before
        seconds = time.perf_counter() - began
        cores = {name: (now - spent[name]) / seconds for name, now in _spent(server).items()}
        return {"seconds": seconds, "diagnosed": done, "cores": cores, **latencies(outcomes)}

    most = phase("at most", lambda: callers.in_turn(CAPACITY * given.seconds, 2 * given.processes))
    _settle(url)
    capacity = most["diagnosed"] / most["seconds"]
    watched = MemoryLog(server, max(0.2, given.seconds / 200))
    watched.start()
    rate = STEADY_LOAD * capacity
    steady = phase("0.8 of it", lambda: callers.offered(rate, STEADY * given.seconds, given.seed))
    thirds = watched.thirds()
    rate = OVERLOAD_LOAD * capacity
    over = phase("4 times it", lambda: callers.offered(rate, OVERLOAD * given.seconds, given.seed + 1))
    _progress("working off what is queued")
    _settle(url)
    return {
        "phases": {"at most": most, "0.8 of it": steady, "4 times it": over},
        "kept_under_overload": kept_under_overload(most, over),
        "memory": thirds,
        "kept": _kept(url, callers),
    }


def _spent(server: int) -> dict[str, float]:
    """Processor time so far of the callers, the API process and the pool, seconds."""
    named = {"callers": [os.getpid()], "API": [server], "pool": child_processes(server)}
    return {name: sum(map(processor_seconds, processes)) for name, processes in named.items()}


def _kept(url: str, callers: Callers) -> dict[str, int]:
    """Compare what was acknowledged with what is there."""
    _progress("looking for every acknowledged diagnosis")
    acknowledged, rows = callers.ledger.acknowledged, _listed(url)
    found = callers.found(acknowledged)
    windows = {window for _, window in rows}
    return {
        "acknowledged": len(acknowledged),
        "found": found,
        "lost": len(acknowledged) - found,
        "duplicated": len(rows) - len(windows) + callers.ledger.contradicted,
        "unclaimed": len({diagnosis_id for diagnosis_id, _ in rows} - set(acknowledged)),
    }


def _listed(url: str) -> list[tuple[str, str]]:
    """Id and window of every diagnosis."""
    rows: list[tuple[str, str]] = []
    page: dict[str, Any] = _asked(f"{url}/v1/diagnoses?limit=200")
    while True:
        rows += [(item["diagnosis_id"], item["window_id"]) for item in page["items"]]
        if page["next"] is None:
            return rows
        page = _asked(f"{url}/v1/diagnoses?limit=200&cursor={page['next']}")


def _settle(url: str) -> None:
    """Wait until nothing is queued any more."""
    end = time.perf_counter() + _SETTLE_SECONDS
    while any(_asked(f"{url}/v1/diagnoses?limit=1&state={each}")["items"] for each in ("queued", "running")):
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


def _progress(what: str) -> None:
    sys.stderr.write(f"soak: {what} ...\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
