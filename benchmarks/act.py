"""``python -m benchmarks act``: faults in a running elastic job, detected and acted on without a person.

A real torchrun has four workers that send their telemetry to a service with `rca.collect`. After a healthy
span one worker is stopped (SIGSTOP), so that all hang. An agent with an automatic policy reads the incident
and kills the worker that the plan names. The launcher starts the job again.
"""

from __future__ import annotations

import argparse
import os
import signal
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

from benchmarks.measure import BusyCores, machine, print_table
from benchmarks.service import started_service
from rca.act.agent import PlanAgent
from rca.act.journal import BEGUN, ActionJournal
from rca.act.policy import AgentPolicy
from rca.act.processes import worker_of
from rca.client import Client, ServiceError
from rca.errors import InvalidInput

RANKS = 4
#: Steps before a fault, seconds that a fault is followed, and seconds between two rounds of the agent.
STEPS_BEFORE, GIVE_UP_SECONDS, ROUND_SECONDS = 150, 60.0, 0.5
SILENCE_SECONDS = 4.0


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
    """

    rank: int
    diagnosed: float | None = None
    acted: float | None = None
    recovered: float | None = None
    right: bool = False
    harmed: bool = False
    others: float = 0.0
    reports: list[str] = field(default_factory=list)


class Rounds(ThreadingTCPServer):
    """The collective: lets a step of an attempt go on when all ranks have arrived."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.step = 0
        self.changed = threading.Condition()
        self.arrived: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.lost: set[int] = set()
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
        rank, attempt = map(int, self.rfile.readline().split())
        # A worker that is killed resets its link.
        with suppress(ConnectionError):
            self._serve(rank, attempt)
        with rounds.changed:
            rounds.lost.add(attempt)
            rounds.changed.notify_all()

    def _serve(self, rank: int, attempt: int) -> None:
        rounds = self.server
        self._say(rounds.step)
        while line := self.rfile.readline():
            key = attempt, int(line)
            with rounds.changed:
                rounds.arrived[key].add(rank)
                if len(rounds.arrived[key]) == RANKS:
                    rounds.step = max(rounds.step, key[1] + 1)
                rounds.changed.notify_all()
                rounds.changed.wait_for(
                    lambda key=key: len(rounds.arrived[key]) == RANKS or attempt in rounds.lost
                )
                if attempt in rounds.lost:
                    break
            self._say(key[1])

    def _say(self, number: int) -> None:
        self.wfile.write(b"%d\n" % number)


def main(arguments: list[str]) -> int:
    """Inject faults one after the other, and print a table; 1 if a healthy span was acted on."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks act", description=__doc__)
    parser.add_argument("--faults", type=int, default=20, help="[default: 20]")
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
                found = replace(job.fault(number % RANKS), harmed=harmed, others=cores.others())
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
        rows.append((each.rank, *times, "yes" if each.right else "no", f"{each.others:.1f}"))
    columns = ("rank", *(f"{name}, s" for name in stages), "right", "cores busy by others")
    print_table(machine(), columns, rows)
    for name in stages:
        values = [getattr(each, name) for each in faults]
        reached = sum(found is not None for found in values)
        print(f"{name}: {reached} of {len(faults)}, median {_median(values)} s")
    print(f"acted on the right rank: {sum(each.right for each in faults)} of {len(faults)}")
    print(f"healthy spans that were acted on: {sum(each.harmed for each in faults)} of {len(faults)}")


def _median(values: list[float | None]) -> str:
    known = [each for each in values if each is not None]
    return f"{np.median(known):.1f}" if known else "-"


class _Job:
    """One elastic job, its service and its agent."""

    def __init__(self, url: str, folder: Path, name: str) -> None:
        self.name, self.client, self.rounds = name, Client(url), Rounds()
        policy = {
            "service": url,
            "jobs": {name: {"platform": "torchrun"}},
            "mode": "automatic",
        }
        self.journal = ActionJournal(folder / f"{name}.sqlite")
        self.agent = PlanAgent(AgentPolicy.model_validate(policy), self.journal, self.client)
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={RANKS}",
            "--max-restarts=9", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id={name}",
            "--monitor-interval=0.1", "-m", "benchmarks.act_job", str(self.rounds.server_address[1]),
        ]  # fmt: skip
        variables = {
            "RCA_COLLECT_SERVICE": url,
            "RCA_COLLECT_DIR": str(folder / name),
            "OMP_NUM_THREADS": "1",
        }
        with (folder / f"{name}.log").open("wb") as log:
            self.launcher = subprocess.Popen(
                command, env=os.environ | variables, stdout=log, stderr=log, start_new_session=True
            )

    def healthy(self) -> bool:
        """Train without a fault while the agent looks; whether it acted."""
        for step in range(10, STEPS_BEFORE + 1, 10):
            if not self.rounds.until_step(step, GIVE_UP_SECONDS):
                raise RuntimeError("the job does not train; see its log")
            self.agent.round()
        return any(each.state in BEGUN for each in self.journal.all())

    def fault(self, rank: int) -> Fault:
        """Stop a worker, and follow what happens without a person."""
        found = Fault(rank)
        worker = worker_of(self.name, rank)
        if worker is None:
            raise InvalidInput(f"rank {rank} has no process")
        os.kill(worker.pid, signal.SIGSTOP)
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
                found.right = rank in held.ranks
            if self.rounds.until_step(stood + 5, ROUND_SECONDS):
                found.recovered = time.monotonic() - began
        return found

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
        os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.wait()
        self.rounds.shutdown()
        self.rounds.server_close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
