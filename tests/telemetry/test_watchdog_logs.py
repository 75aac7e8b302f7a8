"""Job logs with messages of the NCCL watchdog become a window; unusable ones are refused by name."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest
from watchdog_logs import FIRED, NEW, TABLE, behind, caught, hang, labelled, status, write

import rca
from rca.errors import InvalidInput
from rca.sources.registry import source_of


def states(window: rca.Window) -> dict[int, tuple[str, int | None]]:
    return {row["rank"]: (row["state"], row["sequence"]) for row in window.collectives.to_pylist()}


@pytest.mark.parametrize("group", [NEW, "PG 0", "PG 0 (default_pg)", "PG ID 1 PG GUID 1"])
def test_the_rank_that_did_not_join_is_named(tmp_path: Path, group: str) -> None:
    lines = [line for each in hang(8, [5], group=group).values() for line in each]
    window = rca.read_window(write(tmp_path / "job.log", lines))
    assert states(window) == {rank: ("finished", 77) if rank == 5 else ("waiting", 78) for rank in range(8)}
    row = window.collectives.to_pylist()[0]
    assert row["waiting_since"] == pytest.approx(FIRED + 0.408 - 600.06, abs=1e-2)
    assert row["operation"] == "ALLREDUCE"
    answer = rca.diagnose(window)
    assert (answer.failure_mode, answer.stragglers[0].ranks, answer.abstained) == ("fail_stop", [5], False)


def test_one_file_per_rank_shows_a_rank_that_wrote_nothing(tmp_path: Path) -> None:
    logs = hang(8, [])
    logs[5] = ["nothing of interest"]
    for rank, lines in logs.items():
        write(tmp_path / "logs" / f"rank_{rank}.log", [line.split("]:", 1)[-1] for line in lines])
    window = rca.read_window(tmp_path / "logs")
    assert states(window)[5] == ("idle", None)
    assert rca.diagnose(window).stragglers[0].ranks == [5]


def test_a_silent_rank_of_one_common_log_is_unrecorded(tmp_path: Path) -> None:
    lines = ["host:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 8 cudaDev 0 busId 7000 - Init COMPLETE"]
    lines += [line for rank, each in hang(8, []).items() if rank != 7 for line in each]
    window = rca.read_window(write(tmp_path / "job.log", lines))
    assert (window.job.world_size, states(window)[7]) == (8, ("unrecorded", None))
    assert "the watchdog of 7 of 8 ranks wrote a message" in window.notes


def test_silence_does_not_count_where_another_rank_is_behind(tmp_path: Path) -> None:
    lines = [line for rank, each in hang(8, [5]).items() if rank != 3 for line in each]
    window = rca.read_window(write(tmp_path / "job.log", lines))
    assert 3 not in states(window)
    assert rca.diagnose(window).stragglers[0].ranks == [5]


def test_ranks_of_a_smaller_group_are_the_ranks_of_their_labels(tmp_path: Path) -> None:
    group = "PG ID 12 PG GUID 100(EXPERT_MODEL_PARALLEL_GROUP)"
    lines = [
        line
        for place, rank in enumerate((9, 13))
        for line in labelled(
            rank,
            caught(rank, 52229, group_rank=place),
            status(rank, 52229, 52258, group=group, group_rank=place),
        )
    ]
    lines += labelled(1, behind(1, 62))
    quoted = caught(9, 52229, group_rank=0).split("] ", 1)[1]
    lines.append(
        f"  what():  [{group} Rank 0] Process group watchdog thread terminated with exception: {quoted}"
    )
    rows = rca.read_window(write(tmp_path / "job.log", lines)).collectives.to_pylist()
    assert {(row["rank"], row["group"]) for row in rows} == {
        (1, "default_pg (0)"),
        (9, "EXPERT_MODEL_PARALLEL_GROUP (100)"),
        (13, "EXPERT_MODEL_PARALLEL_GROUP (100)"),
    }


@pytest.mark.parametrize(
    ("label", "ranks"),
    [
        ("{rank}: ", [4, 5, 6, 7]),
        ("0: ", [0, 1, 2, 3]),
        ("[default{rank}]:", [4, 5, 6, 7]),
        ("", [0, 1, 2, 3]),
    ],
    ids=["srun of ranks", "srun of nodes", "torchrun", "none"],
)
def test_labels_of_launchers_are_ranks_if_each_has_one(tmp_path: Path, label: str, ranks: list[int]) -> None:
    lines = [label.format(rank=place + 4) + caught(place, 7, stamp="E ") for place in range(4)]
    window = rca.read_window(write(tmp_path / "job.log", lines))
    assert sorted(row["rank"] for row in window.collectives.to_pylist() if row["state"] == "waiting") == ranks
    assert any("rank in its group only" in note for note in window.notes) == (ranks[0] == 0)


def test_old_lines_without_a_group_or_a_time(tmp_path: Path) -> None:
    lines = [caught(rank, 1000 if rank != 2 else 990, stamp="E ") for rank in range(4)]
    window = rca.read_window(write(tmp_path / "job.log", [*lines, caught(0, 1005, stamp="E ")]))
    assert states(window) == {rank: ("waiting", 990 if rank == 2 else 1000) for rank in range(4)}
    assert window.job.end == pytest.approx(FIRED + 5)
    assert any("no time" in note for note in window.notes)


def test_only_the_last_stop_of_a_restarted_job_counts(tmp_path: Path) -> None:
    earlier = [
        line.replace("E321 02:", "E320 11:") for each in hang(4, [0], number=40).values() for line in each
    ]
    later = [line for each in hang(4, [2]).values() for line in each]
    window = rca.read_window(write(tmp_path / "job.log", earlier + later))
    assert states(window)[2] == ("finished", 77)
    assert any("earlier stops" in note for note in window.notes)


def test_torchrun_and_the_kernel_give_events(tmp_path: Path) -> None:
    lines = [line for each in hang(4, [1]).values() for line in each] + TABLE + TABLE
    write(tmp_path / "logs" / "job.log", lines)
    write(
        tmp_path / "logs" / "kernel.log",
        ["Mar 21 01:57:01 node-a kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."],
    )
    events = rca.read_window(tmp_path / "logs").events.to_pylist()
    found = [(row["kind"], row["node"], row["rank"], row["code"]) for row in events]
    assert found[0] == ("xid", "node-a", None, "79")
    assert found[-2:] == [("process_exit", "node-a", 1, "-9"), ("process_exit", "node-b", 2, "-6")]
    fired = [row for row in events if row["kind"] == "nccl_timeout"]
    assert [row["rank"] for row in fired] == [0, 2, 3]
    assert "last enqueued work: 78" in fired[0]["message"]


def test_the_table_of_torchrun_alone_names_the_first_failed_rank(tmp_path: Path) -> None:
    path = write(tmp_path / "job.log", TABLE)
    answer = rca.diagnose(rca.read_window(path))
    assert (answer.failure_mode, answer.abstained) == ("fail_stop", False)
    assert [(each.ranks, each.nodes) for each in answer.stragglers] == [([1], ["node-a"])]
    assert answer.causes[0].cause == "process_crash"
    evidence = next(each for each in answer.causes[0].evidence if each.signal == "exit_code")
    assert evidence.value == -9
    assert "SIGKILL" in evidence.note


def test_a_table_that_is_cut_before_its_first_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"job\.log.*no failure is complete|no line names a rank"):
        rca.read_window(write(tmp_path / "job.log", ["[rank0]: ...", *TABLE[:8]]))


def test_folders_of_torchrun_and_packed_logs_are_read(tmp_path: Path) -> None:
    for rank, lines in hang(4, [3]).items():
        path = write(
            tmp_path / "run" / "attempt_0" / str(rank) / "stderr.log", [x.split(":", 1)[1] for x in lines]
        )
        if rank == 0:
            path.write_bytes(gzip.compress(path.read_bytes()))
            os.utime(path, (FIRED, FIRED))
    assert states(rca.read_window(tmp_path / "run"))[3] == ("finished", 77)


def test_a_large_log_with_endless_lines_takes_little_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "job.log", [line for each in hang(4, [3]).values() for line in each])
    with path.open("ab") as file:
        for _ in range(40):
            file.write(b"x" * (1 << 20))
        file.write(b"\n" + labelled(0, caught(0, 78))[0].encode())
    tracemalloc.start()
    try:
        window = rca.read_window(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert states(window)[3] == ("finished", 77)
    assert peak < 30 << 20


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "[rank0]: Watchdog caught collective operation timeout: Work[nr 3] ran long",
            "all of an unknown form",
        ),
        (f"[rank{10**6 - 1}]:" + caught(0, 5), "above 262,143"),
    ],
)
def test_unusable_logs_are_refused_by_name(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=rf"job\.log.*{message}"):
        rca.read_window(write(tmp_path / "job.log", [line]))


def test_other_text_is_refused_with_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"job\.log is text in which no line is of a known kind"):
        rca.read_window(write(tmp_path / "job.log", []))
    event = (
        '[2025-04-21T23:31:09.074419] [426] [22b7ca89] [AtorchTrainerV2] [#step] [BEGIN] {"global_step": 7}'
    )
    (tmp_path / "events.log").write_text(event + "\n")
    with pytest.raises(InvalidInput, match=r"events\.log holds DLRover .* they hold no rank") as refused:
        rca.read_window(tmp_path / "events.log")
    assert "rca sources" in str(refused.value.hint)


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.log.gz"
    path.write_bytes(gzip.compress(b"text\n" * 100_000)[:-200])
    with pytest.raises(InvalidInput, match=r"job\.log\.gz: the gzip data is damaged"):
        rca.read_window(path)


def test_a_window_whose_events_quote_the_watchdog_is_a_window(tmp_path: Path) -> None:
    lines = [line for each in hang(4, [1]).values() for line in each]
    body = rca.read_window(write(tmp_path / "job.log", lines)).to_json()
    for name, content in (("window.json", body), ("window.json.gz", gzip.compress(body))):
        (tmp_path / name).write_bytes(content)
        assert source_of(tmp_path / name) is None
        assert rca.read_window(tmp_path / name).collectives.num_rows == 4


def test_logs_of_two_jobs_in_one_folder_are_refused_by_name(tmp_path: Path) -> None:
    for job, missing, number in (("a", 5, 78), ("b", 2, 9041)):
        for rank, lines in hang(8, [missing], number=number).items():
            write(tmp_path / "logs" / f"{job}-rank{rank}.log", lines)
    with pytest.raises(
        InvalidInput, match=r"a-rank0\.log and b-rank0\.log both hold messages of rank 0"
    ) as refused:
        rca.read_window(tmp_path / "logs")
    assert "one job and one attempt" in str(refused.value.hint)


def test_of_two_runs_of_torchrun_the_later_one_is_read(tmp_path: Path) -> None:
    for run, late in (("b", 2), ("a", 3)):
        for rank, lines in hang(4, [late]).items():
            stamped = [line.replace("[E3", f"[E{late}") for line in lines]
            write(tmp_path / "job" / f"run_{run}" / "attempt_0" / str(rank) / "stderr.log", stamped)
    window = rca.read_window(tmp_path / "job")
    assert states(window)[3] == ("finished", 77)
    assert "earlier runs of torchrun are left out: run_b" in window.notes


def test_two_runs_of_torchrun_are_refused_by_their_folders(tmp_path: Path) -> None:
    for run, number in (("a", 40), ("b", 78)):
        for rank, lines in hang(4, [3], number=number).items():
            write(tmp_path / "job" / f"run_{run}" / "attempt_0" / str(rank) / "stderr.log", lines)
    with pytest.raises(InvalidInput, match=r"run_a/attempt_0/0/stderr\.log and run_b/attempt_0/0/stderr"):
        rca.read_window(tmp_path / "job")


def test_a_log_that_repeats_those_of_the_ranks_is_no_second_job(tmp_path: Path) -> None:
    logs = hang(4, [3])
    for rank, lines in logs.items():
        write(tmp_path / "logs" / f"rank{rank}.log", lines)
    write(tmp_path / "logs" / "console.log", [line for lines in logs.values() for line in lines])
    assert states(rca.read_window(tmp_path / "logs"))[3] == ("finished", 77)


def test_a_number_of_thousands_of_digits_is_of_an_unknown_form(tmp_path: Path) -> None:
    path = write(
        tmp_path / "job.log", labelled(0, caught(0, 78).replace("SeqNum=78", "SeqNum=" + "7" * 5000))
    )
    with pytest.raises(InvalidInput, match="all of an unknown form"):
        rca.read_window(path)


@pytest.mark.parametrize("rank", [0, 3])
def test_the_log_of_one_rank_does_not_show_who_is_missing(tmp_path: Path, rank: int) -> None:
    window = rca.read_window(write(tmp_path / f"rank{rank}.log", hang(8, [5])[rank]))
    assert f"the logs are of rank {rank} only: the logs of the other ranks are needed" in window.notes
    answer = rca.diagnose(window)
    assert answer.abstained
    assert answer.abstention_reason is not None
    assert answer.abstention_reason.code == "undecided_mode"
    assert f"only rank {rank} has a record" in answer.abstention_reason.sentence
    assert "other ranks" in answer.next_check


def test_logs_of_all_ranks_have_no_note_of_one_rank(tmp_path: Path) -> None:
    lines = [line for each in hang(4, [1]).values() for line in each]
    assert not [note for note in rca.read_window(write(tmp_path / "job.log", lines)).notes if "only" in note]


def test_a_table_without_its_root_cause_names_nobody_for_certain(tmp_path: Path) -> None:
    answer = rca.diagnose(rca.read_window(write(tmp_path / "job.log", TABLE[:12])))
    assert (answer.failure_mode, answer.abstained) == ("fail_stop", True)
    assert any("cut before its root cause" in note for note in answer.quality.notes)


def test_a_cut_line_of_a_watchdog_shows_no_missing_rank(tmp_path: Path) -> None:
    lines = [line for each in (2, 0, 1) for line in labelled(each, caught(each, 78))]
    for kept in (160, 50):
        path = tmp_path / f"job{kept}.log"
        path.write_text("\n".join([*lines, labelled(3, caught(3, 78))[0][:kept]]))
        window = rca.read_window(path)
        assert 3 not in states(window)
        assert rca.diagnose(window).abstained
        lone = tmp_path / f"lone{kept}.log"
        lone.write_text("\n".join([*lines[:2], labelled(1, caught(1, 78))[0][:kept]]))
        assert rca.diagnose(rca.read_window(lone)).abstained


def test_the_last_of_two_attempts_in_one_log_counts(tmp_path: Path) -> None:
    later = [line.replace("02:07:", "02:17:").replace("rank      : 1", "rank      : 3") for line in TABLE]
    answer = rca.diagnose(rca.read_window(write(tmp_path / "job.log", TABLE + later)))
    assert [each.ranks for each in answer.stragglers] == [[3]]
    assert not answer.abstained
    assert "2 events of earlier stops are left out" in answer.quality.notes


@pytest.mark.parametrize("host", ["node-a kernel:", "kernel:"], ids=["host", "no host"])
def test_a_kill_of_the_failed_process_is_evidence_for_its_rank(tmp_path: Path, host: str) -> None:
    kill = f"Mar 21 02:07:29 {host} Out of memory: Killed process 14690 (python) total-vm:1kB"
    window = rca.read_window(write(tmp_path / "job.log", [kill, *TABLE]))
    assert [row["rank"] for row in window.events.to_pylist() if row["kind"] == "oom_kill"] == [1]
    answer = rca.diagnose(window)
    assert (answer.abstained, answer.causes[0].ranks) == (False, [1])
    assert "oom_kill" in {each.signal for each in answer.causes[0].evidence}


def test_the_root_cause_comes_before_failures_of_the_same_second(tmp_path: Path) -> None:
    lines = [line.replace("02:07:31", "02:07:30") for line in TABLE]
    answer = rca.diagnose(rca.read_window(write(tmp_path / "job.log", lines)))
    assert (answer.abstained, answer.stragglers[0].ranks) == (False, [1])
