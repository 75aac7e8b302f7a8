"""Events alone: the process that ended first is named; what has no order abstains."""

from __future__ import annotations

from typing import Any

import pytest

import rca

BEGIN = 1_760_000_000.0


def window(*events: dict[str, Any], world_size: int = 8, placed: bool = True) -> rca.Window:
    job: dict[str, Any] = {"job_id": "a", "world_size": world_size, "start": BEGIN, "end": BEGIN + 60}
    if placed:
        job["ranks"] = [
            {"rank": rank, "node": f"node-{rank // 4}", "gpu": rank % 4} for rank in range(world_size)
        ]
    rows = [{"node": None, "rank": None, "code": None, "message": None, **each} for each in events]
    return rca.Window.from_tables(job, events=rows)


def exit_of(rank: int, code: int | str, second: float = 0.0, message: str | None = None) -> dict[str, Any]:
    return {
        "time": BEGIN + second,
        "rank": rank,
        "node": f"node-{rank // 4}",
        "kind": "process_exit",
        "code": str(code),
        "message": message,
    }


@pytest.mark.parametrize(
    ("code", "signal", "check"),
    [
        (-9, "SIGKILL", "out-of-memory killer in the kernel log of rank 5 (node-1)"),
        (137, "SIGKILL", "out-of-memory killer"),
        (-7, "SIGBUS", "shared memory"),
        (1, "", "the rank's own log and exit code"),
    ],
)
def test_the_process_that_ended_first_is_named(code: int, signal: str, check: str) -> None:
    later = [exit_of(rank, -15, 3.0) for rank in range(8) if rank != 5]
    answer = rca.diagnose(window(*later, exit_of(5, code, 1.0)))
    assert (answer.failure_mode, answer.abstained) == ("fail_stop", False)
    assert [(each.ranks, each.nodes) for each in answer.stragglers] == [([5], ["node-1"])]
    cause = answer.causes[0]
    assert (cause.cause, cause.ranks) == ("process_crash", [5])
    evidence = {each.signal: each for each in cause.evidence}
    assert evidence["exit_code"].value == code
    assert signal in evidence["exit_code"].note
    assert evidence["other_failures"].value == 7
    assert check in answer.next_check
    assert answer.slowdown.seconds_per_step is None
    assert (answer.quality.events_used, answer.missing_signals) == (8, ["steps", "metrics"])


def test_without_places_the_nodes_are_those_of_the_events() -> None:
    answer = rca.diagnose(window(exit_of(5, -9), exit_of(2, -6, 2.0), placed=False))
    assert (answer.stragglers[0].ranks, answer.stragglers[0].nodes) == ([5], ["node-1"])


def test_a_job_that_was_terminated_from_outside_has_no_first_rank() -> None:
    answer = rca.diagnose(window(*(exit_of(rank, -15, 0.1 * rank) for rank in range(8))))
    assert answer.abstained
    assert answer.abstention_reason is not None
    assert answer.abstention_reason.code == "failure_reported"


def test_failures_at_one_time_on_two_nodes_have_no_order() -> None:
    answer = rca.diagnose(window(exit_of(1, -9), exit_of(6, -9)))
    assert answer.abstained
    assert [each.ranks for each in answer.stragglers] == [[1], [6]]


def test_a_device_that_failed_names_the_ranks_of_its_node_and_abstains() -> None:
    event = {"time": BEGIN, "node": "node-1", "kind": "xid", "code": "79", "message": "fallen off the bus"}
    answer = rca.diagnose(window(event))
    assert (answer.failure_mode, answer.abstained) == ("fail_stop", True)
    assert answer.stragglers[0].ranks == [4, 5, 6, 7]
    assert "no process of it has ended" in str(answer.abstention_reason)
    unplaced = rca.diagnose(window(event, placed=False))
    assert unplaced.abstained
    assert [(each.ranks, each.nodes) for each in unplaced.stragglers] == [([], ["node-1"])]
    assert "node-1" in unplaced.next_check


