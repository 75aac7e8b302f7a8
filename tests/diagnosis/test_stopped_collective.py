"""A stopped job is diagnosed from records of collectives alone: who did not join."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import rca
from rca.cli import app
from rca.window.schema import COLLECTIVES
from tests.for_each import for_each

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "flight-recorder"
Row = tuple[int, str, str, int | None]


def window(
    rows: list[Row], world_size: int, *, per_node: int | None = None, since: float = 100.0
) -> rca.Window:
    """A window of rows (rank, group, state, sequence); waiting members wait since that second of 600."""
    table = pa.table(
        {
            "rank": [row[0] for row in rows],
            "group": [row[1] for row in rows],
            "state": [row[2] for row in rows],
            "sequence": pa.array([row[3] for row in rows], pa.int64()),
            "waiting_since": [1e9 + since if row[2] == "waiting" else None for row in rows],
            "operation": ["nccl:all_reduce"] * len(rows),
        }
    )
    ranks = (
        None if per_node is None else [{"rank": r, "node": f"n{r // per_node}"} for r in range(world_size)]
    )
    job = {"job_id": "j", "world_size": world_size, "start": 1e9, "end": 1e9 + 600, "ranks": ranks}
    return rca.Window.from_tables(job, collectives=table)


def one_group(missing: dict[int, str], n_ranks: int = 8) -> list[Row]:
    """All ranks wait at collective 50; missing ones have the given state."""
    numbers = {"waiting": 49, "finished": 48, "idle": None, "unrecorded": None}
    return [
        (rank, "world", missing.get(rank, "waiting"), numbers[missing[rank]] if rank in missing else 50)
        for rank in range(n_ranks)
    ]


def culprits(diagnosis: rca.Diagnosis) -> list[list[int]]:
    return [straggler.ranks for straggler in diagnosis.stragglers]


@pytest.mark.parametrize("state", ["finished", "idle", "waiting"])
def test_a_rank_that_left_a_record_and_did_not_join_hangs(state: str) -> None:
    diagnosis = rca.diagnose(window(one_group({5: state}), 8))
    assert (diagnosis.failure_mode, diagnosis.abstained) == ("fail_stop", False)
    assert culprits(diagnosis) == [[5]]
    assert diagnosis.causes[0].cause == "hang"
    assert "7 members of world wait in nccl:all_reduce for rank 5" in diagnosis.causes[0].evidence[0].note
    assert "rank 5" in diagnosis.next_check
    assert diagnosis.slowdown.seconds_per_step is None


def test_a_rank_without_a_record_is_found_but_its_cause_stays_open() -> None:
    diagnosis = rca.diagnose(window(one_group({5: "unrecorded"}), 8))
    assert (diagnosis.failure_mode, culprits(diagnosis)) == ("fail_stop", [[5]])
    assert diagnosis.abstention_reason is not None
    assert diagnosis.abstention_reason.code == "cause_not_certain"
    assert "rank 5 left no record" in diagnosis.abstention_reason.sentence


def test_two_ranks_on_two_nodes_are_two_and_a_whole_node_is_one() -> None:
    two = rca.diagnose(window(one_group({1: "finished", 5: "finished"}), 8, per_node=4))
    assert culprits(two) == [[1], [5]]
    assert [straggler.nodes for straggler in two.stragglers] == [["n0"], ["n1"]]
    node = rca.diagnose(window(one_group(dict.fromkeys(range(4, 8), "finished"), 12), 12, per_node=4))
    assert culprits(node) == [[4, 5, 6, 7]]
    assert node.stragglers[0].scope == "node"


@for_each("culprit", range(8))
def test_ranks_that_wait_for_the_culprit_elsewhere_are_not_blamed(culprit: int) -> None:
    """Tensor groups of two, and data groups across them: the culprit's partner is late in its data group."""
    rows: list[Row] = []
    partner = culprit ^ 1
    for rank in range(8):
        tensor = "finished" if rank == culprit else "waiting" if rank == partner else "finished"
        rows.append((rank, f"tensor {rank // 2}", tensor, 9 if rank == culprit else 10))
        late = rank in (culprit, partner)
        same_data_group = rank % 2 in (culprit % 2, partner % 2)
        state = "finished" if late else "waiting" if same_data_group else "finished"
        rows.append((rank, f"data {rank % 2}", state, 4 if late else 5))
    assert culprits(rca.diagnose(window(rows, 8))) == [[culprit]]


def test_if_all_members_wait_no_rank_is_blamed() -> None:
    diagnosis = rca.diagnose(window(one_group({}), 8))
    assert (diagnosis.failure_mode, culprits(diagnosis), diagnosis.causes) == ("fail_stop", [], [])
    assert diagnosis.abstention_reason is not None
    assert diagnosis.abstention_reason.code == "nobody_stands_out"
    assert diagnosis.failure_mode_set == ["healthy", "fail_stop"]


@pytest.mark.parametrize(
    ("rows", "since", "words"),
    [
        (one_group(dict.fromkeys(range(1, 8), "finished")), 100.0, "1 ranks wait for 7"),
        (one_group({5: "finished"}), 599.99, "longest wait is 0.01 s"),
    ],
    ids=["one rank ran ahead", "a moment"],
)
def test_what_a_running_job_shows_as_well_is_not_certain(rows: list[Row], since: float, words: str) -> None:
    diagnosis = rca.diagnose(window(rows, 8, since=since))
    assert diagnosis.abstention_reason is not None
    assert diagnosis.abstention_reason.code == "undecided_mode"
    assert words in diagnosis.abstention_reason.sentence
    assert diagnosis.failure_mode_set == ["healthy", "fail_stop"]
    assert "second dump" in diagnosis.next_check


