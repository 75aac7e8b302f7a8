"""Confounder 1 for stopped jobs: all ranks stopped, and one of them did not join the collective."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hand_made import blamed

import rca
from rca.features import extract
from tests.for_each import for_each

COLLECTIVE = (
    "communication_wait_seconds",
    "communication_transfer_seconds",
    "optimizer_seconds",
    "step_seconds",
)


def stopped(
    window: rca.Window, rank: int, *, row_lost: bool, silent: float, events: pa.Table | None = None
) -> rca.Window:
    """In the last step all ranks wait in the collective for `rank`, which is still in its forward."""
    last = int(pc.max(window.steps["step"]).as_py())
    here = window.steps["step"].to_numpy() == last
    faulty = here & (window.steps["rank"].to_numpy() == rank)
    columns = {name: window.steps[name].to_numpy() for name in window.steps.column_names}
    for name in COLLECTIVE:
        columns[name] = np.where(here, np.nan, columns[name])
    for name in ("forward_seconds", "backward_seconds"):
        columns[name] = np.where(faulty, np.nan, columns[name])
    steps = pa.table(columns)
    if row_lost:
        steps = steps.filter(pa.array(~faulty))
    job = window.job.model_copy(update={"end": window.job.end + silent})
    return rca.Window.from_tables(job, steps, None, events)


@for_each("row_lost", [False, True], ids=["row begun", "row never written"])
@for_each(("n_ranks", "faulty"), [(2, 1), (8, 0), (8, 5), (64, 40)])
def test_the_rank_that_did_not_arrive_is_named_not_those_that_wait(
    make_window, n_ranks: int, faulty: int, row_lost: bool
) -> None:
    window = make_window(n_ranks, ranks_per_node=max(1, min(8, n_ranks // 4)))
    diagnosis = rca.diagnose(stopped(window, faulty, row_lost=row_lost, silent=60.0))
    assert diagnosis.failure_mode == "fail_stop"
    assert blamed(diagnosis) == {faulty}


def test_the_watchdog_that_fires_is_not_the_culprit(make_window) -> None:
    """NCCL's timeout is reported by a rank that waited, never by the one that is missing."""
    window = make_window(8)
    events = pa.table(
        {
            "time": [window.job.end + 50.0],
            "node": ["node-0"],
            "rank": pa.array([1], pa.int32()),
            "kind": ["nccl_timeout"],
            "code": pa.nulls(1, pa.string()),
            "message": ["collective timed out"],
        }
    )
    diagnosis = rca.diagnose(stopped(window, 5, row_lost=False, silent=60.0, events=events))
    assert diagnosis.failure_mode == "fail_stop"
    assert blamed(diagnosis) == {5}


def test_peers_that_fail_after_the_first_death_are_not_its_cause(make_window) -> None:
    """A killed rank breaks its peers' connections; they exit with errors within the same second."""
    window = make_window(8)
    end = window.job.end
    events = pa.table(
        {
            "time": [end, end + 0.4, end + 0.5],
            "node": ["node-2", "node-0", "node-3"],
            "rank": pa.array([4, 1, 6], pa.int32()),
            "kind": ["process_exit"] * 3,
            "code": ["-9", "1", "1"],
            "message": ["exited", "connection closed by peer", "connection closed by peer"],
        }
    )
    diagnosis = rca.diagnose(stopped(window, 4, row_lost=False, silent=10.0, events=events))
    assert diagnosis.failure_mode == "fail_stop"
    assert blamed(diagnosis) == {4}


@pytest.mark.parametrize("died_first", [True, False], ids=["dies, then missed", "missed, then aborted"])
def test_watchdogs_that_fire_after_a_death_make_no_hang_of_it(make_window, died_first: bool) -> None:
    """Peers of a killed rank may wait until their watchdogs fire; watchdogs kill who hangs, too."""
    window = make_window(8)
    end = window.job.end
    death, missed = (end, end + 50.0) if died_first else (end + 55.0, end + 50.0)
    events = pa.table(
        {
            "time": sorted((death, missed)),
            "node": ["node-2", "node-0"] if died_first else ["node-0", "node-2"],
            "rank": pa.array([4, 1] if died_first else [1, 4], pa.int32()),
            "kind": ["process_exit", "nccl_timeout"] if died_first else ["nccl_timeout", "process_exit"],
            "code": ["-9", None] if died_first else [None, "-6"],
            "message": ["", ""],
        }
    )
    diagnosis = rca.diagnose(stopped(window, 4, row_lost=False, silent=60.0, events=events))
    assert diagnosis.failure_mode == "fail_stop"
    assert blamed(diagnosis) == {4}
    assert diagnosis.causes[0].cause == ("process_crash" if died_first else "hang")


@pytest.mark.parametrize(
    ("delay", "rank", "died"),
    [(0.7, 4, True), (0.7, None, True), (-0.4, 4, False)],
    ids=["seen a second later", "the kernel names the node", "killed and started again"],
)
def test_a_death_is_at_the_end_of_progress(make_window, delay: float, rank: int | None, died: bool) -> None:
    """A launcher notices late; a process that died and was started again went on."""
    window = make_window(8)
    events = pa.table(
        {
            "time": [window.job.end + delay, window.job.end + 50.0],
            "node": ["node-2", "node-0"],
            "rank": pa.array([rank, 1], pa.int32()),
            "kind": ["oom_kill" if rank is None else "process_exit", "nccl_timeout"],
            "code": [None if rank is None else "-9", None],
            "message": ["", ""],
        }
    )
    ended = stopped(window, 4, row_lost=False, silent=60.0, events=events)
    assert extract(ended).job_end.died[4] == died
    diagnosis = rca.diagnose(ended)
    assert blamed(diagnosis) == {4}
    assert not died or diagnosis.causes[0].cause == "process_crash"


def test_a_slow_rank_before_the_stop_is_not_the_one_that_stopped(make_window) -> None:
    window = make_window(8, late={2: 0.03})
    diagnosis = rca.diagnose(stopped(window, 5, row_lost=False, silent=60.0))
    assert diagnosis.failure_mode == "fail_stop"
    assert blamed(diagnosis) == {5}


@pytest.mark.parametrize("seconds", [1.0, 5.0])
def test_one_very_long_step_is_not_a_stop(make_window, seconds: float) -> None:
    """Ranks wait long for rank 3 and go on: slow perhaps, stopped never."""
    diagnosis = rca.diagnose(make_window(n_steps=60, late={3: seconds}, steps=slice(30, 31)))
    assert diagnosis.failure_mode != "fail_stop"
