"""What a diagnosis says besides who and why: what it could not see, what to do, what it left out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import rca
from rca.diagnosis.advice import actions, next_check
from rca.telemetry.causes import CAUSES, SLOW_CAUSES


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


def test_a_slow_job_is_told_what_to_do_at_what_gain(make_window) -> None:
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
        given = cause.model_copy(update={"cause": name, "probability": 0.9})
        (action,) = actions([given], {})
        assert action.action
        assert next_check("fail_slow", True, [given], []) == CAUSES[name].next_check


def test_the_next_check_asks_for_what_is_missing() -> None:
    assert "schedstat" in next_check("fail_slow", False, [], ["cpu_wait"])
    assert "longer window" in next_check("healthy", False, [], [])
    assert "nothing to do" in next_check("healthy", True, [], ["cpu_wait"])


@pytest.mark.parametrize(("n_ranks", "n_steps"), [(1, 1), (1, 30), (2, 1), (2, 2), (8, 3)])
def test_the_smallest_windows_get_an_answer(make_window, n_ranks: int, n_steps: int) -> None:
    diagnosis = rca.diagnose(make_window(n_ranks, n_steps))
    assert diagnosis.stragglers == []
    assert diagnosis.slowdown.ratio >= 1.0 - 1e-9


def test_a_named_cause_shows_its_phase_in_seconds_beside_the_peers(make_window) -> None:
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
    from rca.diagnosis.advice import _ACTIONS, _INSTRUCTIONS
    from rca.telemetry.causes import CAUSES

    assert set(_ACTIONS) == set(CAUSES)
    assert set(_INSTRUCTIONS) == set(_ACTIONS.values())


def test_without_one_finished_step_health_is_not_certain(make_window) -> None:
    """No step has a length, so nothing says that the job is as fast as it should be."""
    window = make_window(late={5: 0.05})
    column = window.steps.column_names.index("step_seconds")
    steps = window.steps.set_column(column, "step_seconds", pa.array(np.full(window.steps.num_rows, np.nan)))
    diagnosis = rca.diagnose(rca.Window.from_tables(window.job, steps))
    assert diagnosis.abstained or diagnosis.failure_mode == "fail_stop"
    slowdown = diagnosis.slowdown
    assert (slowdown.ratio > 1.001) == (slowdown.seconds_per_step > 1e-4)
