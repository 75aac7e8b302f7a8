"""``python -m benchmarks memory``: peak memory of the largest requests that the service accepts, by shape.

Each request runs in a new process that is set up as those of the pool, through the pool's own tasks. A shape
grows until its estimate is just below the limit of the service. So the peaks are the worst ones that the
estimate lets pass. Sparse windows and those above the limit follow, with the time until they are refused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import MIB, machine, memory, peak_memory, print_table
from benchmarks.window_shapes import ROUTES, SHAPES, SPARSE, Route, ShapedRequest, largest, timed
from rca.window.encodings import arrow
from rca_api.diagnoses import work
from rca_api.diagnoses.history import EarlierWindows, HealthyWindow, History
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.processes.child_process import Reply
from rca_api.shell.processes.process import Context, Setup, call, initialize
from rca_api.shell.requests.decoding import JSON, Body, Sent
from rca_api.shell.requests.request_bodies import limits_of
from rca_api.shell.settings.settings import Settings
from rca_api.what_if.work import WhatIfOptions, answer

#: Peak of a process that no accepted request may exceed.
MAX_BYTES = 1024 * MIB


@dataclass(frozen=True)
class MemoryUse:
    """One request in a process of its own; sizes in bytes.

    Attributes
    ----------
    outcome : str
        Failure mode, ``answered``, or the code of the error.
    idle, peak : int
        Resident size before the request, and the largest one.
    estimate : int
        Of the memory beyond the idle process; 0 for a body that is no window.
    """

    shape: str
    route: str
    body: int
    outcome: str
    seconds: float
    idle: int
    peak: int
    estimate: int
    answer: int

    @property
    def accepted(self) -> bool:
        """Whether the request was answered."""
        return self.answer > 0


def main(arguments: list[str]) -> int:
    """Measure and print a table; 1 if an accepted request exceeds `MAX_BYTES`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    limit = int(Settings().max_window_memory_bytes) // MIB
    parser.add_argument("--limit", type=int, default=limit, help="MiB; the default of the service if absent")
    parser.add_argument("--shapes", nargs="+", default=[*SHAPES, *SPARSE], choices=[*SHAPES, *SPARSE])
    given = parser.parse_args(arguments)
    found = list(measured(given.shapes, given.limit * MIB))
    _print(found, given.limit)
    return int(any(each.accepted and each.peak > MAX_BYTES for each in found))


def measured(shapes: list[str], limit: int) -> Iterator[MemoryUse]:
    """Measure every shape on every route that takes it; `limit` is in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        for name in shapes:
            requests = SPARSE[name]() if name in SPARSE else largest(SHAPES[name], limit)
            for request in requests:
                found = of_request(name, request, Path(folder), limit)
                progress = f"{name}, {found.route}: {found.outcome}, {found.peak / MIB:,.0f} MiB"
                sys.stderr.write(f"memory: {progress} in {found.seconds:.1f} s\n")
                yield found


def of_request(name: str, request: ShapedRequest, folder: Path, limit: int) -> MemoryUse:
    """One request, in a new process; bodies are in files of the folder, as the service keeps large ones."""
    bodies = [folder / "body", *([folder / "earlier"] if request.earlier is not None else [])]
    for path, content in zip(bodies, (request.body, request.earlier or b""), strict=False):
        path.write_bytes(content)
    body, *earlier = map(str, bodies)
    command = [sys.executable, "-m", "benchmarks.memory", "--one", body, request.route, str(limit)]
    done = subprocess.run([*command, *earlier], check=True, capture_output=True)
    return MemoryUse(
        shape=name, route=request.route, body=len(request.body), estimate=request.estimate,
        **json.loads(done.stdout),
    )  # fmt: skip


def one(path: str, route: Route, limit: str, earlier: str | None = None) -> None:
    """Run one request in this process, after two small ones, and print what it took."""
    with tempfile.TemporaryDirectory() as folder:
        context, _ = initialize(Setup(BundleRef(None), None, folder, "error", int(limit)))
        history = History()
        small = Body(timed(16, 40).to_json(), None)
        for warm in ROUTES:
            _run(context, warm, small, history)
        if earlier is not None:
            stored = call(work.accept_window, context, _sent(Body(b"", Path(earlier)))).value
            known = HealthyWindow(stored.digest, stored.start, stored.end)
            history = History(windows=EarlierWindows({stored.job_id: (known,)}))
        idle, began = memory(), time.perf_counter()
        Path("/proc/self/clear_refs").write_text("5")
        reply = _run(context, route, Body(b"", Path(path)), history)
        seconds = time.perf_counter() - began
    if reply.crash is not None:
        raise RuntimeError(str(reply.crash))
    if reply.error is not None:
        outcome, answered = reply.error.code, 0
    elif route == "what-if":
        outcome, answered = "answered", len(reply.value)
    else:
        outcome, answered = reply.value[1].failure_mode, len(reply.value[1].document)
    figures = {
        "outcome": outcome,
        "seconds": seconds,
        "idle": idle,
        "peak": peak_memory(),
        "answer": answered,
    }
    json.dump(figures, sys.stdout)


def _run(context: Context, route: Route, body: Body, history: History) -> Reply:
    if route == "what-if":
        return call(answer, context, _sent(body), WhatIfOptions("full", True, False, {}))
    return call(work.diagnose, context, _sent(body), BundleRef(None), JSON, history)


def _sent(body: Body) -> Sent:
    first = body.content[:1]
    if body.path is not None:
        with body.path.open("rb") as file:
            first = file.read(1)
    kind = JSON if first == b"{" else arrow.CONTENT_TYPE
    return Sent(body, kind, "identity", limits_of(Settings(), kind))


def _print(found: list[MemoryUse], limit: int) -> None:
    columns = ("shape", "route", "outcome", "body MiB", "s", "estimate MiB", "taken MiB", "estimate / taken")
    rows = []
    for each in found:
        taken = max(each.peak - each.idle, 1)
        ratio = f"{each.estimate / taken:.1f}" if each.accepted and each.estimate else ""
        sizes = (f"{each.body / MIB:.3g}", f"{each.seconds:.2f}", f"{each.estimate / MIB:,.0f}")
        peak = (f"{taken / MIB:,.0f}", ratio, f"{each.peak / MIB:,.0f}", f"{taken / each.body:,.0f}")
        rows.append((each.shape, each.route, each.outcome, *sizes, *peak))
    title = f"Memory of one request; limit of the estimate {limit:,} MiB"
    print_table(title, (*columns, "peak MiB", "taken / body"), rows)
    worst = max((each for each in found if each.accepted), key=lambda each: each.peak, default=None)
    if worst is not None:
        peak_mib = f"{worst.peak / MIB:,.0f} MiB of {MAX_BYTES / MIB:,.0f} MiB"
        print(f"Worst accepted: {worst.shape}, {worst.route}: {peak_mib}. {machine()}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        path, route, limit, *earlier = sys.argv[2:]
        one(path, "what-if" if route == "what-if" else "diagnoses", limit, *earlier)
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
