"""``python -m benchmarks act``: faults in a running elastic job, detected and acted on without a person.

Two real launchers of torchrun, as on two nodes, have two workers each, which send their telemetry to a
service with `rca.collect`. After a healthy span one worker is stopped (SIGSTOP), so that all hang, or it
computes slowly from then on. An agent with an automatic policy reads the incident and does what the plan
recommends: it kills the worker that hangs, or ends the launcher of the slow one. The job starts again.
A played exporter gives each worker a GPU, whose clock falls with the worker's pace.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import numpy as np
import orjson
import psutil
import pyarrow as pa

from benchmarks import act_job
from benchmarks.measure import BusyCores, machine, print_table
from benchmarks.service import started_service
from rca.act.agent import PlanAgent
from rca.act.journal import BEGUN, ActionJournal
from rca.act.policy import AgentPolicy
from rca.act.processes import worker_of
from rca.client import Client, ServiceError
from rca.errors import InvalidInput
from rca.window.window import Window

RANKS, RANKS_PER_NODE = 4, 2
#: Steps before a fault, seconds that a fault is followed, and seconds between two rounds of the agent.
STEPS_BEFORE, GIVE_UP_SECONDS, ROUND_SECONDS = 150, 60.0, 0.5
SILENCE_SECONDS = 4.0
#: What a restart of this job costs, and how long it goes on.
SITE = {"elastic": True, "restart_seconds": 2.0, "checkpoint_seconds": 0.1, "steps_left": 100_000}
#: Seconds between two samples of a played GPU, and its usual clock, MHz.
EXPORTER_SECONDS = 0.5
CLOCK = 1980.0
#: The measured gain of an action is waited for so long.
GAIN_SECONDS = 40.0


#: Attempt and number of ranks.
Run = tuple[int, int]


@dataclass
class Fault:
    """Seconds after a fault at which its stages were reached; None if one was not.

    Attributes
    ----------
    right : bool
        Whether the agent acted on the rank of the fault.
    harmed : bool
        Whether it acted in the healthy span before.
    others : float
        Cores that strangers kept busy meanwhile.
    predicted, observed : float or None
        Gain of the action, seconds per step, as its incident has it.
    """

    kind: str
    rank: int
    diagnosed: float | None = None
    acted: float | None = None
    recovered: float | None = None
    right: bool = False
    harmed: bool = False
    others: float = 0.0
    predicted: float | None = None
    observed: float | None = None
    reports: list[str] = field(default_factory=list)


class Rounds(ThreadingTCPServer):
    """The collective: lets a step of an attempt go on when all ranks have arrived."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.step = 0
        self.changed = threading.Condition()
        #: Ranks by run and step; a run is an attempt with its number of ranks.
        self.arrived: dict[tuple[Run, int], set[int]] = defaultdict(set)
        self.lost: set[Run] = set()
        super().__init__(("127.0.0.1", 0), _Rank)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def until_step(self, step: int, seconds: float) -> bool:
        """Wait until a step is done by all ranks."""
        with self.changed:
            return self.changed.wait_for(lambda: self.step >= step, seconds)


class _Rank(StreamRequestHandler):
    server: Rounds

    def handle(self) -> None:
        rounds = self.server
        rank, attempt, world_size = map(int, self.rfile.readline().split())
        run = attempt, world_size
        # A worker that is killed resets its link.
        with suppress(ConnectionError):
            self._serve(rank, run)
        with rounds.changed:
            rounds.lost.add(run)
            rounds.changed.notify_all()

    def _serve(self, rank: int, run: Run) -> None:
        rounds = self.server
        self._say(rounds.step)
        while line := self.rfile.readline():
            key = run, int(line)
            with rounds.changed:
                rounds.arrived[key].add(rank)
                if len(rounds.arrived[key]) == run[1]:
                    rounds.step = max(rounds.step, key[1] + 1)
                rounds.changed.notify_all()
                rounds.changed.wait_for(
                    lambda key=key: len(rounds.arrived[key]) == run[1] or run in rounds.lost
                )
                if run in rounds.lost:
                    break
            self._say(key[1])

    def _say(self, number: int) -> None:
        self.wfile.write(b"%d\n" % number)


