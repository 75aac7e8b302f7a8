"""Dumps of py-spy of several ranks: who stands elsewhere than those that wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rca
from rca.errors import InvalidInput
from tests.for_each import for_each

WAITING = (
    "all_reduce (torch/distributed/distributed_c10d.py:2501)",
    "wrapper (torch/distributed/c10d_logger.py:79)",
    "clip_grad (train/optim.py:88)",
    "train (train/loop.py:274)",
)
LOADING = ("wait (threading.py:302)", "get (queue.py:170)", "train (train/loop.py:270)")
ELSEWHERE = (WAITING[0], WAITING[1], "evaluate (train/loop.py:310)")
COMPUTING = ("_pre_forward (torch/distributed/fsdp/_runtime_utils.py:381)", "train (train/loop.py:272)")


def dump(frames: tuple[str, ...], command: str = "python train.py") -> str:
    lines = [f"Process 14: {command}", "Python v3.11.9 (/usr/bin/python3.11)", ""]
    lines += ['Thread 928 (idle): "Thread-1"', "    wait (threading.py:324)"]
    lines += ['Thread 0x7FA6E7C01740 (active): "MainThread"', *(f"    {frame}" for frame in frames)]
    return "\n".join(lines) + "\n"


def as_json(frames: tuple[str, ...]) -> str:
    rows = [
        {"name": name, "filename": place.rpartition(":")[0], "line": int(place.rpartition(":")[2])}
        for name, _, place in (frame.rstrip(")").partition(" (") for frame in frames)
    ]
    return json.dumps([{"pid": 1, "thread_id": 2, "thread_name": "MainThread", "frames": rows}])


def suspects(folder: Path) -> list[int]:
    answer = rca.diagnose(rca.read_window(folder))
    assert answer.abstained
    return [rank for each in answer.stragglers for rank in each.ranks]


@for_each("frames", [LOADING, ELSEWHERE, COMPUTING], ["in the loader", "other collective", "computing"])
def test_the_rank_that_stands_elsewhere_is_a_suspect(tmp_path: Path, frames: tuple[str, ...]) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.txt").write_text(dump(frames if rank == 2 else WAITING))
    assert suspects(tmp_path) == [2]
    assert any("rank 2 stands in" in note for note in rca.read_window(tmp_path).notes)


def test_dumps_as_json_are_read(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.json").write_text(as_json(LOADING if rank == 1 else WAITING))
    assert suspects(tmp_path) == [1]


def test_one_file_names_ranks_by_the_commands_of_its_processes(tmp_path: Path) -> None:
    dumps = [
        dump(LOADING if rank == 3 else WAITING, f"python t.py --local-rank={rank}") for rank in (3, 0, 1)
    ]
    (tmp_path / "all.txt").write_text("".join(dumps))
    assert suspects(tmp_path) == [3]


@for_each("frames", [WAITING, LOADING], ["all wait", "none waits"])
def test_ranks_at_one_place_are_no_suspects(tmp_path: Path, frames: tuple[str, ...]) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.txt").write_text(dump(frames))
    assert suspects(tmp_path) == []


@for_each(
    ("text", "message"),
    [
        (dump(WAITING), "this is one"),
        (dump(()), "no stack of a main thread"),
        (as_json(WAITING)[:-20], "no complete dump"),
        ('[{"thread_id": 1, "frames": 3}]', "no complete dump"),
        ("Process 1: python\nPython v3.11\n", "no stack of a main thread"),
    ],
    ["one rank", "no frames of the main thread", "cut", "no frames", "no thread"],
)
def test_unusable_dumps_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "rank0.txt").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        rca.read_window(tmp_path)


def test_dumps_in_a_folder_for_each_node_may_have_equal_names(tmp_path: Path) -> None:
    for node in ("node-a1", "node-b1"):
        (tmp_path / node).mkdir()
        for local in range(2):
            frames = LOADING if (node, local) == ("node-b1", 1) else WAITING
            (tmp_path / node / f"rank{local}.txt").write_text(dump(frames))
    assert suspects(tmp_path) == [3]
    assert any("3 is node-b1/rank1.txt" in note for note in rca.read_window(tmp_path).notes)
