"""``python -m benchmarks push``: steps from the onset of a real fault to its name, and the cost of sending.

Captures of the testbeds are played to a service at their own pace. Each rank's steps go through the
collector's sender (`rca.collect.push`), the counters of machines through the client, as an exporter's would.
Four stages are counted in steps from the onset, by the times that the service stores:

- shown: the watcher would see a change, had it all rows at once;
- noticed: the service has queued a diagnosis;
- located: a certain diagnosis blames ranks of the fault, and no other nodes than its own;
- named: its first cause is one that the label accepts. Of a fault without a known cause it names none.

"At once" are these stages without a service: a look after each step, whose diagnosis takes no time. The rest
is the time of sending, storing, looking and computing on this machine.

The cost is the processor time of all threads of the collector in a job with steps of 30 ms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

import rca
from benchmarks.measure import BusyCores, machine, print_table
from benchmarks.online_testbeds import MIN_AFTER, MIN_BEFORE, Capture, captures
from benchmarks.service import started_service
from rca import collect
from rca.arrays import FloatArray
from rca.client import Client
from rca.collect import collection
from rca.collect.faults import Faults
from rca.collect.identity import Identity
from rca.collect.push import Pusher, PushSettings
from rca.collect.timers import COLUMNS
from rca.diagnosis.result import Diagnosis
from rca.sources.labels import WindowLabel, accepted, located
from rca.window.causes import UNKNOWN
from rca.window.fragments import between_steps
from rca.window.schema import METRICS
from rca.window.window import Window
from rca_api.jobs.watcher import followed
from rca_api.jobs.work import Look, WantedLook, WatchedSteps, first_step, is_due

WITHIN_STEPS = 20
TICK_SECONDS, METRIC_SECONDS = 0.05, 0.5
#: Seconds for which a played job is followed after its last step.
AFTER_SECONDS = 4.0
STEP_SECONDS, TRAINED_STEPS = 0.03, 600


STAGES = ("shown", "noticed", "located", "named")
AT_ONCE = ("shown", "located at once", "named at once")


@dataclass(frozen=True)
class Played:
    """Steps from the onset of a fault until each stage; a stage that was not reached is absent.

    Attributes
    ----------
    steps : dict of str to float
        By `STAGES` and `AT_ONCE`.
    longer : float
        Median step after the onset over that before it.
    others : float
        Cores that strangers kept busy meanwhile.
    """

    testbed: str
    cause: str
    ranks: int
    step_seconds: float
    longer: float
    steps: dict[str, float]
    others: float


def main(arguments: list[str]) -> int:
    """Play faults, measure the cost, and print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks push", description=__doc__)
    parser.add_argument("--faults", type=int, nargs="*", help="numbers of faults [default: all]")
    given = parser.parse_args(arguments)
    print_table(
        machine(),
        ("30 ms steps", "collector, ms per step", "share of a step"),
        [_cost(send=False), _cost(send=True)],
    )
    with tempfile.TemporaryDirectory() as held:
        found = [each for each in captures(Path(held)) if _onset(each) is not None]
        chosen = [found[number] for number in given.faults or range(len(found))]
        with started_service({"RCA_RATE_LIMIT": "", "RCA_PROCESSES": "1"}) as (url, _):
            played = []
            for number, each in enumerate(chosen):
                played.append(_play(url, each, f"played-{number}", Path(held) / "spool"))
                print(f"push: {played[-1]}", file=sys.stderr)
    _print_faults(played)
    return 0


def _print_faults(played: list[Played]) -> None:
    names = list(dict.fromkeys((*STAGES, *AT_ONCE)))
    rows = []
    for each in played:
        shape = each.ranks, f"{1e3 * each.step_seconds:.0f}", f"{each.longer:.2f}"
        stages = (f"{each.steps[name]:.0f}" if name in each.steps else "-" for name in names)
        rows.append((each.testbed, each.cause, *shape, *stages, f"{each.others:.1f}"))
    columns = "testbed", "cause", "ranks", "step, ms", "longer by", *names, "cores busy by others"
    print_table("steps from the onset", columns, rows)
    for name in names:
        soon = sum(each.steps.get(name, np.inf) <= WITHIN_STEPS for each in played)
        print(f"{name} within {WITHIN_STEPS} steps: {soon} of {len(played)}")


