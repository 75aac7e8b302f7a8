"""Domain randomisation: what is observed of a job differs as much as between real clusters."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rca.lab.simulation import SimulationScenario, Telemetry, sample_scenario, sampling
from rca.window.causes import STOP_CAUSES


@pytest.fixture(scope="module")
def drawn() -> list[SimulationScenario]:
    return [sample_scenario(np.random.default_rng([9, index])) for index in range(300)]


@pytest.fixture(scope="module")
def telemetry(drawn: list[SimulationScenario]) -> list[Telemetry]:
    return [each.telemetry for each in drawn]


def share(held: list[bool]) -> float:
    return sum(held) / len(held)


@pytest.mark.system
def test_sampling_rates_span_orders_of_magnitude(telemetry: list[Telemetry]) -> None:
    intervals = np.array([each.interval_seconds for each in telemetry])
    assert np.quantile(intervals, 0.95) > 20 * np.quantile(intervals, 0.05)
    assert 0.03 < share([each.hold_seconds > 0 for each in telemetry]) < 0.5


def test_exporters_metrics_and_series_are_missing_here_and_there(telemetry: list[Telemetry]) -> None:
    assert len({each.exporters for each in telemetry}) > 50
    assert 0.01 < share([not each.exporters for each in telemetry]) < 0.3
    for name in ("missing_metrics", "missing_series", "gap_probability"):
        held = [getattr(each, name) for each in telemetry]
        assert min(held) == 0
        assert len(set(held)) > 100


def test_phases_are_complete_or_partial_or_missing(telemetry: list[Telemetry]) -> None:
    seen = Counter(each.visibility for each in telemetry)
    assert seen["full"] > seen["unsplit"] > 0
    assert seen["minimal"] > 0
    assert share([bool(each.missing_phases) for each in telemetry]) > 0.05
    assert share([bool(each.ranks_without_phases) for each in telemetry]) > 0.01


def test_trainers_time_their_exchange_in_every_place(drawn: list[SimulationScenario]) -> None:
    clusters = [each for each in drawn if each.dialect != "cpu_testbed" and each.parallelism.pipeline == 1]
    places = Counter(each.telemetry.phase_accounting.exchange_in for each in clusters)
    assert 0.05 < places["backward"] / len(clusters) < 0.2
    assert 0.05 < places["layers"] / len(clusters) < 0.25
    assert 0.02 < places["optimizer"] / len(clusters) < 0.15
    assert not any(
        each.telemetry.phase_accounting.exchange_in == "layers"
        for each in drawn
        if each.parallelism.pipeline > 1
    )


def test_pipelines_time_bubbles_as_waiting_as_work_or_not_at_all(drawn: list[SimulationScenario]) -> None:
    piped = [each for each in drawn if each.dialect != "cpu_testbed" and each.parallelism.pipeline > 1]
    places = Counter(each.telemetry.phase_accounting.bubbles_in for each in piped)
    assert places["waiting"] > places["nowhere"] > 0
    assert places["backward"] > 0
    # Jobs without a timer for the exchange have none for bubbles.
    assert all(
        each.telemetry.phase_accounting.bubbles_in != "waiting"
        for each in piped
        if each.telemetry.phase_accounting.exchange_in != "own phase"
    )


def test_inputs_are_timed_by_themselves_or_within_another_phase(drawn: list[SimulationScenario]) -> None:
    clusters = [each.telemetry.phase_accounting for each in drawn if each.dialect != "cpu_testbed"]
    copied = Counter(each.copy_in for each in clusters)
    assert 0.4 < copied["own phase"] / len(clusters) < 0.7
    assert min(copied["data loading"], copied["forward"]) / len(clusters) > 0.1
    fetched = [each for each in clusters if each.loading_in == "forward"]
    assert 0.02 < len(fetched) / len(clusters) < 0.2
    assert all(each.copy_in == "forward" for each in fetched)


def test_not_every_rank_has_every_timer(drawn: list[SimulationScenario]) -> None:
    partly = [each for each in drawn if each.telemetry.partly_timed]
    assert 0.01 < len(partly) / len(drawn) < 0.15
    for each in partly:
        # One of each node are all of them where nodes have one.
        timing, all_ranks = set(each.telemetry.timing_ranks), set(range(each.world_size))
        assert timing <= all_ranks
        assert timing < all_ranks or each.ranks_per_node == 1


@pytest.mark.long
def test_the_number_of_steps_does_not_reveal_which_job_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of stopped jobs are longer, as if they had gone on: their rows are not fewer than others'."""
    # Slow jobs are no part of this: their cost need not be simulated.
    monkeypatch.setattr(sampling, "slowdown", lambda *_: 2.0)
    drawn = [sample_scenario(np.random.default_rng([10, index])) for index in range(1500)]
    stopped = [each for each in drawn if each.faults and each.faults[0].cause in STOP_CAUSES]
    done = np.array([each.faults[0].first_step for each in stopped])
    others = np.array([each.n_steps for each in drawn if not each.faults])
    assert 0.6 < np.median(done) / np.median(others) < 1.5
    assert np.mean(done < 24) < np.mean(others < 24) + 0.1


def test_jobs_are_small_and_large(drawn: list[SimulationScenario], telemetry: list[Telemetry]) -> None:
    sizes = np.array([each.world_size for each in drawn])
    assert sizes.min() <= 4
    assert sizes.max() >= 512
    clocks = [each.clock_skew_seconds for each in telemetry]
    assert min(clocks) == 0
    assert max(clocks) > 0.1
