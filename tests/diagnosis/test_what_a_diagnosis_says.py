"""What a diagnosis says besides who and why: what it could not see, what to do, what it left out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import rca
from rca.diagnosis.advice import next_check, removals
from rca.diagnosis.planning import plan
from rca.diagnosis.result import Evidence
from rca.recovery.remedies import REMEDIES, REMEDY_OF
from rca.window.causes import CAUSES, SLOW_CAUSES
from tests.for_each import for_each

SPEAKS_FOR = Evidence(signal="sm_clock_mhz", value=900.0, reference=1700.0, unit="MHz", note="")


def test_what_was_not_measured_is_listed(make_window) -> None:
    missing = rca.diagnose(make_window()).missing_signals
    assert {"gpu_clock", "cpu_wait", "nic", "storage"} <= set(missing)
    assert "checkpoint_seconds" in missing
    assert "forward_seconds" not in missing
    assert "phases" not in missing


def test_step_times_alone_lack_the_phases(make_window) -> None:
    window = make_window(columns=("rank", "step", "start_time", "step_seconds"))
    assert {"phases", "forward_seconds", "communication_wait_seconds"} <= set(
        rca.diagnose(window).missing_signals
    )


def test_every_row_is_either_used_or_counted_as_unused(real_windows) -> None:
    window = rca.read_window(real_windows / "healthy")
    quality = rca.diagnose(window).quality
    assert quality.rows_used + quality.rows_unused == window.steps.num_rows
    assert quality.metric_samples_used + quality.metric_samples_unused == window.metrics.num_rows
    assert quality.warmup_steps == 1
    assert quality.steps_used == 65


def test_a_job_without_a_past_has_no_ratio_to_it(make_window) -> None:
    assert rca.diagnose(make_window(late={5: 0.05})).slowdown.versus_own_past is None


def test_a_slow_job_has_actions_with_their_gain(make_window) -> None:
    diagnosis = rca.diagnose(make_window(late={5: 0.05}, phase="data_loading_seconds"))
    first = diagnosis.actions[0]
    assert first.action in {"add_loader_workers", "call_storage_team"}
    assert first.expected_seconds_per_step_saved == pytest.approx(0.05, rel=0.15)
    assert first.interval is not None
    assert first.interval[0] <= first.expected_seconds_per_step_saved <= first.interval[1]


def test_gpu_hours_lost_are_the_ranks_times_the_time(make_window) -> None:
    slowdown = rca.diagnose(make_window(late={5: 0.05})).slowdown
    assert slowdown.gpu_hours_lost == pytest.approx(slowdown.seconds_per_step * 40 * 8 / 3600)


def test_every_slow_cause_has_an_action_a_meaning_and_a_check(make_window) -> None:
    cause = rca.diagnose(make_window(late={5: 0.05}, phase="data_loading_seconds")).causes[0]
    for name in SLOW_CAUSES:
        given = cause.model_copy(update={"cause": name, "probability": 0.9, "evidence": [SPEAKS_FOR]})
        (removal,) = removals([given], {}).removals
        assert (removal.cause, removal.ranks) == (name, given.ranks)
        assert next_check("fail_slow", True, [given], []) == CAUSES[name].next_check


@for_each("name", ["gpu_throttling", "gpu_memory_errors", "nic_degradation"])
@for_each("evidence", [[], [SPEAKS_FOR.model_copy(update={"signal": "forward_seconds"})]])
def test_no_machine_is_taken_out_of_service_on_times_alone(make_window, name: str, evidence) -> None:
    diagnosis = rca.diagnose(make_window(late={5: 0.05}, phase="data_loading_seconds"))
    given = diagnosis.causes[0].model_copy(update={"cause": name, "probability": 0.99, "evidence": evidence})
    given = diagnosis.model_copy(update={"causes": [given], "recovery": removals([given], {})})
    found = plan(given)
    assert not {"drain_node", "replace_gpu"} & {each.action for each in found.options}
    assert any("no exporter signal" in each.reason for each in found.rejected)


def test_the_next_check_asks_for_what_is_missing() -> None:
    assert "schedstat" in next_check("fail_slow", False, [], ["cpu_wait"])
    assert "longer window" in next_check("healthy", False, [], [])
    assert "nothing to do" in next_check("healthy", True, [], ["cpu_wait"])


@for_each(("n_ranks", "n_steps"), [(1, 1), (1, 30), (2, 1), (2, 2), (8, 3)])
def test_the_smallest_windows_get_an_answer(make_window, n_ranks: int, n_steps: int) -> None:
    diagnosis = rca.diagnose(make_window(n_ranks, n_steps))
    assert diagnosis.stragglers == []
    assert diagnosis.slowdown.ratio >= 1.0 - 1e-9


def test_a_named_cause_shows_its_phase_in_seconds_with_the_peers_value(make_window) -> None:
    diagnosis = rca.diagnose(make_window(late={5: 0.05}, phase="data_loading_seconds"))
    shown = {evidence.signal: evidence for evidence in diagnosis.causes[0].evidence}
    loading = shown["data_loading_seconds"]
    assert loading.unit == "s"
    assert loading.value == pytest.approx(0.0506, rel=0.05)
    assert loading.reference == pytest.approx(0.0006, abs=3e-4)


def test_a_longer_lateness_costs_more(make_window) -> None:
    costs = [
        rca.diagnose(make_window(late={5: seconds})).slowdown.seconds_per_step
        for seconds in (0.0, 0.01, 0.02, 0.05, 0.1)
    ]
    assert costs == sorted(costs)
    assert costs[-1] - costs[0] == pytest.approx(0.1, rel=0.05)


def test_every_cause_of_the_catalogue_has_an_action_with_an_instruction() -> None:
    assert set(REMEDY_OF) == set(CAUSES)
    assert sum(len(remedy.causes) for remedy in REMEDIES) == len(CAUSES)
    assert all(remedy.instruction and remedy.risk for remedy in REMEDIES)


def test_without_one_finished_step_health_is_not_certain(make_window) -> None:
    """No step has a length, so nothing says that the job is as fast as it should be."""
    window = make_window(late={5: 0.05})
    column = window.steps.column_names.index("step_seconds")
    steps = window.steps.set_column(column, "step_seconds", pa.array(np.full(window.steps.num_rows, np.nan)))
    diagnosis = rca.diagnose(rca.Window.from_tables(window.job, steps))
    assert diagnosis.abstained or diagnosis.failure_mode == "fail_stop"
    slowdown = diagnosis.slowdown
    assert (slowdown.ratio > 1.001) == (slowdown.seconds_per_step > 1e-4)


def of_ranks(window: rca.Window, kept: set[int]) -> rca.Window:
    rows = pc.is_in(window.steps["rank"], value_set=pa.array(sorted(kept), pa.int32()))
    return rca.Window.from_tables(window.job, window.steps.filter(rows))


def test_ranks_that_reported_nothing_are_noted(make_window) -> None:
    diagnosis = rca.diagnose(of_ranks(make_window(), set(range(8)) - {3, 5}))
    assert "2 of 8 ranks reported no step: ranks 3, 5" in diagnosis.quality.notes


def test_the_health_of_a_job_is_not_certain_from_one_of_its_ranks(make_window) -> None:
    diagnosis = rca.diagnose(of_ranks(make_window(), {0}))
    assert (diagnosis.failure_mode, diagnosis.abstained) == ("healthy", True)


def test_a_stopped_job_whose_rank_is_absent_asks_for_that_rank() -> None:
    wanted = next_check("fail_stop", True, [], ["gpu_clock"], silent=[4])
    assert "rank 4" in wanted


@pytest.mark.parametrize(("n_ranks", "n_steps"), [(1, 1), (2, 1), (8, 3)])
def test_a_blink_is_neither_healthy_nor_slow(make_window, n_ranks: int, n_steps: int) -> None:
    window = make_window(n_ranks, n_steps, late={0: 0.05}, ranks_per_node=1)
    diagnosis = rca.diagnose(window)
    assert (diagnosis.failure_mode, diagnosis.abstained, diagnosis.causes) == ("healthy", True, [])


def test_step_times_alone_name_no_rank_and_no_certain_health(make_window) -> None:
    columns = ("rank", "step", "start_time", "step_seconds")
    for late in ({}, {5: 0.05}):
        diagnosis = rca.diagnose(make_window(late=late, columns=columns, steps=slice(20, 35)))
        assert all(straggler.scope == "job" for straggler in diagnosis.stragglers)
        assert diagnosis.abstained or diagnosis.failure_mode == "fail_slow"


def test_a_cause_is_never_likelier_than_its_ranks_are_stragglers(real_windows) -> None:
    for name in ("cpu-contention-node", "nic-rate-limited", "slow-dataset"):
        diagnosis = rca.diagnose(rca.read_window(real_windows / name))
        assert diagnosis.causes
        faulty = {tuple(group.ranks): group.probability for group in diagnosis.stragglers}
        assert all(cause.probability <= faulty[tuple(cause.ranks)] + 1e-12 for cause in diagnosis.causes)


def test_a_whole_job_has_no_single_nodes_cause(real_windows) -> None:
    """Without node names the node of the link is unknown."""
    window = rca.read_window(real_windows / "nic-rate-limited")
    nowhere = window.job.model_copy(update={"ranks": None})
    diagnosis = rca.diagnose(rca.Window.from_tables(nowhere, window.steps, window.metrics))
    for cause in diagnosis.causes:
        assert cause.cause != "nic_degradation" or len(cause.ranks) < 8


@pytest.mark.parametrize(
    ("suspected", "wanted"), [("communication", "network"), ("input", "storage"), ("host", "CPU")]
)
def test_the_deciding_signal_is_collected_first(suspected: str, wanted: str) -> None:
    missing = ["gpu_clock", "cpu_wait", "nic", "storage"]
    assert f"collect {wanted}" in next_check("healthy", False, [], missing, suspected=suspected)


def test_events_are_counted(make_window) -> None:
    window = make_window()
    events = pa.table(
        {
            "time": [window.job.start + 1.0] * 2,
            "node": pa.nulls(2, pa.string()),
            "rank": pa.array([0, None], pa.int32()),
            "kind": ["xid", "coffee"],
            "code": ["94", None],
            "message": ["contained", "break"],
        }
    )
    quality = rca.diagnose(rca.Window.from_tables(window.job, window.steps, None, events)).quality
    assert (quality.events_used, quality.events_unused) == (1, 1)


def test_gains_are_corrected_once(make_window) -> None:
    """A plan for an answer does not repeat the corrections that the answer includes."""
    window = make_window(late={5: 0.05}, phase="data_loading_seconds")
    plain = rca.diagnose(window)
    names = {each.action for each in plain.actions}
    site = rca.Site(corrections=dict.fromkeys(names, 0.5))
    halved = rca.diagnose(window, site=site)
    saved = {each.action: each.expected_seconds_per_step_saved for each in plain.actions}
    assert saved
    half = {name: pytest.approx(seconds / 2) for name, seconds in saved.items() if seconds is not None}

    def gains(found) -> dict[str, float]:
        return {each.action: each.seconds_per_step_saved for each in found.options if each.action in half}

    assert {each.action: each.expected_seconds_per_step_saved for each in halved.actions} == half
    assert gains(plan(halved, site=site)) == half
    assert gains(plan(plain, site=site)) == half
    assert gains(plan(halved)) == {name: pytest.approx(saved[name]) for name in half}
