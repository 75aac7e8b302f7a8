"""Workers and launchers of this machine are ended for good or started again, and never their successors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rca.act.processes import EndProcess, launcher_of, processes_of, this_machine, worker_of
from rca.act.tools import ToolError
from rca.errors import InvalidInput
from rca.runtime.antdt.controller import KILL_RESTART, ControlAction
from tests.waiting import until

pytestmark = pytest.mark.system
WORKER = Path(__file__).with_name("elastic_worker.py")


@dataclass(frozen=True)
class Sleeping:
    """A worker of rank 3 of a job, with a child that inherits its environment."""

    job: str
    process: subprocess.Popen[bytes]

    def worker(self) -> EndProcess:
        return until(lambda: worker_of(self.job, 3), not_yet=InvalidInput)


@pytest.fixture
def sleeping() -> Iterator[Sleeping]:
    job = f"sleepy-{time.time_ns()}"
    variables = {"RANK": "3", "RCA_COLLECT_JOB_ID": job, "PATH": os.environ["PATH"]}
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], env=variables, start_new_session=True) as process:
        yield Sleeping(job, process)
        os.killpg(process.pid, signal.SIGKILL)


def test_the_worker_of_a_rank_is_found_and_not_its_loader(sleeping: Sleeping) -> None:
    found = sleeping.worker()
    assert found.pid == sleeping.process.pid
    assert worker_of(sleeping.job, 2) is None
    assert worker_of("other", 3) is None


def test_only_an_elastic_launcher_of_the_job_alone_is_ended(sleeping: Sleeping) -> None:
    worker = sleeping.worker()
    # The parent is this test.
    with pytest.raises(InvalidInput, match=r"rank 3 of sleepy-\d+ was not started by torchrun"):
        launcher_of(sleeping.job, worker)
    with pytest.raises(InvalidInput, match="was not started by torchrun"):
        processes_of(sleeping.job, [3], takes_out=True)
    assert sleeping.process.poll() is None


LAUNCHER = """
import subprocess, sys
worker = subprocess.Popen(["/bin/sleep", "600"], env={"RANK": "3", "RCA_COLLECT_JOB_ID": sys.argv[2]})
other = [subprocess.Popen(["/bin/sleep", "600"])] if sys.argv[3] == "other" else []
print(worker.pid, *[each.pid for each in other], flush=True)
worker.wait()
"""


@pytest.mark.parametrize("more", ["alone", "other"])
def test_a_launcher_with_other_work_is_left_alone(more: str) -> None:
    job = f"launched-{time.time_ns()}"
    command = [sys.executable, "-c", LAUNCHER, "torch.distributed.run", job, more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            if more == "other":
                with pytest.raises(InvalidInput, match="has other children than workers"):
                    processes_of(job, [3], takes_out=True)
            else:
                steps, n_nodes = processes_of(job, [3], takes_out=True)
                assert ([step.text for step in steps], n_nodes) == (
                    [f"kill -TERM {process.pid} (launcher of rank 3 of {job})"],
                    1,
                )
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_the_training_behind_a_wrapper_ends_with_it(sleeping: Sleeping) -> None:
    step = sleeping.worker()
    inner = until(lambda: _children(step.pid))
    step.carry_out()
    assert step.is_done()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inner))


def test_a_process_of_another_machine_is_not_done(sleeping: Sleeping) -> None:
    step = sleeping.worker().model_copy(update={"machine": f"{this_machine()} of another container"})
    for ask in (step.is_done, step.check, step.carry_out):
        with pytest.raises(ToolError, match="is of another machine"):
            ask()
    assert sleeping.process.poll() is None


def _children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_a_process_is_ended_once(sleeping: Sleeping) -> None:
    step = sleeping.worker()
    step.check()
    assert not step.is_done()
    step.carry_out()
    assert step.is_done()
    assert sleeping.process.wait(10) == -signal.SIGKILL
    step.carry_out()


def test_another_process_with_the_same_number_is_left_alone(sleeping: Sleeping) -> None:
    step = sleeping.worker()
    successor = step.model_copy(update={"started": step.started - 1})
    assert successor.is_done()
    successor.carry_out()
    assert sleeping.process.poll() is None


def test_a_rank_that_runs_elsewhere_is_no_process_of_this_machine() -> None:
    with pytest.raises(InvalidInput, match="no worker of these ranks runs on this machine: 7"):
        processes_of("nowhere", [7], takes_out=False)


def test_two_processes_that_claim_to_be_one_rank_are_both_left_alone(
    sleeping: Sleeping,
) -> None:
    sleeping.worker()
    variables = {"RANK": "3", "RCA_COLLECT_JOB_ID": sleeping.job}
    with subprocess.Popen(["/bin/sleep", "600"], env=variables) as other:
        try:
            until(lambda: _claims(other.pid))
            with pytest.raises(InvalidInput, match="several processes are rank 3 of sleepy-"):
                worker_of(sleeping.job, 3)
        finally:
            other.kill()
    assert sleeping.process.poll() is None


def _claims(pid: int) -> bool:
    return b"RANK=3" in Path(f"/proc/{pid}/environ").read_bytes()


class ElasticJob:
    """Launchers of one elastic job, and the starts of its workers."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.launchers: list[subprocess.Popen[bytes]] = []
        self.port = 0

    def launch(self, port: int, nodes: str, workers: int, *, host: bool) -> None:
        store = f"is_host={int(host)},last_call_timeout=1,join_timeout=60"
        command = [
            sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={workers}",
            "--max-restarts=5", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
            f"--rdzv-id={self.name}", f"--rdzv-conf={store}", "--monitor-interval=0.1",
            str(WORKER), str(self.folder),
        ]  # fmt: skip
        with (self.folder / f"launcher-{len(self.launchers)}.log").open("wb") as log:
            launched = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.launchers.append(launched)

    def starts(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]

    def running(self, world_size: int) -> list[dict[str, Any]]:
        """The workers that are alive, if they are the whole job."""
        alive = [each for each in self.starts() if Path(f"/proc/{each['pid']}").exists()]
        whole = {each["RANK"] for each in alive} == set(range(world_size))
        return alive if whole and all(each["WORLD_SIZE"] == world_size for each in alive) else []

    def end(self) -> None:
        for each in self.launchers:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
                each.wait()
        for each in self.starts():
            try:
                os.kill(each["pid"], signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def elastic(tmp_path: Path) -> Iterator[ElasticJob]:
    pytest.importorskip("torch")
    job = ElasticJob(tmp_path, f"elastic-{time.time_ns()}")
    yield job
    job.end()


def free_port() -> int:
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_kill_restart_of_antdt_starts_the_workers_of_a_real_elastic_job_again(elastic: ElasticJob) -> None:
    elastic.launch(free_port(), "1", 2, host=True)
    first = until(lambda: elastic.running(2))
    action = ControlAction(KILL_RESTART, "worker 1 has cost more than a restart", worker=1)
    assert action.worker is not None
    [step], _ = processes_of(elastic.name, [action.worker], takes_out=False)
    assert isinstance(step, EndProcess)
    assert step.pid == next(each["pid"] for each in first if each["RANK"] == 1)
    step.carry_out()
    again = until(lambda: [each for each in elastic.running(2) if each not in first])
    assert {each["TORCHELASTIC_RESTART_COUNT"] for each in again} == {1}
    # The new worker is another process: the step is done, and does not touch it.
    step.carry_out()
    assert elastic.running(2)


@pytest.mark.long
def test_a_real_elastic_job_goes_on_without_the_machine_whose_launcher_ends(elastic: ElasticJob) -> None:
    port = free_port()
    elastic.launch(port, "1:2", 1, host=True)
    elastic.launch(port, "1:2", 1, host=False)
    workers = until(lambda: elastic.running(2))
    leaving = elastic.launchers[1].pid
    rank = next(each["RANK"] for each in workers if _parent(each["pid"]) == leaving)
    [step], n_nodes = processes_of(elastic.name, [rank], takes_out=True)
    assert n_nodes == 2
    assert isinstance(step, EndProcess)
    assert step.pid == leaving
    step.carry_out()
    assert until(lambda: elastic.running(1))
    assert elastic.launchers[0].poll() is None


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
