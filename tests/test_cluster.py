"""Work on a real Dask scheduler with two workers, of which one is killed: the same bytes as without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from synthetic_trace import write

from rca.diagnosis.bundle import baseline
from rca.lab.evaluation.run import evaluate_collection
from rca.lab.training.collection import simulate_collection
from rca.lab.training.corpus import stack
from rca.lab.training.simulated import simulated_examples
from rca.sweep import Answers, archived, sweep
from rca.sweep.what_if import JobLosses, sweep_what_if
from rca.workers import HERE, Workers
from tests.waiting import until

pytest.importorskip("distributed", reason="the extra [scale] is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.system]

N_WINDOWS, SEED = 10, 4
WINDOWS = Path(__file__).resolve().parents[1] / "data" / "windows"


@dataclass
class Cluster:
    """Processes of a scheduler and its workers."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]

    def start_worker(self) -> None:
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard")
        self.workers.append(dask("worker", self.address, *options))

    @contextmanager
    def losing_a_worker(self) -> Iterator[None]:
        """A worker hangs during the block; it is killed once it has tasks."""
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            address, process = next(iter(client.run(os.getpid).items()))
            hung = next(each for each in self.workers if each.pid == process)
            hung.send_signal(signal.SIGSTOP)

            def kill() -> None:
                until(lambda: client.processing()[address])
                hung.kill()
                hung.wait()
                self.workers.remove(hung)

            with ThreadPoolExecutor(1) as thread:
                killed = thread.submit(kill)
                yield
                killed.result(0)


def dask(*arguments: str) -> subprocess.Popen[bytes]:
    command = (sys.executable, "-m", "dask", *arguments)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("scheduler") / "scheduler.json"
    options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(place))
    scheduler = dask("scheduler", *options)
    held = Cluster("", scheduler, [])
    try:
        held.address = address_in(place)
        held.start_worker()
        held.start_worker()
        yield held
    finally:
        for each in (*held.workers, scheduler):
            each.kill()
            each.wait()


def address_in(place: Path) -> str:
    until(lambda: place.exists() and place.read_text().endswith("}"))
    return str(json.loads(place.read_text())["address"])


def content(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written in this process."""
    folder = tmp_path_factory.mktemp("alone") / "corpus"
    simulate_collection(folder, N_WINDOWS, SEED)
    return folder


def test_a_worker_that_is_killed_costs_no_window(
    cluster: Cluster, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rca.lab.training.collection.CHUNK", 1)
    with Workers(1, cluster.address) as workers, cluster.losing_a_worker():
        simulate_collection(tmp_path / "corpus", N_WINDOWS, SEED, workers=workers)
    assert content(tmp_path / "corpus") == content(alone)


def test_a_sweep_has_the_answers_of_one_process(
    cluster: Cluster, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker joins during the sweep, and another one is killed."""
    monkeypatch.setattr("rca.sweep.answers.CHUNK", 1)
    found = archived([f"file://{alone}"])
    sweep(found, Answers(str(tmp_path / "here")), bundle=baseline())
    with Workers(1, cluster.address) as workers, cluster.losing_a_worker():
        cluster.start_worker()
        sweep(found, Answers(str(tmp_path / "there")), bundle=baseline(), workers=workers)
    assert documents(tmp_path / "there") == documents(tmp_path / "here")


def documents(folder: Path) -> dict[str, bytes]:
    """The answers as they are stored, without what is different in each run."""
    import orjson

    found = {}
    for row in Answers(str(folder)).read().to_pylist():
        answer = orjson.loads(row.pop("document") or b"{}")
        own = {"diagnosis_id": "", "created_at": ""}
        found[row["url"]] = orjson.dumps([row | {"swept_at": None}, answer | own])
    return found


def test_features_have_the_same_digest(cluster: Cluster) -> None:
    with Workers(1, cluster.address) as workers:
        there = stack(simulated_examples(6, SEED, workers=workers))
    assert there.digest == stack(simulated_examples(6, SEED, workers=HERE)).digest


def test_an_evaluation_has_the_same_scores(cluster: Cluster) -> None:
    with Workers(1, cluster.address) as workers:
        there = evaluate_collection(WINDOWS, workers=workers).rows
    assert list(map(repr, there)) == list(map(repr, evaluate_collection(WINDOWS).rows))


def test_a_sweep_of_traces_has_the_results_of_one_process(cluster: Cluster, tmp_path: Path) -> None:
    """A worker is killed during the sweep."""
    traces = tmp_path / "traces"
    traces.mkdir()
    for seed in range(12):
        write(traces / f"{seed}.parquet", dp=4, pp=2, microbatches=4, steps=3, seed=seed)
    sweep_what_if([f"file://{traces}"], JobLosses(str(tmp_path / "here")))
    cluster.start_worker()
    with Workers(1, cluster.address) as workers, cluster.losing_a_worker():
        sweep_what_if([f"file://{traces}"], JobLosses(str(tmp_path / "there")), workers=workers)
    here, there = (
        JobLosses(str(tmp_path / name)).read().drop_columns("swept_at") for name in ("here", "there")
    )
    assert there.sort_by("url").equals(here.sort_by("url"))
    assert here.column("outcome").to_pylist() == ["analysed"] * 12
