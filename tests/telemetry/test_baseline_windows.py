"""A window and an earlier one of its job as one window: nothing is lost, nothing is made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from telemetry_windows import START, job, metrics, rows_of, series_of, steps, window

from rca.errors import InvalidInput
from rca.sources.read import read_window
from rca.window import Window
from rca.window.baseline_window import after_earlier, refuse_incomparable
from rca.window.times.phases import PhaseArrays
from rca.window.times.step_clock import StepClock
from tests.for_each import for_each
from tests.shifted_windows import shifted

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
    for own, taken in ((40, 40), (8, 20)):
        both = after_earlier(make_window(2, own), shifted(make_window(2, 100), -HOUR))
        steps_of_both = PhaseArrays.from_window(both).steps
        assert steps_of_both.size == own + taken
        # The job is that of the steps that are left.
        begin = np.nanmin(PhaseArrays.from_window(both).start_time)
        assert begin - 1.1 < both.job.start <= begin
        assert steps_of_both[-own:].tolist() == list(range(own))


def test_steps_that_are_counted_anew_come_after_those_before(make_window) -> None:
    later = make_window(2, 30)
    both = after_earlier(later, shifted(make_window(2, 30), -HOUR))
    phases = PhaseArrays.from_window(both)
    assert phases.steps.tolist() == list(range(-30, 30))
    assert (np.diff(phases.start_time) > 0).all()
    # So do those that go on at once; others stay.
    at_once = replace(
        later, steps=later.steps.set_column(1, "step", [later.steps.column("step").to_numpy() + 29])
    )
    both = after_earlier(at_once, shifted(make_window(2, 30), -HOUR))
    assert PhaseArrays.from_window(both).steps.tolist() == list(range(-1, 59))
    column = later.steps.column("step").to_numpy() + 1000
    place = later.steps.column_names.index("step")
    gone_on = replace(later, steps=later.steps.set_column(place, "step", [column]))
    both = after_earlier(gone_on, shifted(make_window(2, 30), -HOUR))
    assert PhaseArrays.from_window(both).steps.tolist() == [*range(30), *range(1000, 1030)]


def test_only_what_both_have_is_compared() -> None:
    later = window(
        steps=steps(tokens=[1.0] * 4), metrics=metrics((1.0, "DCGM_FI_DEV_SM_CLOCK", 1400.0, None, 0))
    )
    earlier = shifted(
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


def clocked(*samples: tuple[float, str | None, int | None]) -> Window:
    """Samples of a clock as (time, node, rank), in this order; each has its time as its value."""
    return window(metrics=metrics(*((time, NAMES[1], time, node, rank) for time, node, rank in samples)))


def scraped(interval: float) -> Window:
    return clocked(*((time, None, 0) for time in np.arange(0.0, 10.0, interval)))


@for_each(
    ("own", "earlier", "kept"),
    [(1.0, 0.1, (10, 10)), (1.0, 1.0, (10, 10)), (1.5, 1.0, (7, 10)), (1.0, 4.0, (3, 3)), (4.0, 1.0, (3, 3))],
)
def test_both_have_samples_equally_often(own: float, earlier: float, kept: tuple[int, int]) -> None:
    """The interval of one is no pause after hours of the other's."""
    both = after_earlier(scraped(own), shifted(scraped(earlier), -HOUR))
    (held,) = series_of(both.metrics).values()
    assert (sum(time >= START for time, _ in held), sum(time < START for time, _ in held)) == kept
    # Samples are as they were.
    assert all((time - START) % HOUR == pytest.approx(value) for time, value in held)


def test_each_series_has_its_own_interval_in_whatever_order_its_rows_are() -> None:
    rng = np.random.default_rng(0)
    dense = [(float(time), node, None) for node in ("a", "b") for time in range(10)]
    rare = [(time, None, 0) for time in (0.0, 5.0)]
    once = [(1.0, None, 1)]
    earlier = [
        (float(time), node, rank)
        for node, rank in (("a", None), ("b", None), (None, 0), (None, 1))
        for time in np.arange(0.0, 10.0, 0.5 if node != "b" else 1.0)
    ]

    def shuffled(samples: list[tuple[float, str | None, int | None]]) -> Window:
        return clocked(*(samples[place] for place in rng.permutation(len(samples))))

    both = after_earlier(shuffled([*dense, *rare, *once]), shifted(shuffled(earlier), -HOUR))
    held = {
        (node, rank): sorted(round(time - START) for time, _ in samples)
        for (_, node, rank, _), samples in series_of(both.metrics).items()
    }
    assert {label: len(times) for label, times in held.items()} == {
        ("a", None): 10 + 10,
        ("b", None): 10 + 10,
        (None, 0): 2 + 2,
        (None, 1): 20 + 1,
    }
    # The last sample of each interval stays.
    assert [time + HOUR for time in held[None, 0][:2]] == [4, 10]


def test_numbers_that_leave_no_room_are_refused() -> None:
    column = [-(2**63), -(2**63) + 1] * 2
    with pytest.raises(InvalidInput, match="too far apart"):
        after_earlier(window(steps=steps(step=column)), shifted(window(), -HOUR))


@for_each(
    ("earlier", "message"),
    [
        (window(), "ends 10 s after the window begins"),
        (
            shifted(window(job=job(world_size=1), steps=steps().slice(0, 2)), -HOUR),
            "has 1 ranks, the window 2",
        ),
        (shifted(window(job=job(parallelism={"tensor": 2})), -HOUR), "other places"),
        (shifted(window(job=job(world_size=4)), -HOUR), "has 4 ranks, the window 2"),
        (shifted(window(job=job(parallelism={"pipeline": 2})), -HOUR), "other places"),
    ],
    ids=["overlaps", "smaller", "tensor", "larger", "pipeline"],
)
def test_what_cannot_be_compared_is_refused(earlier: Window, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        after_earlier(window(), earlier)


def test_one_window_may_follow_the_other_at_once() -> None:
    refuse_incomparable(window(), shifted(window(), -10.0))