def main(arguments: list[str]) -> int:
    """Inject faults one after the other, and print a table; 1 if a healthy span was acted on."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks act", description=__doc__)
    parser.add_argument("--faults", type=int, default=20, help="[default: 20]")
    parser.add_argument(
        "--kinds", nargs="+", default=["stop", "slow"], help="in turns, of: stop slow [default: both]"
    )
    parser.add_argument(
        "--rows", type=Path, help="JSON lines of faults; those that it has are not injected again"
    )
    given = parser.parse_args(arguments)
    settings = {
        "RCA_RATE_LIMIT": "", "RCA_PROCESSES": "1", "RCA_WATCH_SECONDS": "0.25",
        "RCA_JOB_SILENCE_SECONDS": str(SILENCE_SECONDS),
    }  # fmt: skip
    faults = _earlier(given.rows)
    with tempfile.TemporaryDirectory() as held, started_service(settings) as (url, _):
        for number in range(len(faults), given.faults):
            job, cores = _Job(url, Path(held), f"act-{os.getpid()}-{number}"), BusyCores()
            try:
                harmed = job.healthy()
                found = replace(
                    job.fault(given.kinds[number % len(given.kinds)], number),
                    harmed=harmed,
                    others=cores.others(),
                )
            finally:
                job.end()
            faults.append(found)
            print(f"act: {found}", file=sys.stderr)
            if given.rows is not None:
                with given.rows.open("ab") as rows:
                    rows.write(orjson.dumps(found) + b"\n")
    _print(faults)
    return int(any(each.harmed for each in faults))


def _earlier(path: Path | None) -> list[Fault]:
    if path is None or not path.exists():
        return []
    return [Fault(**orjson.loads(line)) for line in path.read_bytes().splitlines()]


def _print(faults: list[Fault]) -> None:
    stages = ("diagnosed", "acted", "recovered")
    rows = []
    for each in faults:
        seconds = (getattr(each, name) for name in stages)
        times = ("-" if found is None else f"{found:.1f}" for found in seconds)
        gains = ("-" if gain is None else f"{1e3 * gain:.1f}" for gain in (each.predicted, each.observed))
        right = "yes" if each.right else "no"
        rows.append((each.kind, each.rank, *times, right, *gains, f"{each.others:.1f}"))
    columns = (
        "fault",
        "rank",
        *(f"{name}, s" for name in stages),
        "right",
        "predicted, ms",
        "measured, ms",
        "cores busy by others",
    )
    print_table(machine(), columns, rows)
    for name in stages:
        values = [getattr(each, name) for each in faults]
        reached = sum(found is not None for found in values)
        print(f"{name}: {reached} of {len(faults)}, median {_median(values)} s")
    errors = [
        abs(each.observed / each.predicted - 1.0)
        for each in faults
        if each.predicted and each.observed is not None
    ]
    if errors:
        print(f"measured gain: {len(errors)}, median error {np.median(errors):.0%} of the prediction")
    print(f"acted on the right rank: {sum(each.right for each in faults)} of {len(faults)}")
    print(f"healthy spans that were acted on: {sum(each.harmed for each in faults)} of {len(faults)}")


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def _median(values: list[float | None]) -> str:
    known = [each for each in values if each is not None]
    return f"{np.median(known):.1f}" if known else "-"


class Exporter:
    """Sends the clock and use of a played GPU of each rank, until it is ended or the job has other ranks."""

    def __init__(self, client: Client, job: str, nodes: list[str]) -> None:
        self.slow: int | None = None
        self._client, self._job, self._nodes = client, job, nodes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        draw = np.random.default_rng(0)
        while not self._ended.wait(EXPORTER_SECONDS):
            now, ranks = time.time(), range(len(self._nodes))
            clocks = [
                CLOCK / (act_job.SLOW_FACTOR if rank == self.slow else 1.0) + draw.normal(0.0, 5.0)
                for rank in ranks
            ]
            rows = {
                "time": [now] * 2 * len(ranks), "rank": [*ranks] * 2, "node": self._nodes * 2,
                "name": ["DCGM_FI_DEV_SM_CLOCK"] * len(ranks) + ["DCGM_FI_DEV_GPU_UTIL"] * len(ranks),
                "value": [*clocks, *(draw.normal(97.0, 1.0, len(ranks)).clip(0.0, 100.0))],
            }  # fmt: skip
            job = {"job_id": self._job, "world_size": len(ranks), "start": now, "end": now + 1e-3}
            with suppress(ServiceError):
                self._client.send_telemetry(Window.from_tables(job, metrics=pa.table(rows), scope="fragment"))


class _Job:
    """One elastic job, its service and its agent."""

    def __init__(self, url: str, folder: Path, name: str) -> None:
        self.name, self.client, self.rounds = name, Client(url), Rounds()
        policy = {
            "service": url,
            "jobs": {name: {"platform": "torchrun", "site": SITE}},
            "mode": "automatic",
        }
        self.journal = ActionJournal(folder / f"{name}.sqlite")
        self.agent = PlanAgent(AgentPolicy.model_validate(policy), self.journal, self.client)
        self.launchers: list[subprocess.Popen[bytes]] = []
        self.exporter: Exporter | None = None
        port = _free_port()
        for node in range(RANKS // RANKS_PER_NODE):
            store = f"is_host={int(node == 0)},last_call_timeout=2,join_timeout=60"
            command = [
                sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{RANKS // RANKS_PER_NODE}",
                f"--nproc-per-node={RANKS_PER_NODE}", "--max-restarts=9", "--rdzv-backend=c10d",
                f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={name}", f"--rdzv-conf={store}",
                "--monitor-interval=0.1", "-m", "benchmarks.act_job", str(self.rounds.server_address[1]),
            ]  # fmt: skip
            variables = {
                "RCA_COLLECT_SERVICE": url, "RCA_COLLECT_DIR": str(folder / name),
                "RCA_COLLECT_NODE": f"node-{node}", "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            with (folder / f"{name}-{node}.log").open("wb") as log:
                self.launchers.append(
                    subprocess.Popen(
                        command, env=os.environ | variables, stdout=log, stderr=log, start_new_session=True
                    )
                )

    def healthy(self) -> bool:
        """Train without a fault while the agent looks; whether it acted."""
        if not self.rounds.until_step(1, GIVE_UP_SECONDS):
            raise RuntimeError("the job does not train; see its log")
        places = {each.pid: f"node-{number}" for number, each in enumerate(self.launchers)}
        nodes = [places[self._launcher(rank) or 0] for rank in range(RANKS)]
        self.exporter = Exporter(self.client, self.name, nodes)
        for step in range(10, STEPS_BEFORE + 1, 10):
            if not self.rounds.until_step(step, GIVE_UP_SECONDS):
                raise RuntimeError("the job does not train; see its log")
            self.agent.round()
        return any(each.state in BEGUN for each in self.journal.all())

    def fault(self, kind: str, number: int) -> Fault:
        """Stop a worker or make it slow, and follow what happens without a person."""
        # The first launcher holds the rendezvous, so a slow worker is one of the other.
        hosts = self.launchers if kind == "stop" else self.launchers[1:]
        ranks = [rank for rank in range(RANKS) if self._launcher(rank) in {each.pid for each in hosts}]
        found = Fault(kind, ranks[number // 2 % len(ranks)])
        worker = worker_of(self.name, found.rank)
        if worker is None:
            raise InvalidInput(f"rank {found.rank} has no process")
        if kind == "slow" and self.exporter is not None:
            self.exporter.slow = found.rank
        os.kill(worker.pid, signal.SIGSTOP if kind == "stop" else signal.SIGUSR1)
        began = time.monotonic()
        self.rounds.until_step(self.rounds.step + 1, 0.5)
        stood, before = self.rounds.step, self._diagnosis()
        while time.monotonic() - began < GIVE_UP_SECONDS and found.recovered is None:
            now = time.monotonic() - began
            if found.diagnosed is None and self._diagnosis() != before:
                found.diagnosed = now
            for report in self.agent.round():
                if report.text not in found.reports:
                    found.reports.append(report.text)
            held = next((each for each in self.journal.all() if each.state == "done"), None)
            if found.acted is None and held is not None:
                found.acted = time.monotonic() - began
                found.right = found.rank in held.ranks
                stood = self.rounds.step
            if self.rounds.until_step(stood + 5, ROUND_SECONDS) and found.acted is not None:
                found.recovered = time.monotonic() - began
        if kind == "slow" and found.acted is not None:
            self._follow_gain(found)
        return found

    def _follow_gain(self, found: Fault) -> None:
        """Wait for the gain that the service measures on the steps after the action."""
        incident = self.journal.all()[0].incident
        ends = time.monotonic() + GAIN_SECONDS
        while time.monotonic() < ends and found.observed is None:
            time.sleep(ROUND_SECONDS)
            [taken] = orjson.loads(self.client.get(f"/v1/incidents/{incident}/actions"))["items"]
            if taken["predicted"] is not None:
                found.predicted = taken["predicted"]["seconds_per_step_saved"]
            if taken["observed"] is not None and taken["windows_after"] >= 3:
                found.observed = taken["observed"]["seconds_per_step_saved"]

    def _launcher(self, rank: int) -> int | None:
        """The launcher of a worker."""
        worker = worker_of(self.name, rank)
        return None if worker is None else psutil.Process(worker.pid).ppid()

    def _diagnosis(self) -> object:
        try:
            return self.client.telemetry(self.name)["diagnosis_id"]
        except ServiceError:
            return None

    def end(self) -> None:
        """End the launcher and its workers."""
        for rank in range(RANKS):
            worker = worker_of(self.name, rank)
            if worker is not None and not worker.is_done():
                os.kill(worker.pid, signal.SIGKILL)
        for launcher in self.launchers:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()
        if self.exporter is not None:
            self.exporter.end()
        self.rounds.shutdown()
        self.rounds.server_close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