def _onset(capture: Capture) -> float | None:
    """Unix seconds at which the fault of a slow capture begins; None if it has not enough steps around it."""
    label = capture.label
    if label.failure_mode != "fail_slow" or label.causes[0].first_step is None:
        return None
    step = capture.window.steps.column("step").to_numpy()
    numbers = np.unique(step)
    place = int(np.searchsorted(numbers, label.causes[0].first_step))
    if not MIN_BEFORE <= place < numbers.size - MIN_AFTER:
        return None
    return float(np.median(capture.window.steps.column("start_time").to_numpy()[step == numbers[place]]))


def _play(url: str, capture: Capture, job_id: str, spool: Path) -> Played:
    window, label = capture.window, located(capture.label, capture.window.job)
    job = _PlayedJob.begun(url, window, job_id, spool)
    onset = (_onset(capture) or 0.0) + job.shift
    cores = BusyCores()
    while (now := time.time()) < job.over:
        job.send(now)
        time.sleep(TICK_SECONDS)
    others = cores.others()
    job.end()
    reached: dict[str, float] = {}
    for created, finished, answer in _diagnoses(job.api, job_id):
        if created > onset:
            reached.setdefault("noticed", created)
            for name in _stages(answer, label, window):
                reached.setdefault(name, finished)
    starts = np.sort(job.rows[0][:, 1])
    steps = {name: float(((starts > onset) & (starts <= at)).sum()) for name, at in reached.items()}
    usual, longer, at_once = _at_once(window, label)
    return Played(
        capture.testbed, label.causes[0].cause, window.job.world_size, usual, longer, steps | at_once, others
    )


def _at_once(window: Window, label: WindowLabel) -> tuple[float, float, dict[str, float]]:
    """The usual step, how much longer steps became, and the steps until each stage without a service."""
    nodes = {place.rank: place.node for place in window.job.ranks or () if place.node}
    watched = WatchedSteps.of(window, nodes)
    first = label.causes[0].first_step or 0
    before, after = watched.seconds[watched.steps < first], watched.seconds[watched.steps >= first]
    usual, found = float(np.nanmedian(before)), dict[str, float]()
    wanted = WantedLook(None, None, None)
    for last in watched.steps[watched.steps >= first].tolist():
        change = watched.change(last)
        due = change is not None and is_due(change, last, wanted)
        if change is not None:
            found.setdefault("shown", float(last - first))
        if due:
            cut = between_steps(window, first_step(change, last, wanted), last)
            for name in _stages(rca.diagnose(cut), label, window):
                found.setdefault(f"{name} at once", float(last - first))
        changed, following, _ = followed(Look(change, last, None, None), wanted, queued=due)
        wanted = WantedLook(changed, following, None)
    return usual, float(np.nanmedian(after)) / usual, found


def _stages(answer: Diagnosis, label: WindowLabel, window: Window) -> Iterator[str]:
    """The stages that an answer reaches."""
    if answer.abstained or answer.failure_mode == "healthy":
        return
    fault = label.causes[0]
    blamed = {rank for each in answer.stragglers for rank in each.ranks}
    blamed |= {rank for each in answer.causes for rank in each.ranks}
    near = {place.rank for place in window.job.ranks or () if place.node in fault.nodes} | set(fault.ranks)
    if not (blamed & set(fault.ranks) and blamed <= near):
        return
    yield "located"
    named = answer.causes[0].cause if answer.causes else UNKNOWN
    if named in accepted(fault):
        yield "named"


@dataclass
class _PlayedJob:
    """A job whose rows and samples are sent when their time has come."""

    api: Client
    window: Window
    job_id: str
    shift: float
    rows: dict[int, FloatArray]
    metrics: pa.Table
    pushers: dict[int, Pusher]
    sent: dict[int, int]
    n_metrics: int = 0
    next_metrics: float = 0.0

    @classmethod
    def begun(cls, url: str, window: Window, job_id: str, spool: Path) -> _PlayedJob:
        """Begin to send a window whose first row comes in a second."""
        shift = time.time() + 1.0 - window.job.start
        nodes = {place.rank: place.node or "unknown" for place in window.job.ranks or ()}
        pushers = {}
        for rank in range(window.job.world_size):
            pushers[rank] = Pusher(PushSettings(url, None, spool), {}, Faults())
            node = nodes.get(rank, "unknown")
            pushers[rank].start(Identity(rank, window.job.world_size, None, node, job_id, None))
        metrics = window.metrics.sort_by("time")
        times = pa.array(metrics.column("time").to_numpy() + shift)
        metrics = metrics.set_column(metrics.column_names.index("time"), "time", times)
        rows = _rows(window, shift)
        api = Client(url, timeout_seconds=20.0)
        return cls(api, window, job_id, shift, rows, metrics, pushers, dict.fromkeys(rows, 0))

    @property
    def over(self) -> float:
        """Unix seconds until which the job is followed."""
        return max(float(_ends(rows).max()) for rows in self.rows.values()) + AFTER_SECONDS

    def send(self, now: float) -> None:
        """Send what has happened by now."""
        for rank, rows in self.rows.items():
            until = int(np.searchsorted(_ends(rows), now))
            if until > self.sent[rank]:
                self.pushers[rank].add(rows[self.sent[rank] : until], [], None)
                self.sent[rank] = until
        if now < self.next_metrics:
            return
        self.next_metrics = now + METRIC_SECONDS
        until = int(np.searchsorted(self.metrics.column("time").to_numpy(), now))
        if until > self.n_metrics:
            new = self.metrics.slice(self.n_metrics, until - self.n_metrics)
            _send_metrics(self.api, self.window, self.job_id, new)
            self.n_metrics = until

    def end(self) -> None:
        """End the job on the service."""
        for made in self.pushers.values():
            made.end(over=False, seconds=2.0)
        self.api.end_job(self.job_id)


