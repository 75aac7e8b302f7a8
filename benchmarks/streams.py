"""``python -m benchmarks streams``: seconds from the last row of a running job to its diagnosis.

A service with its default limits gets the steps of one job, one fragment per step. One rank computes slowly
from a step on. The last fragment is sent when all others are stored, and the time until the finished
diagnosis is taken from its answer on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from benchmarks.measure import MIB, child_processes, machine, peak_memory, print_table
from benchmarks.service import ServiceConnection, started_service
from benchmarks.windows import PHASES, RANKS_PER_NODE, TRANSFER_SECONDS, step_columns
from rca.window.encodings import arrow
from rca.window.window import Window

#: The slow rank, and how much longer its forward pass takes.
SLOW_RANK, SLOW_RATIO = 3, 1.5
#: Steps after the onset: a change of this size is seen after six.
SLOW_STEPS = 16
_GIVE_UP_SECONDS = 300.0


def main(arguments: list[str]) -> int:
    """Measure jobs of several sizes, and print a table; 1 if a straggler is not named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks streams", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 1024, 8192, 16384])
    parser.add_argument("--steps", type=int, default=136, help="[default: 136]")
    given = parser.parse_args(arguments)
    rows = []
    for ranks in given.ranks:
        rows.append(measured(ranks, given.steps))
        print(f"streams: {', '.join(rows[-1])}", file=sys.stderr)
    columns = ("ranks", "rows", "sent in, s", "diagnosed after, s", "peak, MiB", "answer")
    print_table(machine(), columns, rows)
    return int(any(f"rank {SLOW_RANK}" not in answer for *_, answer in rows))


def measured(ranks: int, n_steps: int) -> tuple[str, ...]:
    """Send one job to a new service, and wait for its diagnosis; gives a row of the table."""
    job_id = f"step-{ranks}"
    with started_service({"RCA_RATE_LIMIT": ""}) as (url, server):
        api = ServiceConnection(url)
        began = time.perf_counter()
        for body in _bodies(job_id, ranks, n_steps):
            status, answer = api.ask(
                "POST", f"/v1/jobs/{job_id}/telemetry", body, Content_Type=arrow.CONTENT_TYPE
            )
            if status != 200:
                raise RuntimeError(f"HTTP {status}: {answer}")
        sent = time.perf_counter()
        named = _diagnosed(api, job_id, n_steps - SLOW_STEPS)
        seconds = time.perf_counter() - sent
        peak = max(peak_memory(each) for each in child_processes(server))
    figures = (f"{sent - began:.1f}", f"{seconds:.1f}", f"{peak / MIB:,.0f}")
    return f"{ranks:,}", f"{ranks * n_steps:,}", *figures, named


def _diagnosed(api: ServiceConnection, job_id: str, onset: int) -> str:
    """Wait for the diagnosis of the change, and give its answer in short."""
    deadline = time.perf_counter() + _GIVE_UP_SECONDS
    while time.perf_counter() < deadline:
        _, job = api.ask("GET", f"/v1/jobs/{job_id}/telemetry")
        if job["changed_step"] is not None and abs(job["changed_step"] - onset) <= 2:
            status, found = api.ask("GET", f"/v1/diagnoses/{job['diagnosis_id']}")
            if status == 200:
                places = [f"rank {rank}" for one in found["stragglers"] for rank in one["ranks"]]
                return f"{found['failure_mode']}: {', '.join(places) or 'no rank'}"
            if status != 202:
                return str(found.get("detail", found))
        time.sleep(0.1)
    return "no diagnosis; " + "; ".join(job["remarks"])


def _bodies(job_id: str, ranks: int, n_steps: int) -> Iterator[bytes]:
    """One fragment a step, of a job that ends now."""
    draw = np.random.default_rng(ranks)
    own = {name: seconds * draw.normal(1.0, 0.01, (ranks, n_steps)) for name, seconds in PHASES.items()}
    own["forward_seconds"][SLOW_RANK, -SLOW_STEPS:] *= SLOW_RATIO
    columns = step_columns(own, np.full((ranks, n_steps), TRANSFER_SECONDS))
    columns["start_time"] += time.time() - (columns["start_time"] + columns["step_seconds"]).max()
    rank = np.arange(ranks, dtype=np.int32)
    places = [
        {"rank": each, "node": f"node-{each // RANKS_PER_NODE}", "gpu": each % RANKS_PER_NODE}
        for each in range(ranks)
    ]
    for step in range(n_steps):
        table = {"rank": rank, "step": np.full(ranks, step)}
        table |= {name: seconds[:, step] for name, seconds in columns.items()}
        begin = float(table["start_time"].min())
        job = {"job_id": job_id, "world_size": ranks, "ranks": places, "start": begin}
        job["end"] = float((table["start_time"] + table["step_seconds"]).max())
        yield Window.from_tables(job, pa.table(table), scope="fragment").to_arrow()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
