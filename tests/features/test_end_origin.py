"""Origin of a job's end: the first of many ranks that ended, and which events count as failures."""

from __future__ import annotations

import numpy as np
import pytest

from rca.features.end_events import End, Event, ranks_in_events
from rca.features.end_origin import end_origin
from rca.window.job import Job
from tests.for_each import for_each

SIGN, STEP = 100.0, 1.0
#: Eight ranks on two nodes.
TOPOLOGY = Job.model_validate(
    {
        "format": 1, "job_id": "j", "world_size": 8, "start": 0.0, "end": 200.0,
        "ranks": [{"rank": rank, "node": f"n{rank // 4}"} for rank in range(8)],
    }
).topology  # fmt: skip
AGENT, PEER, SHORT = "SIGTERM from elastic agent", "NCCL error: remote process exited", "shape mismatch"


def ended(time: float, rank: int | None, code: str | None = "1", message: str | None = None, **more) -> Event:
    node = more.get("node", -1 if rank is None else rank // 4)
    return Event(SIGN + time, more.get("kind", "process_exit"), code, rank, node, message)


def named(*events: Event, earliest: float = SIGN - STEP) -> list[int]:
    began = end_origin(events, End(TOPOLOGY, SIGN, np.full(8, earliest), STEP))
    return np.flatnonzero(began).tolist()


def all_others(rank: int, code: str, message: str | None = None, start: float = 1.0) -> list[Event]:
    return [ended(start + 0.1 * each, each, code, message) for each in range(8) if each != rank]


def watchdog(rank: int, enqueued: int, spelling: str = "work") -> Event:
    message = f"Watchdog caught a timeout: last enqueued {spelling}: {enqueued}, last completed {spelling}: 7"
    return ended(60.0 + rank, rank, None, message, kind="nccl_timeout")


@pytest.mark.parametrize("code", ["-15", "143", "SIGTERM", "130"])
def test_a_rank_terminated_after_another_death_is_not_the_origin(code: str) -> None:
    assert named(ended(0.5, 5, "-6", SHORT), *all_others(5, code)) == [5]


def test_a_rank_terminated_before_all_others_is_the_origin() -> None:
    assert named(ended(0.5, 5, "-15"), *all_others(5, "1", PEER)) == [5]


def test_a_rank_that_lost_its_peer_is_not_the_origin() -> None:
    assert named(ended(0.1, 2, "1", PEER), ended(0.5, 5, "1", SHORT), *all_others(5, "1", PEER)) == [5]


def test_a_first_exit_with_an_odd_code_is_the_origin() -> None:
    assert named(ended(0.5, 5, "-9"), *all_others(5, "1")) == [5]


def test_the_first_exit_of_a_gang_is_the_origin_where_all_codes_are_alike() -> None:
    assert named(ended(-1.0, 5), *all_others(5, "1")) == [5]
    of_one_node = [ended(0.1 * rank - 0.4, rank) for rank in (4, 5, 6, 7)]
    assert named(*of_one_node, *all_others(9, "1", start=2.0)[:4]) == [4, 5, 6, 7]


def test_a_rank_that_logged_the_loss_of_its_peer_is_not_the_origin() -> None:
    logged = [ended(0.2 + rank / 100, rank, None, PEER, kind="log") for rank in range(8) if rank != 5]
    assert named(ended(0.5, 5), *logged, *all_others(5, "1", start=0.4)) == [5]


@pytest.mark.parametrize("kind", ["log", "process_exit"])
def test_the_only_rank_without_an_end_is_the_origin_if_the_others_lost_a_peer(kind: str) -> None:
    lost = [ended(0.5, rank, None, PEER, kind=kind) for rank in range(8) if rank != 5]
    assert named(*lost) == [5]
    normal = [ended(0.6, rank, "0") for rank in range(8) if rank != 5]
    assert named(lost[0], *normal) == [5]
    assert named(*lost[:4]) == []
    assert named(*lost, ended(0.6, 5, "0")) == []
    # One of the others failed by itself.
    assert named(*lost[1:], ended(0.4, 0, "1", SHORT)) == [0]


def test_a_port_that_failed_before_all_processes_ended_is_the_origin() -> None:
    down = ended(-0.5, None, None, "mlx5_1: Port: 1 Link DOWN", kind="link_down", node=1)
    late = [ended(30.0 + rank / 10, rank, "-6") for rank in range(8)]
    assert named(down, *late) == [4, 5, 6, 7]
    # A port of management carries no collectives.
    assert named(down._replace(message="mgmt0: link down"), *late) == []


def test_few_ranks_without_a_watchdog_are_the_origin_on_several_nodes_as_well() -> None:
    job = {"format": 1, "job_id": "j", "world_size": 16, "start": 0.0, "end": 200.0}
    fired = [watchdog(rank, 7, "work")._replace(node=-1) for rank in range(16) if rank not in (9, 14)]
    began = end_origin(fired, End(Job.model_validate(job).topology, SIGN, np.full(16, SIGN), STEP))
    assert np.flatnonzero(began).tolist() == [9, 14]


@for_each(
    "events",
    [
        [ended(0.5, 5, "1"), *all_others(5, "1")],
        [ended(9.0, 5, "-9"), *all_others(5, "1")],
        [ended(0.1, 1, "-9"), ended(0.2, 6, "-9")],
        [ended(0.1, rank, "-9") for rank in range(8)],
        [ended(0.1, rank, "0") for rank in range(8)],
        [ended(0.1 * rank, rank, "-15") for rank in range(8)],
        [ended(0.1 * rank, rank, "143" if rank != 2 else "-9") for rank in range(8)],
        [ended(0.1 * rank, rank, "-2" if rank != 1 else "1", "KeyboardInterrupt") for rank in range(8)],
        [],
    ],
    ids=[
        "all alike",
        "odd code, but last",
        "two nodes",
        "all ranks",
        "normal exits",
        "preempted",
        "one had to be killed",
        "interrupted",
        "none",
    ],
)
def test_other_events_show_no_origin(events: list[Event]) -> None:
    assert named(*events) == []


def test_a_node_that_goes_down_is_the_origin_as_a_whole() -> None:
    assert named(*(ended(0.1 * rank, rank, "-9") for rank in range(4, 8))) == [4, 5, 6, 7]
    lost = [ended(30.0 + rank, rank, None, kind="heartbeat_missed") for rank in range(4)]
    assert named(*lost) == [0, 1, 2, 3]


def test_several_whole_nodes_may_go_down_together() -> None:
    job = {"format": 1, "job_id": "j", "world_size": 16, "start": 0.0, "end": 200.0}
    places = [{"rank": rank, "node": f"n{rank // 4}"} for rank in range(16)]
    topology = Job.model_validate(job | {"ranks": places}).topology
    for lost, expected in ((range(4, 12), [*range(4, 12)]), (range(4, 11), []), (range(4, 16), [])):
        missed = [ended(30.0, rank, None, kind="heartbeat_missed") for rank in lost]
        began = end_origin(missed, End(topology, SIGN, np.full(16, SIGN), STEP))
        assert np.flatnonzero(began).tolist() == expected


def test_a_whole_node_may_be_most_of_the_job_but_a_part_of_one_may_not() -> None:
    job = {"format": 1, "job_id": "j", "world_size": 6, "start": 0.0, "end": 200.0}
    places = [{"rank": rank, "node": "a" if rank < 4 else "b"} for rank in range(6)]
    topology = Job.model_validate(job | {"ranks": places}).topology
    lost = [ended(30.0, rank, None, kind="heartbeat_missed", node=0) for rank in range(4)]
    began = end_origin(lost, End(topology, SIGN, np.full(6, SIGN), STEP))
    assert np.flatnonzero(began).tolist() == [0, 1, 2, 3]
    alone = Job.model_validate(job | {"ranks": [{"rank": rank, "node": "a"} for rank in range(6)]}).topology
    assert not end_origin(lost, End(alone, SIGN, np.full(6, SIGN), STEP)).any()


def test_an_exit_names_the_rank_of_a_kill_that_names_the_node() -> None:
    kill = ended(0.4, None, None, node=1, kind="oom_kill")
    assert named(kill, ended(0.5, 6, "137"), *all_others(6, "-15", AGENT)) == [6]
    assert named(kill) == []


def test_deaths_come_before_heartbeats_and_these_before_watchdogs() -> None:
    beat = ended(30.0, 2, None, kind="heartbeat_missed")
    timeouts = [watchdog(rank, 40 if rank == 7 else 41) for rank in range(8)]
    assert named(ended(0.5, 5, "-9"), beat, *timeouts) == [5]
    assert named(beat, *timeouts) == [2]
    assert named(*timeouts) == [7]


@pytest.mark.parametrize("spelling", ["work", "NCCL work"])
def test_a_watchdog_with_fewer_collectives_names_the_origin(spelling: str) -> None:
    assert named(watchdog(0, 235171, spelling), watchdog(1, 235168, spelling)) == [1]
    assert named(watchdog(0, 41, spelling), watchdog(1, 41, spelling)) == []
    assert named(watchdog(0, 41, spelling)) == []


def test_the_collective_that_a_watchdog_names_shows_who_never_joined() -> None:
    fired = [watchdog(rank, 0) for rank in range(8)]
    words = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=ALLREDUCE)"
    fired = [each._replace(message=words.format(40 if each.rank == 6 else 41)) for each in fired]
    assert named(*fired) == [6]


