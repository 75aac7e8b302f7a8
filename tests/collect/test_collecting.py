"""The collector in a process: it writes what training did, and training never notices it."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rca import collect
from rca.collect import collection, identity, recorder
from rca.collect.segments import TimedSegment, read_segment
from rca.collect.timers import COLUMNS
from tests.for_each import for_each


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*identity.RANK, *identity.WORLD_SIZE, *identity.LOCAL_RANK, *identity.JOB, "RCA_COLLECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("RCA_COLLECT_DIR", raising=False)
    monkeypatch.setattr(collection.CURRENT, "faults", recorder.Faults())
    yield
    collect.stop()


def segments(folder: Path) -> list[TimedSegment]:
    return [read_segment(path.read_bytes()) for path in sorted(folder.iterdir())]


def column(segment: TimedSegment, name: str) -> list[float]:
    return [float(value) for value in segment.steps[:, COLUMNS.index(name)]]


def kinds(segment: TimedSegment) -> list[str]:
    return [event["kind"] for event in segment.events]


def test_steps_samples_and_the_end_are_written(tmp_path: Path) -> None:
    assert collect.start(tmp_path, rank=3, world_size=8, node="n1", job_id="j", parallelism={"data": 8})
    for batch in collect.steps([10, 20]):
        with collect.phase("forward"), collect.phase("communication"):
            collect.load(samples=batch)
    collect.stop()
    (found,) = segments(tmp_path)
    assert {name: found.header[name] for name in ("rank", "world_size", "node", "job_id", "parallelism")} == {
        "rank": 3, "world_size": 8, "node": "n1", "job_id": "j", "parallelism": {"data": 8},
    }  # fmt: skip
    assert column(found, "step") == [0, 1]
    assert column(found, "samples") == [10, 20]
    assert all(
        seconds >= 0 for name in ("data_loading", "forward") for seconds in column(found, f"{name}_seconds")
    )
    assert len(found.samples) == 1
    assert kinds(found) == ["process_exit", "collector_end"]
    assert found.open_step is None


def test_batches_count_for_the_step_that_follows(tmp_path: Path) -> None:
    collect.start(tmp_path, rank=0, world_size=1)
    for number, _ in enumerate(collect.batches("abc"), start=100):
        with collect.step(number):
            pass
    collect.stop()
    (found,) = segments(tmp_path)
    assert column(found, "step") == [100, 101, 102]
    assert np.isfinite(column(found, "data_loading_seconds")).all()


def test_an_error_in_training_passes_through_and_leaves_the_step_open(tmp_path: Path) -> None:
    collect.start(tmp_path, rank=0, world_size=1)

    def broken_step() -> None:
        with collect.step(7):
            with collect.phase("forward"):
                pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken_step()
    collection.at_exit()
    (found,) = segments(tmp_path)
    assert found.open_step is not None
    assert found.open_step[0] == 7
    assert kinds(found) == ["collector_end"]


LOST = RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error [::1]:7012: Connection reset by peer")


def stopped_by(
    error: BaseException, folder: Path, *, from_another: BaseException | None = None
) -> TimedSegment:
    """What is left of a step that an error ends, with `collect.stop` in a `finally`."""
    collect.start(folder, rank=0, world_size=1)
    try:
        with suppress(BaseException):
            try:
                with collect.step(7):
                    raise error from from_another
            finally:
                collect.stop()
    finally:
        (found,) = segments(folder)
    return found


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("loss is\nNaN"), "1", "ValueError: loss is NaN"),
        (SystemExit(3), "3", "SystemExit: 3"),
        (SystemExit("out of luck"), "1", "SystemExit: out of luck"),
        (KeyboardInterrupt(), "130", "KeyboardInterrupt: "),
    ],
)
def test_stopping_while_an_error_passes_is_no_normal_exit(
    tmp_path: Path, error: BaseException, code: str, message: str
) -> None:
    found = stopped_by(error, tmp_path)
    assert [(each["code"], each["message"]) for each in found.events[:-1]] == [(code, message)]
    assert found.open_step is not None
    assert found.open_step[0] == 7


@for_each("end", [StopIteration(), StopAsyncIteration(), GeneratorExit(), SystemExit(), SystemExit(0)])
def test_exceptions_that_are_no_errors_end_normally(tmp_path: Path, end: BaseException) -> None:
    found = stopped_by(end, tmp_path)
    assert [each["code"] for each in found.events[:-1]] == ["0"]
    assert found.open_step is None


def test_the_error_that_an_exit_comes_from_is_recorded(tmp_path: Path) -> None:
    found = stopped_by(SystemExit(1), tmp_path, from_another=LOST)
    assert found.events[-2]["message"] == f"SystemExit: 1; from RuntimeError: {LOST}"


def test_an_error_that_was_handled_before_the_collection_began_is_not_its_end(tmp_path: Path) -> None:
    try:
        raise OSError("the first attempt")
    except OSError:
        collect.start(tmp_path, rank=0, world_size=1)
        with collect.step():
            pass
        collect.stop()
    (found,) = segments(tmp_path)
    assert [each["code"] for each in found.events[:-1]] == ["0"]


def test_a_step_that_an_error_ended_stays_open_though_the_error_was_caught(tmp_path: Path) -> None:
    collect.start(tmp_path, rank=0, world_size=1)
    with suppress(ZeroDivisionError):
        for batch in collect.steps(range(9)):
            with collect.phase("forward"):
                batch / (2 - batch)
    collect.stop()
    (found,) = segments(tmp_path)
    assert found.open_step is not None
    assert (found.open_step[0], kinds(found)) == (2, ["process_exit", "collector_end"])


def test_leaving_the_loop_early_leaves_no_open_step(tmp_path: Path) -> None:
    collect.start(tmp_path, rank=0, world_size=1)
    for batch in collect.steps(range(9)):
        if batch == 2:
            break
    collect.stop()
    (found,) = segments(tmp_path)
    assert (column(found, "step"), found.open_step) == ([0, 1], None)


@pytest.mark.system
@pytest.mark.smoke
def test_a_lost_peer_is_written_before_the_process_may_end(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        collect.start(tmp_path, rank=0, world_size=1)
        try:
            for batch in collect.steps(range(9)):
                with collect.phase("communication"):
                    if batch == 2:
                        raise LOST
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    (found,) = segments(tmp_path)
    assert [(each["kind"], each["code"]) for each in found.events] == [("log", "RuntimeError")]
    assert "reset by peer" in found.events[0]["message"]
    assert column(found, "step") == [0, 1]
    assert found.open_step is not None
    assert found.open_step[0] == 2


def test_retries_that_lose_a_peer_are_written_once(tmp_path: Path) -> None:
    collect.start(tmp_path, rank=0, world_size=1)
    for _ in range(50):
        with suppress(RuntimeError), collect.step(), collect.phase("communication"):
            raise LOST
    with collect.step():
        pass
    collect.stop()
    (found,) = segments(tmp_path)
    assert kinds(found) == ["log", "process_exit", "collector_end"]
    assert found.open_step is None or np.isnan(found.open_step[0])


def test_the_error_of_a_loader_passes_through(tmp_path: Path) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    collect.start(tmp_path, rank=0, world_size=1)
    with pytest.raises(OSError, match="disk"):
        list(collect.batches(broken()))


def test_without_a_folder_or_switched_off_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not collect.start()
    assert "RCA_COLLECT_DIR" in caplog.text
    monkeypatch.setenv("RCA_COLLECT", "0")
    assert not collect.start(tmp_path)
    assert [batch for batch in collect.steps([1, 2]) if collect.phase("forward")] == [1, 2]
    with collect.step(), collect.phase("forward"):
        collect.load(tokens=5)
    collect.event("log", "x")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_phase_is_logged_once_and_not_timed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collect.start(tmp_path, rank=0, world_size=1)
    for _ in range(3):
        with collect.step(), collect.phase("fwd"):
            pass
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "data_loading" in caplog.text


def test_a_folder_that_cannot_be_written_costs_one_line_of_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    assert collect.start(blocker / "folder", rank=0, world_size=1)
    with collect.step():
        pass
    collect.stop()
    assert [record.message.split(" ")[0] for record in caplog.records] == ["writing", "the"]


@pytest.mark.parametrize("wrong", [{"parallelism": 3}, {"max_bytes": "many"}])
def test_wrong_arguments_do_not_raise(tmp_path: Path, wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert not collect.start(tmp_path, **wrong)
    assert "collect.start failed" in caplog.text


def test_starting_twice_keeps_the_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert collect.start(tmp_path / "a", rank=0, world_size=1)
    assert collect.start(tmp_path / "b", rank=0, world_size=1)
    assert "called again" in caplog.text
    collect.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.system
@pytest.mark.smoke
def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    collect.start(tmp_path, rank=0, world_size=1)
    with collect.step():
        pass
    child = os.fork()
    if child == 0:
        idle = collection.CURRENT.recorder is None and not any(
            "_observe" in str(each) for each in gc.callbacks
        )
        with collect.step(), collect.phase("forward"):
            pass
        collect.stop()
        os._exit(0 if idle else 1)
    assert os.waitpid(child, 0)[1] == 0
    collect.stop()
    (found,) = segments(tmp_path)
    assert column(found, "step") == [0]


@pytest.mark.system
@pytest.mark.smoke
def test_the_end_of_the_interpreter_writes_the_rest_and_the_error(tmp_path: Path) -> None:
    script = (
        "from rca import collect\n"
        f"collect.start({str(tmp_path)!r}, rank=0, world_size=1)\n"
        "for batch in collect.steps(range(5)):\n"
        "    with collect.phase('forward'):\n"
        "        if batch == 3: raise RuntimeError('out of luck')\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "out of luck" in ran.stderr
    (found,) = segments(tmp_path)
    assert column(found, "step") == [0, 1, 2]
    assert found.open_step is not None
    assert (found.events[0]["code"], found.events[0]["message"]) == ("1", "RuntimeError: out of luck")


@pytest.mark.system
@pytest.mark.smoke
def test_importing_the_collector_imports_numpy_and_nothing_heavier() -> None:
    script = "import sys\nfrom rca import collect\nprint('\\n'.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = {name.partition(".")[0] for name in ran.stdout.split()}
    assert not found & {"pyarrow", "pydantic", "pandas", "scipy", "orjson", "torch", "rich", "typer"}
    ours = {name for name in ran.stdout.split() if name.startswith("rca.")}
    assert all(name.startswith("rca.collect") for name in ours)
