"""One of four ranks is killed: it is blamed, however the others end; jobs that end well raise no alarm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from collected_files import Event, write_rank

import rca
from tests.for_each import for_each

ROOT = Path(__file__).resolve().parents[2]
KILLED = 1
GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:7012: Connection reset by peer"
STORE = "DistNetworkError: recvValue failed on SocketImpl(fd=7): Connection was likely closed"
STOPPED = "the training code stopped the collector"
LOST: Event = (30.2, "log", "RuntimeError", GLOO)
NORMAL: Event = (30.3, "process_exit", "0", STOPPED)
LEFT: Event = (30.3, "process_exit", "0", f"{STOPPED}, within a step")
#: What every rank does, without load.
HELD = {"forward": 0.3, "backward": 0.5, "communication": 0.1, "optimizer": 0.1, "counted": 0.0}
FAILED: Event = (30.3, "process_exit", "1", GLOO)


def job(folder: Path, *events: Event, others: Sequence[int] = (0, 2, 3), **options: Any) -> Path:
    """The ranks that lose their peer in step 30, with these events; they have the same options."""
    for rank in others:
        defaults: dict[str, Any] = {"open_step": 30, "samples_until": 30.5}
        write_rank(folder, rank, events=events, **HELD | defaults | options)
    return folder


def killed(folder: Path, rank: int = KILLED, steps: int = 29) -> None:
    """A rank whose last writes were lost with its process."""
    write_rank(folder, rank, steps=range(steps), ends=False, samples_until=steps, **HELD)


def blamed(folder: Path) -> tuple[str, list[list[int]]]:
    diagnosis = rca.diagnose(rca.read_window(folder))
    return diagnosis.failure_mode, [list(each.ranks) for each in diagnosis.stragglers]


@for_each(
    ("events", "options"),
    [
        ([LOST, FAILED], {}),
        ([FAILED], {}),
        ([(30.3, "process_exit", "1", f"SystemExit: 1; from {GLOO}")], {}),
        ([(30.3, "process_exit", "1", STORE)], {}),
        ([LOST, NORMAL], {}),
        ([NORMAL], {}),
        ([LEFT], {"open_step": None}),
        ([(30.3, "process_exit", "1", "TrainingError: step 30 failed")], {}),
        ([LOST], {}),
        ([LOST], {"ends": False}),
        ([LOST, (30.3, "process_exit", "143", "SystemExit: 143")], {}),
    ],
    ids=[
        "error passes",
        "only the exit",
        "exits with 1",
        "store is lost",
        "caught and logged",
        "caught",
        "caught, steps without phases",
        "an error of the training code",
        "nothing stops the collector",
        "os._exit",
        "terminated afterwards",
    ],
)
def test_the_rank_without_a_record_is_blamed_and_its_victims_are_not(
    tmp_path: Path, events: list[Event], options: dict[str, Any]
) -> None:
    killed(tmp_path)
    assert blamed(job(tmp_path, *events, **options)) == ("fail_stop", [[KILLED]])


def test_a_rank_that_left_no_file_is_blamed_if_all_others_lost_a_peer(tmp_path: Path) -> None:
    assert blamed(job(tmp_path, LOST, FAILED)) == ("fail_stop", [[KILLED]])


def test_the_other_one_of_two_ranks_is_blamed(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, world_size=2, events=[FAILED], open_step=30, samples_until=30.5)
    write_rank(tmp_path, 1, world_size=2, steps=range(29), ends=False, samples_until=29)
    assert blamed(tmp_path) == ("fail_stop", [[1]])


def test_a_stop_is_seen_even_if_only_one_rank_says_so(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        killed(tmp_path, rank)
    mode, ranks = blamed(job(tmp_path, LOST, others=[2], ends=False))
    assert mode == "fail_stop"
    assert [2] not in ranks


def test_a_rank_that_failed_by_itself_is_blamed_and_not_those_that_were_ended_after_it(
    tmp_path: Path,
) -> None:
    """The launcher ends two ranks before they write; the fourth one loses its peer."""
    own = (30.1, "process_exit", "1", "ValueError: loss is NaN")
    job(tmp_path, own, others=[2])
    job(tmp_path, LOST, FAILED, others=[3])
    killed(tmp_path, 0)
    killed(tmp_path, 1)
    assert blamed(tmp_path) == ("fail_stop", [[2]])


def test_a_hung_rank_did_not_end_when_others_timed_out(tmp_path: Path) -> None:
    write_rank(tmp_path, KILLED, ends=False, samples_until=90.0, open_step=30)
    timed_out = "RuntimeError: [gloo] Timed out waiting 60000ms for recv operation to complete"
    job(tmp_path, (90.3, "process_exit", "1", timed_out), samples_until=90.5)
    window = rca.read_window(tmp_path)
    assert KILLED not in [row["rank"] for row in window.events.to_pylist()]


HEALTHY: dict[str, dict[str, Any]] = {
    "loses its last second": {"steps": 29},
    "loses its last two seconds": {"steps": 28},
    "ends after its last step": {"steps": 30},
}


@for_each("last", HEALTHY)
@for_each("until", [30.5, 60.0], ids=["at once", "after a checkpoint"])
@for_each("events", [[NORMAL], []], ids=["stop", "no stop"])
def test_a_missing_record_is_no_alarm_if_the_others_end_normally(
    tmp_path: Path, last: str, until: float, events: list[Event]
) -> None:
    """As after `os._exit(0)`: up to two seconds of the collector are lost."""
    killed(tmp_path, **HEALTHY[last])
    events = [(until - 0.2, *event[1:]) for event in events]
    mode, ranks = blamed(job(tmp_path, *events, open_step=None, samples_until=until))
    assert (mode, ranks) == ("healthy", [])


@pytest.mark.parametrize("others", [(0, 2, 3), (0, 1, 2, 3)], ids=["one without files", "all"])
def test_a_normal_end_is_no_alarm_and_needs_no_files_of_every_rank(
    tmp_path: Path, others: tuple[int, ...]
) -> None:
    assert blamed(job(tmp_path, NORMAL, others=others, open_step=None)) == ("healthy", [])


def test_a_loop_that_all_ranks_leave_is_no_alarm(tmp_path: Path) -> None:
    assert blamed(job(tmp_path, LEFT, others=(0, 1, 2, 3), open_step=None)) == ("healthy", [])


def test_a_job_that_runs_is_no_alarm(tmp_path: Path) -> None:
    """No rank has a record of its end, and all write at different moments."""
    for rank, steps in enumerate((29, 28, 30, 29)):
        killed(tmp_path, rank, steps)
    assert rca.read_window(tmp_path).events.num_rows == 0
    assert blamed(tmp_path) == ("healthy", [])


def test_a_peer_that_was_lost_earlier_is_no_alarm_if_the_job_went_on(tmp_path: Path) -> None:
    earlier: Event = (10.2, "log", "RuntimeError", GLOO)
    killed(tmp_path)
    assert blamed(job(tmp_path, earlier, NORMAL, open_step=None)) == ("healthy", [])
    assert "process_exit" not in [
        row["kind"] for row in rca.read_window(tmp_path).events.to_pylist() if row["rank"] == KILLED
    ]


def test_a_job_that_a_person_ends_blames_no_rank(tmp_path: Path) -> None:
    interrupted: Event = (30.3, "process_exit", "130", "KeyboardInterrupt: ")
    killed(tmp_path)
    window = rca.read_window(job(tmp_path, interrupted))
    assert KILLED not in [row["rank"] for row in window.events.to_pylist()]


def experiment(kills: int, healthy: int) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.killed_ranks", "--kills", str(kills), "--healthy", str(healthy)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.system
@pytest.mark.slow
def test_killed_processes_are_blamed() -> None:
    pytest.importorskip("torch")
    assert "4 kills: 0 called healthy" in experiment(4, 2)


@pytest.mark.long
def test_a_hundred_killed_processes_are_blamed() -> None:
    pytest.importorskip("torch")
    assert "100 kills: 0 called healthy" in experiment(100, 20)
