"""Domain randomisation: what is observed of a job differs as much as between real clusters."""

from __future__ import annotations

from collections import Counter

import numpy as np

from rca.simulation import sample_scenario

DRAWN = [sample_scenario(np.random.default_rng([9, index])) for index in range(300)]
TOLD = [each.telemetry for each in DRAWN]


def share(held: list[bool]) -> float:
    return sum(held) / len(held)


def test_sampling_rates_span_orders_of_magnitude():
    intervals = np.array([each.interval_seconds for each in TOLD])
    assert np.quantile(intervals, 0.95) > 20 * np.quantile(intervals, 0.05)
    assert 0.03 < share([each.hold_seconds > 0 for each in TOLD]) < 0.5


def test_exporters_metrics_and_series_are_missing_here_and_there():
    assert len({each.exporters for each in TOLD}) > 50
    assert 0.01 < share([not each.exporters for each in TOLD]) < 0.3
    for name in ("missing_metrics", "missing_series", "gap_probability"):
        held = [getattr(each, name) for each in TOLD]
        assert min(held) == 0
        assert len(set(held)) > 100


def test_phases_are_told_whole_in_part_and_not_at_all():
    seen = Counter(each.visibility for each in TOLD)
    assert seen["full"] > seen["unsplit"] > 0
    assert seen["minimal"] > 0
    assert share([bool(each.missing_phases) for each in TOLD]) > 0.05
    assert share([bool(each.ranks_without_phases) for each in TOLD]) > 0.01


def test_trainers_time_their_exchange_in_every_place():
    clusters = [each for each in DRAWN if each.dialect != "cpu_testbed" and each.parallelism.pipeline == 1]
    places = Counter(each.telemetry.booking.exchange_in for each in clusters)
    assert 0.05 < places["backward"] / len(clusters) < 0.2
    assert 0.05 < places["layers"] / len(clusters) < 0.25
    assert not any(
        each.telemetry.booking.exchange_in == "layers" for each in DRAWN if each.parallelism.pipeline > 1
    )


def test_jobs_are_small_and_large():
    sizes = np.array([each.world_size for each in DRAWN])
    assert sizes.min() <= 4
    assert sizes.max() >= 512
    clocks = [each.clock_skew_seconds for each in TOLD]
    assert min(clocks) == 0
    assert max(clocks) > 0.1
