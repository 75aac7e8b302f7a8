from __future__ import annotations

import numpy as np
import pytest
from testbed_records import UNIX_OFFSET, acted_of, record_of, rows_of, scenario_of

from rca.lab.testbed.labels import impact_of, label_of
from rca.lab.testbed.process import Exit, Spawned
from rca.lab.testbed.ranks.shared import Row
from rca.lab.testbed.sampling.series import Sample
from rca.lab.testbed.window import clock_offsets, split_communication, window_of

DATASET = {"kind": "slow_dataset", "scope": "rank", "ranks": [2], "first_step": 15, "last_step": 30}


def slowed(factor: float, first: int = 15, last: int = 30) -> np.ndarray:
    seconds = np.full(40, 0.1)
    seconds[first : last + 1] *= factor
    seconds[0] = 2.0
    return seconds


def test_waiting_lasts_until_the_last_rank_arrives():
    rows = rows_of(np.full(3, 0.6), 4)
    rows[1][:, Row.ARRIVAL_TIME] += 0.05
    wait, transfer = split_communication(rows, scenario_of().job)
    assert wait[:, 0] == pytest.approx([0.05, 0.0, 0.05, 0.05])
    assert transfer[:, 0] == pytest.approx([0.05] * 4)


def test_ranks_wait_for_their_own_stage_only():
    rows = rows_of(np.full(3, 0.6), 4)
    rows[1][:, Row.ARRIVAL_TIME] += 0.05
    rows[3][:, Row.PEER_WAIT] = 0.02
    wait, _ = split_communication(rows, scenario_of(job={"pipeline": 2}).job)
    assert wait[:, 0] == pytest.approx([0.05, 0.0, 0.0, 0.02])


def test_a_collective_that_never_ends_has_no_length():
    rows = rows_of(np.full(3, 0.6), 4)
    rows[2][2, Row.ARRIVAL_TIME :] = np.nan
    for each in rows:
        each[2, Row.DONE_TIME] = np.nan
    wait, transfer = split_communication(rows, scenario_of().job)
    assert np.isnan(wait[:, 2]).all()
    assert np.isnan(transfer[:, 2]).all()
    assert np.isfinite(wait[:, :2]).all()


def test_a_record_becomes_a_window_on_unix_time():
    samples = [Sample(100.5, "node-1", 2, "host", "process_state_running", 1.0)]
    window = window_of(scenario_of(), record_of(rows_of(slowed(1.0), 4), samples=samples))
    assert window.steps.num_rows == 160
    assert window.steps.column("start_time")[0].as_py() == UNIX_OFFSET + 100.0
    assert window.metrics.column("time")[0].as_py() == UNIX_OFFSET + 100.5
    assert window.job.ranks is not None
    assert [place.node for place in window.job.ranks] == [
        "node-0",
        "node-0",
        "node-1",
        "node-1",
    ]
    assert "tokens" not in window.steps.column_names


def test_clock_skew_moves_whole_nodes_and_nothing_else():
    scenario = scenario_of(benign=["clock_skew"], seed=5)
    record = record_of(rows_of(slowed(1.0), 4))
    straight, skewed = window_of(scenario_of(seed=5), record), window_of(scenario, record)
    moved = np.asarray(skewed.steps.column("start_time")) - np.asarray(straight.steps.column("start_time"))
    offsets = clock_offsets(scenario)
    assert moved.reshape(4, 40)[:, 0] == pytest.approx(np.repeat(offsets, 2), abs=1e-5)
    assert offsets[0] != offsets[1]
    assert skewed.steps.column("step_seconds") == straight.steps.column("step_seconds")


def test_ended_hosts_become_events_if_the_scenario_reports_them():
    stop = {"kind": "killed_rank", "scope": "rank", "ranks": [1], "first_step": 15}
    exits = [Exit(Spawned(9, "host", 1), 137, 101.0), Exit(Spawned(8, "device", 1), 137, 101.0)]
    record = record_of(rows_of(slowed(1.0), 4), exits=exits)
    events = window_of(scenario_of(stop), record).events
    assert events.column("rank").to_pylist() == [1]
    assert events.column("message").to_pylist() == ["killed by signal 9"]
    assert window_of(scenario_of(stop, report_exits=False), record).events.num_rows == 0