def test_watchdogs_that_fired_name_the_rank_whose_watchdog_did_not() -> None:
    fired = [
        {"time": BEGIN, "rank": rank, "kind": "nccl_timeout", "message": "timeout"}
        for rank in range(8)
        if rank != 3
    ]
    answer = rca.diagnose(window(*fired))
    assert (answer.stragglers[0].ranks, answer.causes[0].cause) == ([3], "hang")


@pytest.mark.parametrize(
    "event",
    [
        exit_of(0, 0),
        {"time": BEGIN, "rank": 2, "kind": "log", "message": "step 100 loss 2.1"},
        {"time": BEGIN, "node": "node-0", "kind": "ecc", "message": "corrected error (SBE)"},
    ],
    ids=["normal exit", "progress", "corrected"],
)
def test_events_without_a_failure_show_nothing(event: dict[str, Any]) -> None:
    answer = rca.diagnose(window(event))
    assert (answer.failure_mode, answer.abstained, answer.stragglers) == ("healthy", True, [])
    assert answer.quality.events_used == 0


def of_node(kind: str, node: str, second: float, code: str | None = None) -> dict[str, Any]:
    return {"time": BEGIN + second, "node": node, "kind": kind, "code": code}


@pytest.mark.parametrize(
    "earlier",
    [
        of_node("xid", "node-0", 19.0, "79"),
        of_node("oom_kill", "node-0", 19.5),
        of_node("link_down", "node-0", -900.0),
        of_node("oom_kill", "node-9", 19.5),
    ],
    ids=["device", "killed", "link", "unknown node"],
)
def test_a_failure_elsewhere_before_the_first_exit_leaves_the_origin_open(earlier: dict[str, Any]) -> None:
    base = window(exit_of(5, 1, 20.0), earlier)
    job = base.job.model_copy(update={"start": BEGIN - 3600.0})
    answer = rca.diagnose(rca.Window.from_tables(job, events=base.events))
    assert (answer.failure_mode, answer.abstained) == ("fail_stop", True)
    suspects = {rank for each in answer.stragglers for rank in each.ranks}
    assert suspects == ({5} if earlier["node"] == "node-9" else {0, 1, 2, 3, 5})
    assert answer.abstention_reason is not None
    assert earlier["node"] in answer.abstention_reason.sentence


@pytest.mark.parametrize(
    "other",
    [
        of_node("xid", "node-0", 1.0, "13"),
        of_node("oom_kill", "node-1", 19.5),
        of_node("link_down", "node-0", 25.0),
    ],
    ids=["error of a program", "own node", "later"],
)
def test_other_failures_leave_the_first_exit_certain(other: dict[str, Any]) -> None:
    answer = rca.diagnose(window(exit_of(5, -9, 20.0), other))
    assert not answer.abstained
    assert answer.stragglers[0].ranks == [5]


def test_a_kill_on_the_node_of_an_exit_is_evidence_without_places_too() -> None:
    kill = of_node("oom_kill", "node-1", 19.5)
    answer = rca.diagnose(window(exit_of(5, -9, 20.0), kill, placed=False))
    assert not answer.abstained
    assert "oom_kill" in {each.signal for each in answer.causes[0].evidence}


def test_failures_before_the_last_restart_are_left_out() -> None:
    restart = {"time": BEGIN + 10, "kind": "restart"}
    answer = rca.diagnose(window(exit_of(5, 1, 5.0), restart))
    assert (answer.abstained, answer.stragglers) == (True, [])
    assert "rank 5" in answer.next_check
    again = rca.diagnose(window(exit_of(5, 1, 5.0), restart, exit_of(2, 1, 30.0)))
    assert (again.abstained, again.stragglers[0].ranks) == (False, [2])
    assert any("before the last restart" in note for note in again.quality.notes)


def test_an_exit_before_the_start_is_of_another_job() -> None:
    answer = rca.diagnose(window(exit_of(5, 1, -100.0)))
    assert (answer.abstained, answer.stragglers, answer.quality.events_used) == (True, [], 0)


def missed(rank: int, second: float) -> dict[str, Any]:
    return {"time": BEGIN + second, "rank": rank, "kind": "heartbeat_missed"}


def test_one_missed_heartbeat_is_no_certain_stop() -> None:
    assert rca.diagnose(window(missed(2, 5.0))).abstained
    several = rca.diagnose(window(*(missed(2, second) for second in (5.0, 15.0, 25.0))))
    assert (several.abstained, several.causes[0].cause) == (False, "hang")


