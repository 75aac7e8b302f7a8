"""RAS statuses of NCCL become a window; damaged ones are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rca
from rca.errors import InvalidInput
from rca.sources.registry import source_of
from tests.for_each import for_each


def member(rank: int, process: int, count: int | None) -> dict[str, Any]:
    place = {"rank": rank, "host": f"10.0.0.{process // 4}", "pid": 100 + process, "cuda_dev": process % 4}
    if count is None:
        return {**place, "nvml_dev": process % 4, "status": {"unresponsive": True, "considered_dead": False}}
    counts = {"AllGather": 7, "AllReduce": count}
    return {**place, "nvml_dev": process % 4, "status": {"init_state": 0}, "collective_counts": counts}


def communicator(name: str, counts: dict[int, int | None]) -> dict[str, Any]:
    """A communicator of the given processes; it numbers its ranks from 0."""
    members = [member(rank, process, count) for rank, (process, count) in enumerate(counts.items())]
    return {
        "hash": name,
        "size": len(members),
        "ranks": [each for each in members if "collective_counts" in each],
        "missing_ranks": [each for each in members if "collective_counts" not in each],
    }


def status(*communicators: dict[str, Any], minute: int = 50) -> dict[str, Any]:
    return {
        "nccl_version": "2.28.9",
        "timestamp": f"2026-06-19 06:{minute}:00",
        "communicators_count": len(communicators),
        "communicators": list(communicators),
        "ras": {"timeouts_count": 0},
    }


def write(folder: Path, *statuses: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(statuses):
        (folder / f"ras_{number}.json").write_text(json.dumps(content, indent=2))
    return folder


def states(window: rca.Window, group: str = "0xa") -> dict[int, tuple[str, int | None]]:
    rows = window.collectives.to_pylist()
    return {row["rank"]: (row["state"], row["sequence"]) for row in rows if row["group"] == group}


BEHIND: dict[int, int | None] = {process: 90 if process == 5 else 100 for process in range(8)}


def test_two_statuses_name_the_rank_that_stands_behind(tmp_path: Path) -> None:
    stands = communicator("0xa", BEHIND)
    folder = write(tmp_path / "job", status(stands, minute=50), status(stands, minute=52))
    window = rca.read_window(folder)
    assert states(window) == {rank: ("finished", 97) if rank == 5 else ("waiting", 107) for rank in range(8)}
    row = window.collectives.to_pylist()[0]
    assert (row["waiting_since"], row["operation"]) == (window.job.start, "AllReduce")
    assert window.job.end - window.job.start == 120
    answer = rca.diagnose(window)
    assert (answer.failure_mode, answer.stragglers[0].ranks, answer.abstained) == ("fail_stop", [5], False)
    assert answer.stragglers[0].nodes == ["10.0.0.1"]


def test_one_status_is_not_enough(tmp_path: Path) -> None:
    window = rca.read_window(write(tmp_path / "job", status(communicator("0xa", BEHIND))) / "ras_0.json")
    assert any("take a second one" in note for note in window.notes)
    answer = rca.diagnose(window)
    assert answer.abstained
    assert answer.stragglers[0].ranks == [5]


def test_a_communicator_that_moves_does_not_wait(tmp_path: Path) -> None:
    before = communicator("0xa", {process: (count or 0) - 3 for process, count in BEHIND.items()})
    folder = write(
        tmp_path / "job", status(before, minute=50), status(communicator("0xa", BEHIND), minute=52)
    )
    assert {state for state, _ in states(rca.read_window(folder)).values()} == {"finished"}


def test_ranks_of_smaller_communicators_are_found_by_their_process(tmp_path: Path) -> None:
    world = communicator("0xa", dict.fromkeys(range(8), 3))
    part = communicator("0xb", {6: 10, 2: 8})
    folder = write(tmp_path / "job", status(world, part, minute=50), status(world, part, minute=52))
    window = rca.read_window(folder)
    assert states(window, "0xb") == {6: ("waiting", 17), 2: ("finished", 15)}
    assert rca.diagnose(window).stragglers[0].ranks == [2]


def test_a_rank_that_does_not_answer_is_unrecorded(tmp_path: Path) -> None:
    stands = communicator("0xa", {process: None if process == 3 else 100 for process in range(4)})
    folder = write(tmp_path / "job", status(stands, minute=50), status(stands, minute=52))
    # NCCL 2.28.9 leaves this comma out.
    for path in folder.iterdir():
        text = path.read_text()
        place = text.index('"nvml_dev": 3,')
        path.write_text("SERVER PROTOCOL 2\nOK\n" + text[:place] + text[place:].replace("3,", "3", 1))
        with pytest.raises(json.JSONDecodeError):
            json.loads(path.read_text().split("OK\n")[1])
    assert states(rca.read_window(folder)) == {
        **dict.fromkeys(range(3), ("waiting", 107)),
        3: ("unrecorded", None),
    }


def test_without_a_communicator_of_all_ranks_processes_are_numbered(tmp_path: Path) -> None:
    parts = [communicator("0xa", {0: 5, 1: 5}), communicator("0xb", {4: 5, 5: 5})]
    window = rca.read_window(write(tmp_path / "job", status(*parts)))
    assert (window.job.world_size, sorted(states(window, "0xb"))) == (4, [2, 3])
    assert any("no communicator has all processes" in note for note in window.notes)


def test_a_status_is_not_taken_for_a_flight_recorder_dump(tmp_path: Path) -> None:
    source = source_of(write(tmp_path / "job", status(communicator("0xa", BEHIND))) / "ras_0.json")
    assert source is not None
    assert source.name == "nccl-ras"


@for_each(
    ("content", "message"),
    [
        (json.dumps(status(communicator("0xa", BEHIND)))[:-60], "no complete RAS status"),
        (json.dumps(status()), "no communicator has a rank"),
        (json.dumps(status(communicator("0xa", {0: -4}))), "negative"),
        ('{"communicators_count": 1, "communicators": [{"ranks": [{"rank": 0}]}]}', "KeyError"),
        ('{"communicators_count": 1}', "KeyError"),
    ],
)
def test_unusable_statuses_are_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "ras.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=rf"ras\.json.*{message}") as refused:
        rca.read_window(path)
    assert "ncclras -f json" in str(refused.value.hint)


def test_a_status_as_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ras.txt"
    path.write_text("NCCL version 2.27.3 compiled with CUDA 12.9\n\nJob summary\n===========\n\n  Nodes\n")
    with pytest.raises(InvalidInput, match=r"ras\.txt holds an NCCL RAS status as text"):
        rca.read_window(path)