def test_a_visible_fault_makes_the_window_fail_slow():
    scenario = scenario_of(DATASET)
    label = label_of(scenario, record_of(rows_of(slowed(1.5), 4), [acted_of(scenario)]))
    assert (label.failure_mode, label.straggler_type, label.pattern) == ("fail_slow", "input", "transient")
    [cause] = label.causes
    assert (cause.cause, cause.ranks, cause.nodes) == ("data_loader_stall", (2,), ("node-1",))
    assert (cause.first_step, cause.last_step) == (15, 30)
    assert label.model_extra is not None
    assert label.model_extra["impact"]["ratio"] == pytest.approx(1.5)
    assert "Real: 4 processes" in label.notes
    assert "stand-in" in label.notes.lower()


@pytest.mark.parametrize(("factor", "felt"), [(1.07, False), (1.09, True)])
def test_a_slowdown_below_eight_percent_is_healthy(factor, felt):
    scenario = scenario_of(DATASET)
    label = label_of(scenario, record_of(rows_of(slowed(factor), 4), [acted_of(scenario)]))
    assert label.model_extra is not None
    assert label.failure_mode == ("fail_slow" if felt else "healthy")
    assert label.model_extra["visible"] is felt
    assert label.model_extra["injected"][0]["cause"] == "data_loader_stall"


def test_the_cost_of_each_of_two_faults_is_that_of_its_own_steps():
    late = {"kind": "gc_pauses", "scope": "rank", "ranks": [0], "first_step": 25, "last_step": 37}
    scenario = scenario_of(DATASET, late)
    acted = [acted_of(scenario, 0), acted_of(scenario, 1)]
    seconds = np.full(40, 0.1)
    seconds[15:31] += 0.1
    seconds[25:38] += 0.03
    impacts = [impact_of(each, acted, seconds) for each in acted]
    assert impacts[0] is not None
    assert impacts[1] is not None
    assert (impacts[0].during, impacts[0].shared) == (pytest.approx(0.2), False)
    assert (impacts[1].during, impacts[1].shared) == (pytest.approx(0.13), False)


def test_faults_in_the_same_steps_share_their_impact():
    scenario = scenario_of(DATASET, DATASET | {"kind": "heavy_decoding"})
    acted = [acted_of(scenario, 0), acted_of(scenario, 1)]
    impact = impact_of(acted[0], acted, slowed(1.5))
    assert impact is not None
    assert impact.shared


def test_the_cost_of_a_periodic_fault_is_a_mean():
    every_sixth = {"kind": "checkpoint_stall", "scope": "job", "first_step": 15, "last_step": 30}
    scenario = scenario_of(every_sixth)
    seconds = np.full(40, 0.1)
    seconds[[17, 23, 29]] += 0.5
    impact = impact_of(acted_of(scenario), [acted_of(scenario)], seconds)
    assert impact is not None
    assert impact.during == pytest.approx(0.2)


def test_a_killed_rank_makes_the_window_fail_stop():
    scenario = scenario_of({"kind": "killed_rank", "scope": "rank", "ranks": [1], "first_step": 15})
    label = label_of(scenario, record_of(rows_of(slowed(1.0), 4), [acted_of(scenario)]))
    assert (label.failure_mode, label.straggler_type) == ("fail_stop", None)
    assert label.causes[0].ranks == (1,)


@pytest.mark.parametrize(
    ("first", "last", "pattern"),
    [(15, 30, "transient"), (15, None, "persistent"), (0, None, "persistent")],
)
def test_the_pattern_follows_from_when_it_ended(first, last, pattern):
    scenario = scenario_of(DATASET | {"first_step": first, "last_step": last})
    record = record_of(rows_of(slowed(1.5), 4), [acted_of(scenario)])
    assert label_of(scenario, record).pattern == pattern


def test_a_capture_without_faults_is_healthy():
    label = label_of(scenario_of(benign=["hiccup"]), record_of(rows_of(slowed(1.0), 4)))
    assert (label.failure_mode, label.causes) == ("healthy", ())
    assert "Done: nothing" in label.notes
