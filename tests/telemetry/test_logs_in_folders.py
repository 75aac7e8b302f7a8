"""Folders with logs: beside dumps, in a folder per node, and with files that say nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import flight_recorder_dumps
import pytest
import watchdog_logs

import rca
from rca.errors import SourceError

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
KERNEL = "Mar 21 01:57:01 node-b kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid=14, GPU has fallen off the bus."


def dumps(folder: Path, *, missing: int) -> float:
    """Dumps of a job in which a rank did not join; the time of its last collective."""
    flight_recorder_dumps.write(folder, flight_recorder_dumps.hang([missing]))
    return rca.read_window(folder).job.end


def test_a_log_beside_dumps_adds_its_failures(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    end = dumps(folder, missing=5)
    log = folder / "job.log"
    log.write_text("[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    os.utime(log, (end, end))
    window = rca.read_window(folder)
    assert [row["kind"] for row in window.events.to_pylist()] == ["process_error"]
    assert any("events of job.log are added" in note for note in window.notes)
    answer = rca.diagnose(window)
    assert [each.ranks for each in answer.stragglers] == [[5]]
    assert (answer.causes[0].cause, answer.abstained) == ("process_crash", False)


def test_a_log_of_another_time_than_the_dumps_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    dumps(folder, missing=5)
    (folder / "old.log").write_text(
        "[rank2]: 2001-01-01 10:00:00 torch.OutOfMemoryError: CUDA out of memory.\n"
    )
    window = rca.read_window(folder)
    assert window.events.num_rows == 0
    assert any("another time" in note for note in window.notes)


def test_dumps_in_a_folder_for_each_node_are_of_one_job(tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    dumps(flat, missing=5)
    nested = tmp_path / "nested"
    for number, path in enumerate(sorted(flat.iterdir())):
        (nested / f"node-{number // 4}").mkdir(parents=True, exist_ok=True)
        path.rename(nested / f"node-{number // 4}" / path.name)
    (nested / "node-0" / ".lock").write_text("")
    answer = rca.diagnose(rca.read_window(nested))
    assert [each.ranks for each in answer.stragglers] == [[5]]


def test_files_of_a_log_folder_that_say_nothing_are_named(tmp_path: Path) -> None:
    watchdog_logs.write(
        tmp_path / "job" / "rank_0.log",
        [line for each in watchdog_logs.hang(4, [1]).values() for line in each],
    )
    (tmp_path / "job" / "notes.txt").write_text("seen at 3 a.m.")
    window = rca.read_window(tmp_path / "job")
    assert "files without a line of a known kind: notes.txt" in window.notes


def test_a_kernel_log_beside_the_logs_of_the_ranks_gives_the_cause(tmp_path: Path) -> None:
    lines = [line for each in watchdog_logs.hang(4, [1]).values() for line in each] + watchdog_logs.TABLE
    watchdog_logs.write(tmp_path / "job" / "job.log", [line for line in lines if "rank1" not in line])
    kernel = KERNEL.replace("node-b", "node-a")
    watchdog_logs.write(tmp_path / "job" / "messages", [kernel])
    answer = rca.diagnose(rca.read_window(tmp_path / "job"))
    assert [(each.ranks, each.nodes) for each in answer.stragglers] == [([1], ["node-a"])]
    assert {each.signal for each in answer.causes[0].evidence} >= {"xid", "other_failures"}
    assert [(each.signal, each.note) for each in answer.findings] == [("xid", "79")]


def communicator(rank: int, *, size: int = 4, host: str = "") -> str:
    bus = 0x1B000 + 0x20000 * (rank % 2)
    name = host or f"node-{'ab'[rank // 2]}"
    begin = f"{name}:15323:16097 [{rank % 2}] NCCL INFO comm 0xb669080 rank {rank} nranks {size}"
    return f"{begin} cudaDev {rank % 2} nvmlDev {rank % 2} busId {bus:x} commId 0x1 - Init COMPLETE"


def test_an_xid_finds_its_rank_by_the_address_that_nccl_logged(tmp_path: Path) -> None:
    lines = [communicator(rank) for rank in range(4)]
    # Ranks of a smaller group are not those of the job.
    lines += [communicator(1, size=2, host="node-a")]
    lines += [line for rank, each in watchdog_logs.hang(4, []).items() if rank != 3 for line in each]
    watchdog_logs.write(tmp_path / "job" / "job.log", lines)
    watchdog_logs.write(tmp_path / "job" / "messages", [KERNEL.replace("9b", "3b")])
    window = rca.read_window(tmp_path / "job")
    assert next((row["kind"], row["rank"]) for row in window.events.to_pylist()) == ("xid", 3)
    answer = rca.diagnose(window)
    assert [(each.ranks, each.nodes) for each in answer.stragglers] == [([3], ["node-b"])]
    assert (answer.causes[0].cause, answer.abstained) == ("process_crash", False)


def test_an_xid_of_another_host_is_of_no_rank(tmp_path: Path) -> None:
    lines = [communicator(rank) for rank in range(4)] + [
        KERNEL.replace("9b", "3b").replace("node-b", "node-z")
    ]
    watchdog_logs.write(tmp_path / "job" / "job.log", lines)
    window = rca.read_window(tmp_path / "job")
    assert [row["rank"] for row in window.events.to_pylist()] == [None]
    assert [each.nodes for each in rca.diagnose(window).stragglers] == [["node-z"]]


def test_the_last_attempt_of_torchrun_counts(tmp_path: Path) -> None:
    for attempt, failed in enumerate((0, 2)):
        for rank in range(4):
            lines = (
                watchdog_logs.hang(4, [failed])[rank]
                if rank != failed
                else [f"[rank{rank}]: {OUT_OF_MEMORY}"]
            )
            path = tmp_path / "job" / "run_7" / f"attempt_{attempt}" / str(rank) / "stderr.log"
            path.parent.mkdir(parents=True)
            watchdog_logs.write(path, lines)
    window = rca.read_window(tmp_path / "job")
    assert "files of earlier attempts of torchrun are left out: 4" in window.notes
    assert [each.ranks for each in rca.diagnose(window).stragglers] == [[2]]


KILL = "srun: error: gpu02: task 9: Killed\n"


def test_a_configuration_beside_logs_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(KILL)
    (tmp_path / "config.json").write_text('{"learning_rate": 3e-4, "job": 1}')
    window = rca.read_window(tmp_path)
    assert "files without a line of a known kind: config.json" in window.notes
    assert "the lines have no time: the time of the file stands for it" in window.notes


def test_a_log_that_begins_with_zeros_is_text(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_bytes(bytes(3000) + KILL.encode())
    assert rca.read_window(tmp_path).events.column("rank").to_pylist() == [9]


def test_a_folder_of_a_node_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in ("node-1", "node-2"):
        (tmp_path / node).mkdir()
        (tmp_path / node / "train.log").write_text(f"[rank3]: {OUT_OF_MEMORY}\n")
    scandir = os.scandir

    def refusing(path: str | os.PathLike[str]) -> object:
        # Root may list any folder, so a mode would not refuse it.
        if Path(path).name == "node-2":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(SourceError, match="node-2: cannot be read: Permission denied"):
        rca.read_window(tmp_path)
