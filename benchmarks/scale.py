"""``python -m benchmarks scale``: a sweep on one and two Dask workers, and what a thousand could do.

Every window takes the same way as in `rca sweep`. The first figures are of tasks that do nothing: the time of
the client and the scheduler for each window, which no further worker shortens. With them, a number of workers
is enough from which more do not help.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import machine, print_table
from rca.dask_client import local_cluster
from rca.diagnosis.bundle import baseline
from rca.lab.simulation.corpus import simulated_window
from rca.sweep.answers import CHUNK, diagnosed
from rca.sweep.archive import Found, archived
from rca.workers import HERE, Workers

_SEED, _MANY = 910_000_000, 1000


def main(arguments: list[str]) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    parser.add_argument("--windows", type=int, default=48, help="simulated windows of a sweep")
    parser.add_argument("--tasks", type=int, default=400, help="tasks that do nothing")
    given = parser.parse_args(arguments)
    found: dict[str, Any] = {"machine": machine(), "windows": given.windows}
    with TemporaryDirectory() as folder:
        for number in range(given.windows):
            window, _ = simulated_window(_SEED + number, with_steps=True)
            window.to_directory(Path(folder, f"{number:09d}"))
        windows = archived([f"file://{folder}"])
        found["here"] = _swept(HERE, windows)
        for count in (1, 2):
            with _cluster(count) as workers:
                # The first windows of a worker wait for imports and compilation.
                _swept(workers, windows[: 4 * count * CHUNK])
                found[f"{count} workers"] = _swept(workers, windows)
                if count == 1:
                    found["by URL"] = _seconds(workers, _nothing, [_named(n) for n in range(given.tasks)])
    render(found)
    return 0


@contextmanager
def _cluster(n_workers: int) -> Iterator[Workers]:
    # By address, so that one worker is a process, too.
    with local_cluster(n_workers) as cluster, Workers(1, cluster.scheduler_address) as workers:
        yield workers


def _named(number: int) -> Found:
    return Found(f"s3://bucket/windows/{number:09d}", "0" * 32, 0)


def _swept(workers: Workers, windows: list[Found]) -> float:
    """Seconds per window of a sweep."""
    return _seconds(workers, partial(diagnosed, bundle=baseline()), windows)


def _nothing(found: Found) -> str:
    return found.url


def _seconds(workers: Workers, work: Any, windows: list[Found]) -> float:
    begin = time.perf_counter()
    n = sum(1 for _ in workers.map(work, windows, chunk=CHUNK))
    return (time.perf_counter() - begin) / n


def render(found: dict[str, Any]) -> None:
    """Print what was measured, and what follows for many workers."""
    here = found["here"]
    sweeps = {name: found[name] for name in ("here", "1 workers", "2 workers")}
    rows = [
        (name, f"{each * 1e3:.0f}", f"{1 / each:.1f}", f"{here / each:.2f}") for name, each in sweeps.items()
    ]
    print_table(found["machine"], ("sweep", "ms per window", "windows per s", "ratio to one process"), rows)
    # A worker adds `here` per window, the client and the scheduler take `serial` for each.
    serial = found["by URL"]
    row = (f"{serial * 1e3:.2f}", f"{here / serial:,.0f}", f"{min(_MANY / here, 1 / serial):,.0f}")
    columns = ("client and scheduler, ms per window", "busy workers at most", f"windows/s of {_MANY}")
    print_table("More workers", columns, [row])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