def test_of_two_ranks_the_one_behind_is_named_if_the_other_waits_for_minutes() -> None:
    rows = one_group({1: "finished"}, 2)
    answer = rca.diagnose(window(rows, 2, since=400.0))
    assert (culprits(answer), answer.abstained) == ([[1]], False)
    soon = rca.diagnose(window(rows, 2, since=530.0))
    assert soon.abstained
    assert soon.abstention_reason is not None
    assert "1 ranks wait for 1" in soon.abstention_reason.sentence


@pytest.mark.parametrize("since", [1e12, 1e15, 1e308, -1e308])
def test_waits_far_outside_the_window_are_refused(since: float) -> None:
    with pytest.raises(rca.InvalidWindow) as refused:
        window(one_group({5: "finished"}), 8, since=since)
    assert (refused.value.table, refused.value.column) == (COLLECTIVES.name, "waiting_since")


def test_an_earlier_window_is_not_used_and_a_note_says_so(make_window) -> None:
    earlier = make_window()
    diagnosis = rca.diagnose(window(one_group({5: "finished"}), 8), earlier=_before(earlier))
    assert any("earlier window was not used" in note for note in diagnosis.quality.notes)


def _before(earlier: rca.Window) -> rca.Window:
    """The window long before that of this module."""
    shift = 1e6
    start = earlier.job.start - shift
    steps = earlier.steps
    moved = pa.array(steps["start_time"].to_numpy() - start - shift + 1e9 - 1e5)
    column = steps.column_names.index("start_time")
    job = earlier.job.model_copy(
        update={"start": 1e9 - 1e5, "end": 1e9 - 1e5 + earlier.job.end - earlier.job.start}
    )
    return rca.Window.from_tables(job, steps.set_column(column, "start_time", moved))


def test_if_no_rank_waits_the_records_decide_nothing() -> None:
    diagnosis = rca.diagnose(window([(rank, "world", "finished", 50) for rank in range(4)], 4))
    assert diagnosis.abstention_reason is not None
    assert diagnosis.abstention_reason.code == "undecided_mode"


def test_a_group_that_finished_blames_no_late_member() -> None:
    rows = [*one_group({5: "finished"}), *((rank, "old", "finished", 7 - rank) for rank in range(4))]
    assert culprits(rca.diagnose(window(rows, 8))) == [[5]]


def test_the_command_exits_with_20_and_prints_the_ranks(tmp_path: Path) -> None:
    window(one_group({5: "finished"}), 8).to_directory(tmp_path / "w")
    result = CliRunner().invoke(app, ["diagnose", str(tmp_path / "w")])
    assert result.exit_code == 20
    assert "rank 5" in result.stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        ("state", [(0, "world", "gone", 1)]),
        ("sequence", [(0, "world", "waiting", None)]),
        ("rank", [(0, "world", "finished", 1), (0, "world", "finished", 2)]),
        ("rank", [(9, "world", "finished", 1)]),
    ],
)
def test_records_that_break_the_format_are_refused(column: str, rows: list[Row]) -> None:
    with pytest.raises(rca.InvalidWindow) as refused:
        window(rows, 8)
    assert (refused.value.table, refused.value.column) == (COLLECTIVES.name, column)


def test_an_analysis_of_steps_refuses_a_window_without_them() -> None:
    with pytest.raises(rca.InvalidWindow, match="needs steps"):
        rca.what_if(window(one_group({5: "finished"}), 8))


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the public dumps in ../shared/traces/flight-recorder")
@pytest.mark.parametrize("name", ["lock_gil_1st", "gpu_error_2nd"])
def test_public_dumps_of_sixteen_ranks_name_both_culprits(name: str) -> None:
    diagnosis = rca.diagnose(rca.read_window(SHARED / name))
    assert (diagnosis.failure_mode, culprits(diagnosis)) == ("fail_stop", [[9], [14]])


def with_event(kind: str, **values: object) -> rca.Window:
    """Seven ranks wait for rank 5; an event came just before they began to."""
    base = window(one_group({5: "finished"}), 8, since=100.0)
    row = {"time": 1e9 + 99.0, "node": None, "rank": None, "kind": kind, "code": None, "message": None}
    job = {"job_id": "j", "world_size": 8, "start": 1e9, "end": 1e9 + 600}
    return rca.Window.from_tables(job, events=[row | values], collectives=base.collectives)


def test_a_failed_node_names_where_the_missing_rank_may_be() -> None:
    answer = rca.diagnose(with_event("xid", node="node-7", code="79"))
    assert [(each.ranks, each.nodes) for each in answer.stragglers] == [([5], ["node-7"])]
    assert answer.causes[0].cause == "process_crash"
    assert "xid" in {each.signal for each in answer.causes[0].evidence}


def test_an_error_of_the_missing_rank_is_its_cause() -> None:
    answer = rca.diagnose(with_event("process_error", rank=5, code="out_of_memory"))
    assert (culprits(answer), answer.causes[0].cause, answer.abstained) == ([[5]], "process_crash", False)


def test_an_error_of_a_rank_for_which_no_other_waits_leaves_the_origin_open() -> None:
    answer = rca.diagnose(with_event("process_error", rank=2, code="out_of_memory"))
    assert answer.abstained
    assert sorted(rank for ranks in culprits(answer) for rank in ranks) == [2, 5]
    assert answer.abstention_reason is not None
    assert "wait for rank 5" in answer.abstention_reason.sentence


def test_a_rank_that_lost_a_peer_is_no_origin() -> None:
    answer = rca.diagnose(with_event("log", rank=2, message="Connection reset by peer"))
    assert (culprits(answer), answer.causes[0].cause) == ([[5]], "hang")
