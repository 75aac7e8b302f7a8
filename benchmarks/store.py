"""``python -m benchmarks store``: a database after 100,000 diagnoses: its size, its lists, its pruning.

The database is SQLite, filled in bulk. A real service answers each list alone and for eight callers at once.
Then half of the diagnoses are pruned while another connection writes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Budget, child_processes, machine, peak_memory, repeat, summary
from benchmarks.store_rows import fill
from rca_api.diagnoses.tables import WindowRow
from rca_api.shell.demo import running_service
from rca_api.shell.store.base import new_id
from rca_api.shell.store.database import Database
from rca_api.shell.store.old_rows import Ages, OldRows

_CALLERS = 8
NODES = "/v1/nodes"
#: Enough runs of the nodes for a 95th percentile.
MANY = Budget(30.0, 60, 400)
_LISTS = (
    NODES,
    "/v1/diagnoses?limit=200",
    "/v1/diagnoses?limit=200&node=node-00007",
    "/v1/diagnoses?limit=200&cause=cpu_contention",
    "/v1/diagnoses?limit=200&abstained=true",
    "/v1/incidents?limit=200",
)


def main(arguments: list[str]) -> int:
    """Fill, ask and prune; prints a table."""
    given = _options(arguments)
    with TemporaryDirectory(prefix="rca-store-", dir=given.folder) as folder:
        path = Path(folder) / "rca.db"
        began = time.perf_counter()
        database = Database(f"sqlite:///{path}")
        database.upgrade()
        fill(database, given.diagnoses)
        database.close()
        found: dict[str, Any] = {
            "diagnoses": given.diagnoses,
            "fill_seconds": time.perf_counter() - began,
            "bytes": path.stat().st_size,
            "load_average": os.getloadavg()[0],
            "machine": machine(),
        }
        found["lists"], found["api_bytes"] = _lists(folder)
        found["prune"] = _pruned(path)
    render(found, Console(width=None if sys.stdout.isatty() else 120))
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks store", description=__doc__)
    parser.add_argument("--diagnoses", type=int, default=100_000)
    parser.add_argument("--folder", help="where the database is made, for example on a disk to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, too")
    return parser.parse_args(arguments)


def _lists(folder: str) -> tuple[dict[str, dict[str, float]], int]:
    """Seconds of each list alone and of eight at once; and the peak memory of the API process, bytes."""
    taken: dict[str, dict[str, float]] = {}
    others = set(child_processes())
    settings = {"RCA_DATA_DIR": folder, "RCA_PROCESSES": "1", "RCA_LOG_LEVEL": "warning"}
    with running_service(settings=settings) as url:
        [server] = set(child_processes()) - others
        for path in _LISTS:
            ask = _asked(url + path)
            alone = repeat(ask, MANY if path == NODES else Budget(3.0, 3, 20))
            with ThreadPoolExecutor(_CALLERS) as callers:
                at_once = list(callers.map(lambda ask: ask(), [_timed(ask)] * _CALLERS))
            taken[path] = {
                "alone": float(np.median(alone)),
                "p95": float(np.quantile(alone, 0.95, method="higher")),
                "runs": len(alone),
                "at_once": max(at_once),
            }
        return taken, peak_memory(server)


def _asked(url: str) -> Callable[[], None]:
    def ask() -> None:
        with urlopen(url, timeout=120) as answer:
            answer.read()

    return ask


def _timed(ask: Callable[[], None]) -> Callable[[], float]:
    def timed() -> float:
        began = time.perf_counter()
        ask()
        return time.perf_counter() - began

    return timed


class Writer(threading.Thread):
    """Commits a row every few milliseconds, and notes how long each takes."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._database = Database(f"sqlite:///{path}")
        self._stopped = threading.Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self._stopped.wait(0.005):
            began = time.perf_counter()
            with self._database.session() as session:
                session.add(WindowRow(digest=new_id() + new_id(), job_id="job", n_bytes=1))
            self.seconds.append(time.perf_counter() - began)

    def stop(self) -> dict[str, float]:
        """Summary of its waits."""
        self._stopped.set()
        self.join()
        self._database.close()
        return summary(self.seconds) | {"longest": max(self.seconds)}


def _pruned(path: Path) -> dict[str, Any]:
    """Delete what is older than half a year while another connection writes."""
    alone = Writer(path)
    alone.start()
    time.sleep(2.0)
    before = alone.stop()
    database = Database(f"sqlite:///{path}")
    keep_all = Ages(*[None] * len(fields(Ages)))
    writer = Writer(path)
    writer.start()
    began = time.perf_counter()
    deleted = OldRows(database, keep_all.all(timedelta(days=182))).delete()
    seconds = time.perf_counter() - began
    found = {"deleted": deleted, "seconds": seconds, "writer_alone": before, "writer": writer.stop()}
    found["free_bytes"] = database.free_bytes()
    database.close()
    return found


def render(found: dict[str, Any], console: Console) -> None:
    """Print the figures."""
    table = Table(title=f"{found['diagnoses']:,} diagnoses in SQLite", title_justify="left")
    table.add_column("list")
    for name in ("alone, p50 ms", "p95 ms", "runs"):
        table.add_column(name, justify="right")
    table.add_column(f"{_CALLERS} at once, slowest, ms", justify="right")
    for path, taken in found["lists"].items():
        alone, p95, slowest = (f"{taken[name] * 1e3:,.0f}" for name in ("alone", "p95", "at_once"))
        table.add_row(path, alone, p95, f"{taken['runs']}", slowest)
    console.print(table)
    size = found["bytes"]
    console.print(f"The file has {size / 1e6:,.0f} MB: {size / found['diagnoses']:,.0f} bytes per diagnosis.")
    pruned = found["prune"]
    alone, beside = pruned["writer_alone"], pruned["writer"]
    console.print(
        f"Deleting {sum(pruned['deleted'].values()):,} rows took {pruned['seconds']:.1f} s. A writer waited "
        f"{beside['p50'] * 1e3:.1f} ms (median) and {beside['p99'] * 1e3:.0f} ms (p99) meanwhile, "
        f"{alone['p50'] * 1e3:.1f} and {alone['p99'] * 1e3:.0f} ms alone. "
        f"The longest wait was {beside['longest'] * 1e3:.0f} ms."
    )
    console.print(", ".join(f"{number:,} {name}" for name, number in pruned["deleted"].items()))
    console.print(f"The API process held {found['api_bytes'] / 1e6:,.0f} MB at most.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
