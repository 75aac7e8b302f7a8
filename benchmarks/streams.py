"""``python -m benchmarks streams``: seconds from the last row of a running job to its diagnosis.

A service with its default limits gets the steps of one job, per node or per step, in fragments. One rank
computes slowly from a step on. The last fragment is sent when all others are stored, and the time until the
finished diagnosis is taken from its answer on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.measure import child_processes, machine, peak_memory
from benchmarks.windows import PHASES, RANKS_PER_NODE, TRANSFER_SECONDS
from rca.arrays import IntArray
from rca.window.encodings import arrow
from rca.window.window import Window
from rca_api.shell.demo import running_service

MIB = 1024**2
#: The slow rank, and how much longer its forward pass takes.
SLOW_RANK, SLOW_RATIO = 3, 1.5
#: Steps after the onset: a change of this size is seen after six.
SLOW_STEPS = 16
#: Steps of a fragment of one node.
STEPS_PER_FRAGMENT = 30
_GIVE_UP_SECONDS = 300.0


@dataclass(frozen=True)
class Measured:
    """One job: what was sent, and the seconds from its last row to the diagnosis."""

    ranks: int
    rows: int
    fragments: int
    send_seconds: float
    seconds: float
    peak_bytes: int
    answer: str


def main(arguments: list[str]) -> int:
    """Measure jobs of several sizes, and print a table; 1 if a straggler is not named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks streams", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 1024, 8192, 16384])
    parser.add_argument("--steps", type=int, default=136, help="[default: 136]")
    parser.add_argument("--fragments", choices=["step", "node"], default="step", help="[default: step]")
    given = parser.parse_args(arguments)
    found = []
    for ranks in given.ranks:
        found.append(measured(ranks, given.steps, given.fragments))
        print(f"streams: {found[-1]}", file=sys.stderr)
    header = ("ranks", "rows", "fragments", "sent in, s", "diagnosed after, s", "peak, MiB", "answer")
    table = Table(*header, title=machine())
    for each in found:
        numbers = (f"{each.ranks:,}", f"{each.rows:,}", f"{each.fragments:,}")
        times = (f"{each.send_seconds:.1f}", f"{each.seconds:.1f}", f"{each.peak_bytes / MIB:,.0f}")
        table.add_row(*numbers, *times, each.answer)
    Console().print(table)
    return int(any(f"rank {SLOW_RANK}" not in each.answer for each in found))


def measured(ranks: int, n_steps: int, kind: str) -> Measured:
    """Send one job to a new service, and wait for its diagnosis."""
    job_id = f"{kind}-{ranks}"
    others = set(child_processes())
    with running_service(settings={"RCA_RATE_LIMIT": ""}) as url:
        [server] = set(child_processes()) - others
        api = _Api(url)
        began = time.perf_counter()
        n_fragments = 0
        for body in _bodies(job_id, ranks, n_steps, kind):
            api.post(f"/v1/jobs/{job_id}/telemetry", body)
            n_fragments += 1
        sent = time.perf_counter()
        answer = _diagnosed(api, job_id, n_steps - SLOW_STEPS)
        seconds = time.perf_counter() - sent
        peak = max(peak_memory(each) for each in child_processes(server))
    return Measured(ranks, ranks * n_steps, n_fragments, sent - began, seconds, peak, answer)


class _Api:
    """A keep-alive connection."""

    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self._connection = HTTPConnection(at.hostname or "127.0.0.1", at.port, timeout=120)

    def post(self, path: str, body: bytes) -> None:
        self._connection.request("POST", path, body, {"Content-Type": arrow.CONTENT_TYPE})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"HTTP {answer.status}: {content[:500].decode(errors='replace')}")

    def get(self, path: str) -> tuple[int, Any]:
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        return answer.status, orjson.loads(answer.read())


def _diagnosed(api: _Api, job_id: str, onset: int) -> str:
    """Wait for the diagnosis of the change, and give its answer in short."""
    deadline = time.perf_counter() + _GIVE_UP_SECONDS
    while time.perf_counter() < deadline:
        _, job = api.get(f"/v1/jobs/{job_id}/telemetry")
        if job["changed_step"] is not None and abs(job["changed_step"] - onset) <= 2:
            status, found = api.get(f"/v1/diagnoses/{job['diagnosis_id']}")
            if status == 200:
                places = [f"rank {rank}" for one in found["stragglers"] for rank in one["ranks"]]
                return f"{found['failure_mode']}: {', '.join(places) or 'no rank'}"
            if status != 202:
                return str(found.get("detail", found))
        time.sleep(0.1)
    return "no diagnosis; " + "; ".join(job["remarks"])


def _bodies(job_id: str, ranks: int, n_steps: int, kind: str) -> Iterator[bytes]:
    """Fragments in the order of their steps."""
    draw = np.random.default_rng(ranks)
    own = {name: seconds * draw.normal(1.0, 0.01, (n_steps, ranks)) for name, seconds in PHASES.items()}
    own["forward_seconds"][-SLOW_STEPS:, SLOW_RANK] *= SLOW_RATIO
    busy = np.sum(list(own.values()), axis=0)
    length = busy.max(axis=1) + TRANSFER_SECONDS
    begin = time.time() - length.sum() + np.concatenate([[0.0], length[:-1].cumsum()])
    waits = busy.max(axis=1, keepdims=True) - busy

    def fragment(steps: IntArray, mine: IntArray) -> bytes:
        rows = np.ix_(steps, mine)
        table = {
            "rank": np.tile(mine, steps.size).astype(np.int32),
            "step": np.repeat(steps, mine.size),
            "start_time": np.repeat(begin[steps], mine.size),
            **{name: seconds[rows].ravel() for name, seconds in own.items()},
            "communication_wait_seconds": waits[rows].ravel(),
            "communication_transfer_seconds": np.full(steps.size * mine.size, TRANSFER_SECONDS),
            "step_seconds": np.repeat(length[steps], mine.size),
        }
        places = [
            {"rank": rank, "node": f"node-{rank // RANKS_PER_NODE}", "gpu": rank % RANKS_PER_NODE}
            for rank in mine.tolist()
        ]
        job = {
            "job_id": job_id,
            "world_size": ranks,
            "ranks": places,
            "start": float(begin[steps[0]]),
            "end": float(begin[steps[-1]] + length[steps[-1]]),
        }
        return Window.from_tables(job, pa.table(table), scope="fragment").to_arrow()

    everyone = np.arange(ranks)
    if kind == "step":
        for step in range(n_steps):
            yield fragment(np.array([step]), everyone)
        return
    for first in range(0, n_steps, STEPS_PER_FRAGMENT):
        steps = np.arange(first, min(first + STEPS_PER_FRAGMENT, n_steps))
        for node in range(0, ranks, RANKS_PER_NODE):
            yield fragment(steps, everyone[node : node + RANKS_PER_NODE])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
