"""A window and an earlier one of its job as one window: nothing is lost, nothing is made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from telemetry_windows import START, job, metrics, rows_of, series_of, steps, window

from benchmarks.earlier import moved
from rca.errors import InvalidInput
from rca.telemetry import Window, read_window
from rca.telemetry.earlier import ENOUGH_STEPS, after_earlier, refuse_incomparable
from rca.telemetry.phases import PhaseArrays
from rca.telemetry.step_clock import StepClock

HOUR = 3600.0
NAMES = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE")


@pytest.mark.parametrize("name", ["cpu-contention-node", "healthy", "slow-dataset"])
def test_a_window_cut_in_two_and_joined_is_what_it_was(name: str, real_windows: Path) -> None:
    whole = read_window(real_windows / name)
    clock = StepClock.of(whole)
    middle = int(clock.steps[clock.steps.size // 2])
    parts = clock.between(clock.first, middle), clock.between(middle, int(clock.steps[-1]) + 1)
    both = after_earlier(parts[1], parts[0])
    assert sorted(rows_of(both.steps)) == sorted(rows_of(whole.steps))
    assert series_of(both.metrics) == series_of(whole.metrics)
    assert both.job == whole.job
    # What happened in the earlier part belongs to it.
    assert both.events == parts[1].events


def test_the_last_steps_are_taken_as_many_as_the_window_has_and_a_few_at_least(make_window) -> None:
    for own, taken in ((40, 40), (8, ENOUGH_STEPS)):
        both = after_earlier(make_window(2, own), moved(make_window(2, 100), -HOUR))
        steps_of_both = PhaseArrays.from_window(both).steps
        assert steps_of_both.size == own + taken
        assert steps_of_both[-own:].tolist() == list(range(own))


def test_steps_that_are_counted_anew_come_after_those_before(make_window) -> None:
    later = make_window(2, 30)
    both = after_earlier(later, moved(make_window(2, 30), -HOUR))
    phases = PhaseArrays.from_window(both)
    assert phases.steps.tolist() == list(range(-30, 30))
    assert (np.diff(phases.start_time) > 0).all()
    # Numbers that go on stay.
    column = later.steps.column("step").to_numpy() + 1000
    place = later.steps.column_names.index("step")
    gone_on = replace(later, steps=later.steps.set_column(place, "step", [column]))
    both = after_earlier(gone_on, moved(make_window(2, 30), -HOUR))
    assert PhaseArrays.from_window(both).steps.tolist() == [*range(30), *range(1000, 1030)]


def test_only_what_both_have_is_compared() -> None:
    later = window(
        steps=steps(tokens=[1.0] * 4), metrics=metrics((1.0, "DCGM_FI_DEV_SM_CLOCK", 1400.0, None, 0))
    )
    earlier = moved(
        window(
            steps=steps(backward_seconds=[0.5] * 4),
            metrics=metrics(
                (1.0, "DCGM_FI_DEV_SM_CLOCK", 1500.0, None, 0),
                (1.0, "DCGM_FI_DEV_GPU_TEMP", 80.0, None, 0),
            ),
        ),
        -HOUR,
    )
    both = after_earlier(later, earlier)
    assert both.steps.column_names == later.steps.column_names
    tokens = PhaseArrays.from_window(both).load["tokens"]
    assert np.isnan(tokens[:, :2]).all()
    assert (tokens[:, 2:] == 1.0).all()
    assert both.steps.column("tokens").null_count == 0
    assert [value for ((name, *_), held) in series_of(both.metrics).items() for _, value in held] == [
        1500,
        1400,
    ]
    assert {name for name, *_ in series_of(both.metrics)} == {"DCGM_FI_DEV_SM_CLOCK"}
    # A window without metrics has nothing to compare them with.
    assert not after_earlier(window(), earlier).metrics.num_rows


@pytest.mark.parametrize(("seconds", "kept"), [(0.1, 10), (1.0, 10), (4.0, 3)])
def test_samples_come_as_often_as_the_windows_own(seconds: float, kept: int) -> None:
    """A scrape interval is no pause beside hours of denser samples."""

    def sampled(interval: float) -> Window:
        times = np.arange(0.0, 10.0, interval)
        return window(metrics=metrics(*((time, "DCGM_FI_DEV_SM_CLOCK", time, None, 0) for time in times)))

    both = after_earlier(sampled(1.0), moved(sampled(seconds), -HOUR))
    (held,) = series_of(both.metrics).values()
    assert len(held) - 10 == kept
    # The last sample of each interval, as it was.
    assert all(time + HOUR == pytest.approx(value + START) for time, value in held[:kept])


def test_each_series_has_its_own_interval() -> None:
    rare = [(time, "DCGM_FI_DEV_GPU_TEMP", 40.0, None, 0) for time in (0.0, 5.0)]
    dense = [(time, "DCGM_FI_DEV_SM_CLOCK", 1400.0, None, rank) for rank in (0, 1) for time in range(10)]
    only_once = [(1.0, "DCGM_FI_DEV_POWER_USAGE", 400.0, None, 0)]
    earlier = [(time, name, 1.0, None, 0) for name in NAMES for time in np.arange(0.0, 10.0, 0.5)]
    both = after_earlier(
        window(metrics=metrics(*rare, *dense, *only_once)), moved(window(metrics=metrics(*earlier)), -HOUR)
    )
    held = {name: len(samples) for (name, _, rank, _), samples in series_of(both.metrics).items() if not rank}
    assert held == {NAMES[0]: 2 + 2, NAMES[1]: 10 + 10, NAMES[2]: 20 + 1}


def test_numbers_that_leave_no_room_are_refused() -> None:
    column = [-(2**63), -(2**63) + 1] * 2
    with pytest.raises(InvalidInput, match="too far apart"):
        after_earlier(window(steps=steps(step=column)), moved(window(), -HOUR))


@pytest.mark.parametrize(
    ("earlier", "said"),
    [
        (window(), "ends 10 s after the window begins"),
        (moved(window(job=job(world_size=4)), -HOUR), "has 4 ranks, the window 2"),
        (moved(window(job=job(parallelism={"pipeline": 2})), -HOUR), "other places"),
    ],
    ids=["overlaps", "size", "parallelism"],
)
def test_what_cannot_be_compared_is_refused(earlier: Window, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        after_earlier(window(), earlier)


def test_one_window_may_follow_the_other_at_once() -> None:
    refuse_incomparable(window(), moved(window(), -10.0))