def _ends(rows: FloatArray) -> FloatArray:
    ends: FloatArray = rows[:, 1] + np.nan_to_num(rows[:, COLUMNS.index("step_seconds")])
    return ends


def _rows(window: Window, shift: float) -> dict[int, FloatArray]:
    """Each rank's rows with the columns of the collector, in the order of their steps."""
    numbers = window.steps.column("step").to_numpy()
    held = np.full((len(numbers), len(COLUMNS)), np.nan)
    for place, name in enumerate(COLUMNS):
        if name in window.steps.column_names:
            held[:, place] = window.steps.column(name).to_numpy()
    held[:, 0] = numbers - numbers.min()
    held[:, 1] += shift
    rank = window.steps.column("rank").to_numpy()
    return {int(each): held[rank == each][np.argsort(held[rank == each][:, 1])] for each in np.unique(rank)}


def _send_metrics(api: Client, window: Window, job_id: str, rows: pa.Table) -> None:
    bounds = pc.min_max(rows.column("time")).as_py()
    job = {
        "job_id": job_id,
        "world_size": window.job.world_size,
        "start": bounds["min"],
        "end": bounds["max"] + 1e-3,
    }
    if window.job.ranks is not None:
        job["ranks"] = [{"rank": place.rank, "node": place.node} for place in window.job.ranks]
    api.send_telemetry(
        Window.from_tables(job, metrics=rows.select([c.name for c in METRICS.columns]), scope="fragment")
    )


def _diagnoses(api: Client, job_id: str) -> list[tuple[float, float, Diagnosis]]:
    """When each diagnosis of a job was queued and done, Unix seconds, and its answer; the oldest first."""
    found: list[tuple[float, float, Diagnosis]] = []
    for each in orjson.loads(api.get(f"/v1/diagnoses?job={job_id}&state=done&limit=100"))["items"]:
        created, finished = (
            datetime.fromisoformat(each[name]).timestamp() for name in ("created_at", "finished_at")
        )
        answer = Diagnosis.model_validate_json(api.get(f"/v1/diagnoses/{each['diagnosis_id']}"))
        found.append((created, finished, answer))
    return sorted(found, key=lambda each: each[0])


def _cost(*, send: bool) -> tuple[str, str, str]:
    """Processor time of the collector's threads in a job with short steps."""
    with tempfile.TemporaryDirectory() as folder, _taking_service() as url:
        collect.start(folder, rank=0, world_size=1, job_id="cost", service=url if send else None)
        recorder = collection.CURRENT.recorder
        threads: list[threading.Thread] = []
        before = 0.0
        for number, _ in enumerate(collect.steps(range(TRAINED_STEPS))):
            with collect.phase("forward"):
                time.sleep(STEP_SECONDS / 2)
            with collect.phase("backward"):
                time.sleep(STEP_SECONDS / 2)
            if number == 60:
                threads = [each for each in threading.enumerate() if each.name.startswith("rca-")]
                before = sum(map(_cpu_seconds, threads))
        spent = sum(map(_cpu_seconds, threads)) - before
        assert recorder is not None
        collect.stop(None)
    each = spent / (TRAINED_STEPS - 61)
    return "files and service" if send else "files", f"{1e3 * each:.4f}", f"{each / STEP_SECONDS:.3%}"


def _cpu_seconds(thread: threading.Thread) -> float:
    return float(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def _taking_service() -> Iterator[str]:
    """A service that takes all telemetry and does nothing with it."""

    class Taking(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
