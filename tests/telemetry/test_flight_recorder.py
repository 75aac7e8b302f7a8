"""Dumps of the PyTorch flight recorder become a window; bad ones are refused by name."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from flight_recorder_dumps import START, dump, entry, hang, write

import rca
from rca.errors import InvalidInput
from rca.sources import flight_recorder
from rca.sources.registry import SOURCES, read_files, source_of
from tests.for_each import for_each


def states(window: rca.Window) -> dict[int, str]:
    return {row["rank"]: row["state"] for row in window.collectives.to_pylist()}


@pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "JSON"])
def test_a_folder_of_dumps_is_a_window_without_steps(tmp_path: Path, as_json: bool) -> None:
    window = rca.read_window(write(tmp_path / "job-7", hang([5]), as_json=as_json))
    assert (window.job.job_id, window.job.world_size, window.steps.num_rows) == ("job-7", 8, 0)
    assert states(window) == {rank: "finished" if rank == 5 else "waiting" for rank in range(8)}
    row = window.collectives.to_pylist()[0]
    assert (row["sequence"], row["operation"]) == (101, "nccl:all_reduce")
    assert row["waiting_since"] == pytest.approx(START + 1.0, abs=1e-3)
    assert window.job.end == pytest.approx(START + 1.1 + 180, abs=1e-3)


def test_members_without_a_dump_and_without_a_collective_differ(tmp_path: Path) -> None:
    dumps = hang([5])
    dumps[5]["entries"] = []
    del dumps[6]
    found = states(rca.read_window(write(tmp_path, dumps)))
    assert (found[5], found[6]) == ("idle", "unrecorded")


def test_groups_of_one_name_and_other_ranks_are_apart(tmp_path: Path) -> None:
    dumps = {
        0: dump({"1": [0, 1]}, [entry("1", 7)]),
        1: dump({"1": [0, 1]}, [entry("1", 7)]),
        2: dump({"1": [2, 3]}, [entry("1", 4)]),
        3: dump({"1": [2, 3]}, [entry("1", 4)]),
    }
    rows = rca.read_window(write(tmp_path, dumps)).collectives.to_pylist()
    assert len({row["group"] for row in rows}) == 2
    assert {row["sequence"] for row in rows if row["rank"] < 2} == {7}


def test_sends_and_receives_do_not_count_as_collectives(tmp_path: Path) -> None:
    dumps = hang([])
    dumps[0]["entries"].append({**entry("0", 500, at=2.0), "is_p2p": True})
    rows = rca.read_window(write(tmp_path, dumps)).collectives.to_pylist()
    assert max(row["sequence"] for row in rows) == 101


def test_old_dumps_number_collectives_by_another_name(tmp_path: Path) -> None:
    dumps = hang([5])
    for content in dumps.values():
        for each in content["entries"]:
            each["seq_id"] = each.pop("collective_seq_id")
    rows = rca.read_window(write(tmp_path, dumps)).collectives.to_pylist()
    assert {row["sequence"] for row in rows} == {98, 101}


@pytest.mark.parametrize("encoding", ["json", "arrow", "directory"])
def test_the_table_survives_every_encoding(tmp_path: Path, encoding: str) -> None:
    window = rca.read_window(write(tmp_path / "dumps", hang([5])))
    if encoding == "directory":
        window.to_directory(tmp_path / "window")
        again = rca.read_window(tmp_path / "window")
    else:
        again = rca.read_window(window.to_json() if encoding == "json" else window.to_arrow())
    assert again.job == window.job
    assert str(again.collectives.to_pylist()) == str(window.collectives.to_pylist())


def test_a_pickle_with_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    folder = write(tmp_path, hang([5]))
    marker = tmp_path / "ran"

    class Code:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(marker),)

    (folder / "nccl_trace_rank_5").write_bytes(pickle.dumps({"version": "2.10", "entries": [Code()]}))
    with pytest.raises(InvalidInput, match="nccl_trace_rank_5 is no complete flight recorder dump: it names"):
        rca.read_window(folder)
    assert not marker.exists()


@for_each(
    "content",
    [
        pickle.dumps(hang([])[0])[:-40],
        pickle.dumps({"version": "2.10", "entries": 5}),
        pickle.dumps({"version": "2.10", "entries": [3]}),
        pickle.dumps({"version": "2.10", "entries": [], "pg_config": {"0": {"ranks": "[0, x]"}}}),
        pickle.dumps({"version": "2.10", "entries": [], "pg_config": {"0": {"ranks": "[-1]"}}}),
        pickle.dumps({"version": "2.10", "entries": [], "pg_config": {"0": {"ranks": f"[{10**12}]"}}}),
        pickle.dumps({"version": "2.10", "entries": [], "pg_config": {"0": {"ranks": "[" * 100_000}}}),
        pickle.dumps({"version": "2.10", "entries": [], "pg_config": 7}),
        *(
            pickle.dumps(dump({"0": [0, 3]}, [entry("0", 5) | {"collective_seq_id": number}]))
            for number in (2**63 + 5, -1)
        ),
        b"\x80\x04" + b"version" + b"(" * 100_000,
        b'{"version": "2.10", "entries": [',
        b'{"pg_config": {}}',
    ],
    ids=str,
)
def test_a_damaged_dump_is_named(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path, hang([5]))
    (folder / "nccl_trace_rank_3").write_bytes(content)
    with pytest.raises(InvalidInput, match="nccl_trace_rank_3"):
        rca.read_window(folder)


def test_odd_times_and_names_of_a_dump_are_left_out(tmp_path: Path) -> None:
    dumps = hang([5])
    odd = {
        "time_created_ns": 10**400,
        "profiling_name": "  ",
        "timeout_ms": -1,
        "process_group": ["0", "a\tb"],
    }
    dumps[0]["entries"].append(entry("0", 102) | odd)
    dumps[0]["entries"].append(entry("0", 5) | {"collective_seq_id": True})
    dumps[1]["pg_config"]["0"]["desc"] = "line\nbreak\x00"
    rows = rca.read_window(write(tmp_path, dumps)).collectives.to_pylist()
    assert max(row["sequence"] or 0 for row in rows) == 102
    assert {row["group"] for row in rows} == {"GROUP_0 (0)", "line break (0)"}


def test_dumps_that_were_just_taken_end_when_they_were_written(tmp_path: Path) -> None:
    folder = write(tmp_path, hang([5]))
    for path in folder.iterdir():
        os.utime(path, (START + 3, START + 3))
    assert rca.read_window(folder).job.end == pytest.approx(START + 3)
    assert rca.diagnose(rca.read_window(folder)).abstained


def test_two_dumps_of_one_rank_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, hang([5]))
    (folder / "again_5.json").write_bytes((folder / "nccl_trace_rank_5").read_bytes())
    with pytest.raises(InvalidInput, match="another dump of rank 5"):
        rca.read_window(folder)


def test_dumps_without_a_collective_are_refused(tmp_path: Path) -> None:
    dumps = {rank: dump({"0": range(4)}, []) for rank in range(4)}
    with pytest.raises(InvalidInput, match="hold no collective"):
        rca.read_window(write(tmp_path / "empty", dumps))
    with pytest.raises(InvalidInput, match="name no process group") as refused:
        rca.read_window(write(tmp_path / "none", {0: dump({}, [])}))
    assert "TORCH_FR_BUFFER_SIZE" in str(refused.value.hint)


def test_other_files_in_the_folder_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path, hang([5]))
    (folder / ".lock").write_text("")
    assert rca.read_window(folder).job.world_size == 8
    (folder / "notes.txt").write_text("seen at 3 a.m.")
    with pytest.raises(InvalidInput, match=r"and 1 other files \(notes.txt\)"):
        rca.read_window(folder)


def test_a_window_is_not_mistaken_for_a_dump(tmp_path: Path, real_windows: Path) -> None:
    file = tmp_path / "window_7.json"
    file.write_bytes(rca.read_window(real_windows / "healthy").to_json())
    assert source_of(file) is None
    assert rca.read_window(file).steps.num_rows > 0


def test_a_rank_with_a_dump_of_its_own_needs_no_folder(tmp_path: Path) -> None:
    folder = write(tmp_path, hang([5]))
    window = read_files(folder / "nccl_trace_rank_2")
    assert window is not None
    assert states(window)[2] == "waiting"


def test_every_source_says_what_it_can_and_cannot_tell() -> None:
    assert len({source.name for source in SOURCES}) == len(SOURCES)
    assert all(source.title and source.tells and source.lacks for source in SOURCES)
    assert flight_recorder.SOURCE in SOURCES
