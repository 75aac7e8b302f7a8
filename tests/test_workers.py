"""Tasks on several processes and on a real Dask cluster: the same results, whatever ends in between."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rca import workers as module
from rca.dask_client import local_cluster
from rca.errors import InvalidInput, SourceError
from rca.workers import HERE, MIN_WINDOWS, Workers, counted
from tests.waiting import until

pytest.importorskip("distributed", reason="the extra [scale] is not installed")

pytestmark = pytest.mark.system

SCRIPT = """
import sys, time
from rca.workers import Workers

def slept(folder):
    import os
    open(os.path.join(folder, str(os.getpid())), "w").close()
    time.sleep(600)

if __name__ == "__main__":
    with Workers(2) as workers:
        list(workers.map(slept, [sys.argv[1], sys.argv[1]]))
"""


def squared(number: int) -> int:
    return number * number


def ends_once(folder: Path, number: int) -> int:
    """End the worker process the first time that a number comes."""
    seen = folder / str(number)
    if number == 5 and not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return squared(number)


def ends_always(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def ends_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return squared(number)


def refuses(number: int) -> int:
    raise InvalidInput(f"item {number} is bad", hint="leave it out")


def taken(numbers: list[int]) -> Iterator[int]:
    """Numbers that are counted when they are taken."""
    for number in range(10_000):
        numbers.append(number)
        yield number


def running(process: int) -> bool:
    """Whether the process is there, and not a zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_results_come_in_the_order_of_the_items(two_workers: Workers) -> None:
    wanted = [number**2 for number in range(100)]
    assert list(HERE.map(squared, range(100))) == wanted
    assert list(two_workers.map(squared, range(100), chunk=7)) == wanted
    assert list(two_workers.map(squared, [])) == []


def process_of(number: int) -> int:
    return os.getpid()


def test_short_items_are_worked_on_here_until_workers_have_started() -> None:
    with Workers(2) as workers:
        short = list(workers.map(process_of, range(2), chunk=2))
        long = list(workers.map(process_of, range(2)))
    assert short == [os.getpid()] * 2
    assert os.getpid() not in long


def test_items_are_read_as_they_are_needed(two_workers: Workers) -> None:
    numbers: list[int] = []
    results = two_workers.map(squared, taken(numbers), chunk=2)
    assert [next(results) for _ in range(3)] == [0, 1, 4]
    results.close()
    assert len(numbers) < 100


def test_an_error_of_a_task_is_that_of_the_caller(two_workers: Workers) -> None:
    with pytest.raises(InvalidInput, match="item 3 is bad") as caught:
        list(two_workers.map(refuses, [3, 4]))
    assert caught.value.hint == "leave it out"
    # The workers go on.
    assert list(two_workers.map(squared, [2])) == [4]


def test_tasks_of_a_worker_that_ends_are_computed_again(two_workers: Workers, tmp_path: Path) -> None:
    found = list(two_workers.map(partial(ends_once, tmp_path), range(20)))
    assert found == [number**2 for number in range(20)]
    assert (tmp_path / "5").exists()


@pytest.mark.long
def test_an_item_that_ends_every_worker_has_a_result_of_its_own() -> None:
    with Workers(2) as workers:
        # Workers have started.
        list(workers.map(squared, [1]))
        found = list(workers.map(ends_at_three, range(6), chunk=3, lost=lambda number: -number))
    assert found == [0, 1, 4, -3, 16, 25]


@pytest.mark.long
def test_a_scheduler_whose_workers_all_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORKER_SECONDS", 2)
    with local_cluster(1) as cluster, Workers(1, cluster.scheduler_address) as workers:
        assert list(workers.map(squared, [2])) == [4]
        cluster.scale(0)
        with pytest.raises(SourceError, match="there are no workers for 2 s"):
            list(workers.map(squared, [3]))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="not installed: openssl")