def test_counts_of_several_communicators_do_not_compare() -> None:
    groups = [watchdog(0, 90000, "work"), watchdog(1, 300, "work")]
    groups = [each._replace(message=f"[PG {each.rank}] {each.message}") for each in groups]
    assert named(*groups) == []
    twice = [watchdog(rank, 41) for rank in range(8)] + [watchdog(3, 7)]
    assert named(*twice) == []


@pytest.mark.parametrize("kind", ["xid", "link_down"])
def test_a_heartbeat_missed_after_a_device_failed_is_not_the_origin(kind: str) -> None:
    beat = ended(30.0, 0, None, kind="heartbeat_missed")
    assert named(ended(0.4, 5, "79", kind=kind), beat) == [5]
    assert named(beat, watchdog(0, 41), watchdog(7, 40), watchdog(1, 41)) == [0]
    late = ended(90.0, 0, None, kind="heartbeat_missed")
    assert named(late, watchdog(0, 41), watchdog(7, 40), watchdog(1, 41)) == [7]


CORRECTED = [
    *((code, None) for code in ("SBE", "ECC_SBE", "sbe_volatile", "CE", "correctable_ecc")),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "row remapping pending"),
    *(
        (None, words)
        for words in (
            "row remapping pending, correctable errors", "corrected error logged", "SBE=12 DBE=0",
            "EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "corrected errors 12, uncorrected 0",
            "dram_correctable_errors=3",
        )
    ),
]  # fmt: skip
FATAL = [
    *((code, None) for code in ("DBE", "MBE", "UE", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", None)),
    ("DBE", "volatile ECC: corrected 0, uncorrected 1"), ("dram_uncorrectable", "sbe 3"),
    *(
        (None, words)
        for words in (
            "row remapper: failed to remap row", "DRAM uncorrectable: 1, DRAM correctable: 0",
            "non-correctable ECC error", "double bit error; single-bit count 4", "Failed row remapping",
            "error could not be corrected", "error cannot be corrected by ECC", "DBE=1 SBE=12",
            "uncorrectable ECC error, row remapping pending", "Uncorr. ECC error; correctable: 3",
            "Multi-bit ECC error; single-bit errors: 4", "Row remap: out of spare rows",
            "1 UE, 3 correctable",
        )
    ),
]  # fmt: skip


@for_each(("code", "message"), CORRECTED + FATAL)
def test_only_uncorrected_memory_errors_are_failures(code: str | None, message: str | None) -> None:
    event = ended(0.4, 5, code, message, kind="ecc")
    ends = (code, message) in FATAL
    assert (event.failure, event.trouble, event.harmless) == (ends, ends, not ends)


@for_each(
    ("code", "message"),
    [
        ("63", None), ("63.0", None), ("Xid 121", None), ("XID:160", None), ("92", "high ECC error rate"),
        (None, "NVRM: Xid (PCI:0000:3b:00): 63, pid=7, Row Remapper: new row marked"),
        ("NVRM: Xid (PCI:0000:79:00): 63", None),
    ],
)  # fmt: skip
def test_xid_codes_of_corrected_errors_are_no_failures(code: str | None, message: str | None) -> None:
    assert ended(0.4, 5, code, message, kind="xid").corrected


@for_each(
    ("code", "message"),
    [
        ("79", None), ("64", "row remapper: failed to remap row"), ("gpu63", "Xid 79"), (None, None),
        (None, "NVRM: Xid (PCI:0000:63:00): 79, GPU is gone"), ("GPU-63", "NVRM: Xid (PCI:0000:00): 79"),
    ],
)  # fmt: skip
def test_other_xid_codes_are_failures(code: str | None, message: str | None) -> None:
    assert ended(0.4, 5, code, message, kind="xid").failure


@pytest.mark.parametrize(("code", "ends"), [("SBE", False), ("DBE", True)])
def test_a_corrected_error_marks_its_rank_without_ending_the_job(code: str, ends: bool) -> None:
    event = ended(0.4, 5, code, None, kind="ecc")
    fatal, _, first = ranks_in_events([event], TOPOLOGY)
    assert np.flatnonzero(fatal).tolist() == [5]
    assert np.isfinite(first) == ends
    assert named(event, ended(30.0, 0, None, kind="heartbeat_missed")) == ([5] if ends else [0])


def test_a_message_about_its_own_child_leaves_a_rank_the_origin() -> None:
    assert named(ended(0.5, 5, "1", "BrokenPipeError in DataLoader worker")) == [5]


def test_the_only_rank_without_a_watchdog_is_the_origin() -> None:
    fired = [ended(60.0, rank, None, "timeout", kind="nccl_timeout") for rank in range(8)]
    assert named(*fired[:2], *fired[3:]) == [2]
    assert named(*fired[:4]) == []
    assert named(*fired[:6]) == []
    assert named(*fired) == []
    assert named(*fired[:2], *fired[3:], ended(0.5, 5, "-9")) == [5]


def test_ranks_killed_by_watchdogs_are_not_the_origin() -> None:
    aborted = [ended(70.0 + rank, rank, "-6") for rank in range(3)]
    assert named(watchdog(0, 41), *aborted) == []


def test_an_exit_before_the_last_row_does_not_count() -> None:
    assert named(ended(-30.0, 5, "-9"), earliest=SIGN - STEP) == []
    assert named(ended(-30.0, 5, "-9"), earliest=SIGN - 40.0) == [5]