def test_progress_after_a_failure_leaves_the_stop_open() -> None:
    saved = {"time": BEGIN + 500.0, "rank": 0, "kind": "checkpoint_saved"}
    answer = rca.diagnose(window(exit_of(5, 1, 5.0), saved))
    assert answer.abstained
    assert "went on" in str(answer.abstention_reason)


def test_ranks_beyond_the_longest_list_are_counted() -> None:
    answer = rca.diagnose(window(*(exit_of(rank, -9) for rank in range(0, 280, 4)), world_size=280))
    assert (len(answer.stragglers), answer.left_out["stragglers"]) == (64, 6)
    assert answer.abstention_reason is not None
    assert answer.abstention_reason.sentence.startswith("70 ranks failed")


def lost_peer(rank: int, second: float) -> dict[str, Any]:
    message = "NCCL error: remote process exited or there was a network error"
    return {"time": BEGIN + second, "rank": rank, "kind": "log", "message": message}


def test_a_rank_that_lost_a_peer_before_it_ended_is_no_suspect() -> None:
    lost = [lost_peer(rank, 0.1 * rank) for rank in range(4)]
    answer = rca.diagnose(window(*lost, exit_of(0, 1, 3.0)))
    assert (answer.failure_mode, answer.abstained, answer.stragglers) == ("fail_stop", True, [])
    assert answer.abstention_reason is not None
    assert "ranks 0, 1, 2, 3 lost a peer" in answer.abstention_reason.sentence
    assert "logs of the other ranks" in answer.next_check


def test_an_error_of_its_own_before_the_loss_of_a_peer_makes_a_rank_the_origin() -> None:
    error = {"time": BEGIN, "rank": 2, "kind": "process_error", "code": "cuda_error"}
    answer = rca.diagnose(window(error, lost_peer(2, 0.5), lost_peer(1, 0.6), exit_of(1, 1, 2.0)))
    assert ([each.ranks for each in answer.stragglers], answer.abstained) == ([[2]], False)


def test_a_process_that_aborted_alone_is_a_suspect_without_certainty() -> None:
    answer = rca.diagnose(window(exit_of(5, -6, message="Signal 6 (SIGABRT) received by PID 14")))
    assert ([each.ranks for each in answer.stragglers], answer.abstained) == ([[5]], True)
    assert answer.abstention_reason is not None
    assert "watchdog" in answer.abstention_reason.sentence


def test_of_two_ranks_of_a_node_the_one_that_ended_seconds_earlier_is_the_origin() -> None:
    answer = rca.diagnose(window(exit_of(3, 1, 1.0), exit_of(0, -6, 4.0)))
    assert ([each.ranks for each in answer.stragglers], answer.abstained) == ([[3]], False)


def test_ranks_whose_watchdogs_fired_alone_are_victims() -> None:
    fired = [{"time": BEGIN, "rank": rank, "kind": "nccl_timeout", "message": "timeout"} for rank in (1, 5)]
    answer = rca.diagnose(window(*fired))
    assert (answer.abstained, answer.stragglers) == (True, [])
    assert "ranks 1, 5 waited in vain" in str(answer.abstention_reason)


def test_reports_that_name_most_ranks_as_missing_blame_none() -> None:
    named = [{"time": BEGIN, "rank": rank, "kind": "did_not_join"} for rank in range(1, 8)]
    answer = rca.diagnose(window(*named))
    assert (answer.abstained, answer.stragglers) == (True, [])
    some = rca.diagnose(window(*named[:2], exit_of(0, 1, 5.0)))
    assert [each.ranks for each in some.stragglers] == [[1], [2]]
    assert (some.causes[0].cause, some.abstained) == ("hang", False)


def test_a_job_that_the_scheduler_ended_has_no_culprit() -> None:
    answer = rca.diagnose(window({"time": BEGIN, "kind": "job_ended", "code": "TIME LIMIT"}))
    assert (answer.failure_mode, answer.abstained, answer.stragglers) == ("fail_stop", False, [])
    assert "TIME LIMIT" in answer.next_check