def test_a_scheduler_with_certificates_is_used(tmp_path: Path) -> None:
    import dask
    from distributed import LocalCluster, Security

    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=127.0.0.1", "-days", "1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    own = {role: {"key": key, "cert": certificate} for role in ("client", "worker", "scheduler")}
    held: dict[str, Any] = {f"distributed.comm.tls.{role}": files for role, files in own.items()}
    held["distributed.comm.tls.ca-file"] = certificate
    with dask.config.set(held):
        started = LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, protocol="tls", security=Security(),
            dashboard_address="127.0.0.1:0",
        )  # fmt: skip
        with started as cluster, Workers(1, cluster.scheduler_address) as workers:
            assert cluster.scheduler_address.startswith("tls://")
            assert list(workers.map(squared, [3])) == [9]
            without = dask.config.set({"distributed.comm.tls.ca-file": None})
            with without, pytest.raises(SourceError, match="no Dask scheduler answers"):
                Workers(1, cluster.scheduler_address).__enter__()


@pytest.mark.long
def test_a_task_that_ends_every_worker_is_refused() -> None:
    with Workers(2) as workers, pytest.raises(SourceError, match="ended during the same task"):
        list(workers.map(ends_always, [1]))


def test_few_tasks_stay_here_unless_a_cluster_is_given() -> None:
    several = Workers(4)
    assert several.for_few(MIN_WINDOWS - 1) is HERE
    assert several.for_few(MIN_WINDOWS) is several
    cluster = Workers(1, "tcp://127.0.0.1:1")
    assert cluster.for_few(1) is cluster
    assert HERE.are_here
    assert not cluster.are_here


def test_every_worker_of_another_version_refuses_its_tasks(
    two_workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both workers have unpickled the work already.
    work = partial(pow, 2)
    assert list(two_workers.map(work, range(8))) == [2**number for number in range(8)]
    monkeypatch.setattr(module, "code_digest", lambda: "another")
    for _ in range(4):
        with pytest.raises(InvalidInput, match="another version of straggler-rca"):
            list(two_workers.map(work, [1]))


def test_a_scheduler_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rca.dask_client.CONNECT_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(SourceError, match="no Dask scheduler answers at"), Workers(1, address):
            pass
    with pytest.raises(SourceError, match="no Dask scheduler answers at nonsense"), Workers(1, "nonsense"):
        pass


@pytest.mark.slow
def test_workers_of_a_killed_process_end(tmp_path: Path) -> None:
    script, folder = tmp_path / "work.py", tmp_path / "workers"
    script.write_text(SCRIPT)
    folder.mkdir()
    with subprocess.Popen([sys.executable, str(script), str(folder)]) as parent:
        try:
            until(lambda: len(list(folder.iterdir())) == 2)
            processes = [int(place.name) for place in folder.iterdir()]
            assert all(map(running, processes))
        finally:
            parent.send_signal(signal.SIGKILL)
    until(lambda: not any(map(running, processes)))


@pytest.mark.slow
def test_an_interrupt_in_a_terminal_ends_all_processes_quietly(tmp_path: Path) -> None:
    """Ctrl-C is sent to the command and to its workers."""
    script, folder = tmp_path / "work.py", tmp_path / "workers"
    script.write_text(SCRIPT)
    folder.mkdir()
    command = [sys.executable, str(script), str(folder)]

    def as_in_a_terminal() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with subprocess.Popen(
        command, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=as_in_a_terminal
    ) as parent:
        try:
            until(lambda: len(list(folder.iterdir())) == 2)
            processes = [int(place.name) for place in folder.iterdir()]
            os.killpg(parent.pid, signal.SIGINT)
            said = parent.communicate(timeout=60)[1].decode()
        finally:
            parent.kill()
    assert "Worker process" not in said
    assert "Client is closed" not in said
    until(lambda: not any(map(running, processes)))


def test_results_are_counted_before_the_first_one_is_there() -> None:
    reports: list[tuple[int, int]] = []

    def results() -> Iterator[str]:
        assert reports == [(0, 2)]
        yield from "ab"

    assert list(counted(results(), 2, lambda *report: reports.append(report))) == ["a", "b"]
    assert reports == [(0, 2), (1, 2), (2, 2)]
    assert list(counted([], 0, lambda *report: reports.append(report))) == []
    assert len(reports) == 3
