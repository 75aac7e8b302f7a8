"""From irregular samples to bins: what is known, what is not, and nothing in between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.window.signals.binning import bin_codes, bin_means, increments

NAN = float("nan")


def floats(values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def gauge(time: list[float], value: list[float], edges: list[float]) -> list[float]:
    return _binned(time, value, edges, counter=False)


def rate(time: list[float], value: list[float], edges: list[float]) -> list[float]:
    return _binned(time, value, edges, counter=True)


def _binned(time: list[float], value: list[float], edges: list[float], *, counter: bool) -> list[float]:
    offsets = np.array([0, len(time)])
    found = bin_means(*map(floats, (time, value)), offsets, np.array([counter]), floats(edges))
    return found[0].tolist()


def codes(time: list[float], value: list[float], edges: list[float]) -> list[float]:
    offsets = np.array([0, len(time)])
    found = bin_codes(*map(floats, (time, value)), offsets, floats(edges))
    return found[0].tolist()


def test_a_counter_grows_by_its_differences() -> None:
    assert increments(np.array([5.0, 7.0, 7.0, 12.0])).tolist() == [2, 0, 5]


def test_a_fall_is_a_restart_from_zero() -> None:
    assert increments(np.array([10.0, 12.0, 3.0, 5.0])).tolist() == [2, 3, 2]


def test_a_small_step_back_is_no_restart() -> None:
    assert increments(np.array([1000.0, 999.5, 1001.0])).tolist() == [0, 1.5]


def test_a_counter_that_fell_and_rests_has_ended() -> None:
    # The sum over a process's threads falls to what the last one had when the others end.
    assert increments(np.array([4.4, 4.5, 1.2, 1.2])).tolist() == pytest.approx([0.1, 0, 0])


def test_a_gauge_is_linear_between_samples() -> None:
    assert gauge([0, 2, 4], [0, 4, 4], [0, 1, 2, 4]) == pytest.approx([1, 3, 4])


def test_a_counter_gives_its_rate() -> None:
    assert rate([0, 2, 4], [0, 4, 5], [0, 1, 3, 4]) == pytest.approx([2, 1.25, 0.5])


def test_a_restart_does_not_give_a_negative_rate() -> None:
    assert rate([0, 1, 2, 3], [10, 12, 3, 5], [0, 1, 2, 3]) == pytest.approx([2, 3, 2])


def test_a_bin_inside_one_interval_takes_part_of_it() -> None:
    assert gauge([0, 10], [0, 10], [4, 6]) == pytest.approx([5])
    assert rate([0, 10], [0, 30], [4, 4.5]) == pytest.approx([3])


def test_a_series_speaks_for_one_interval_beyond_its_ends() -> None:
    found = gauge([10, 11, 12], [1, 2, 3], [8, 9, 10, 12, 13, 14])
    assert found == pytest.approx([NAN, 1, 2, 3, NAN], nan_ok=True)
    found = rate([10, 11, 12], [0, 2, 6], [8, 9, 10, 12, 13, 14])
    assert found == pytest.approx([NAN, 2, 3, 4, NAN], nan_ok=True)


def test_a_long_pause_is_not_bridged() -> None:
    time, value = [0, 1, 2, 3, 20, 21, 22], [1, 1, 1, 1, 9, 9, 9]
    assert gauge(time, value, [0, 4, 5, 15, 20, 22]) == pytest.approx([1, NAN, NAN, NAN, 9], nan_ok=True)


def test_a_pause_of_five_intervals_is_bridged() -> None:
    assert gauge([0, 1, 2, 7], [0, 0, 0, 10], [2, 7]) == pytest.approx([5])


def test_a_bin_is_averaged_over_what_is_known_of_it() -> None:
    assert rate([0, 1, 2, 30, 31], [0, 1, 2, 90, 92], [0, 31]) == pytest.approx([4 / 3])


def test_one_sample_speaks_for_its_bin_only() -> None:
    assert gauge([5], [7], [0, 4, 6, 8]) == pytest.approx([NAN, 7, NAN], nan_ok=True)
    assert np.isnan(rate([5], [7], [0, 4, 6, 8])).all()


def test_a_sample_between_two_pauses_is_not_lost() -> None:
    found = gauge([0, 1, 2, 50, 100, 101], [1, 1, 1, 5, 1, 1], [0, 3, 40, 60, 100, 101])
    assert found == pytest.approx([1, NAN, 5, NAN, 1], nan_ok=True)


def test_samples_at_one_moment_do_no_harm() -> None:
    assert gauge([0, 0, 1, 1, 2], [1, 1, 1, 1, 1], [0, 2]) == pytest.approx([1])
    assert rate([0, 1, 1, 2], [0, 2, 2, 4], [0, 1, 2]) == pytest.approx([2, 2])


def test_digits_survive_unix_time_and_large_counters() -> None:
    start = 1.7e9
    time = [start + 0.001 * i for i in range(5)]
    assert rate(time, [1e15 + i for i in range(5)], [start, start + 0.004]) == pytest.approx([1000], rel=1e-3)


def test_the_largest_code_counts_and_is_held() -> None:
    found = codes([0, 1, 2, 3], [0x4, 0x40, 0, 0], [0, 2, 2.5, 3.5, 9, 10])
    assert found == pytest.approx([0x40, 0, 0, 0, NAN], nan_ok=True)


def test_the_code_before_a_bin_still_shows_in_it() -> None:
    assert codes([0, 1, 2], [8, 0, 0], [0.5, 0.9, 1.5]) == [8, 8]


def test_codes_are_not_held_over_a_pause() -> None:
    found = codes([0, 1, 2, 60, 61], [8, 8, 8, 0, 0], [0, 2.5, 10, 50, 61])
    assert found == pytest.approx([8, 8, NAN, 0], nan_ok=True)


def test_state_codes_are_not_averaged() -> None:
    assert codes([0, 1, 2], [0, 79, 0], [0, 2]) == [79]


def test_nonsense_codes_do_not_overflow() -> None:
    assert codes([0, 1], [-3, 1e300], [0, 2]) == [2.0**53]


@st.composite
def many_series(draw: st.DrawFn) -> tuple[list[np.ndarray], list[np.ndarray], list[bool], np.ndarray]:
    n_series = draw(st.integers(1, 6))
    gaps = st.floats(0.001, 30)
    times = [np.cumsum(draw(st.lists(gaps, min_size=1, max_size=30))) for _ in range(n_series)]
    values = [
        np.array(draw(st.lists(st.floats(0, 1e6), min_size=time.size, max_size=time.size))) for time in times
    ]
    counter = draw(st.lists(st.booleans(), min_size=n_series, max_size=n_series))
    edges = np.cumsum(
        [draw(st.floats(-5, 100)), *draw(st.lists(st.floats(0.01, 50), min_size=1, max_size=8))]
    )
    return times, values, counter, edges


@given(many_series())
def test_series_do_not_touch_one_another(
    drawn: tuple[list[np.ndarray], list[np.ndarray], list[bool], np.ndarray],
) -> None:
    times, values, counter, edges = drawn
    offsets = np.concatenate([[0], np.cumsum([time.size for time in times])])
    together = bin_means(np.concatenate(times), np.concatenate(values), offsets, np.array(counter), edges)
    for row, (time, value, kind) in enumerate(zip(times, values, counter, strict=True)):
        alone = bin_means(time, value, np.array([0, time.size]), np.array([kind]), edges)
        np.testing.assert_array_equal(together[row], alone[0])


@given(many_series())
def test_means_stay_within_what_was_sampled(
    drawn: tuple[list[np.ndarray], list[np.ndarray], list[bool], np.ndarray],
) -> None:
    times, values, _, edges = drawn
    for time, value in zip(times, values, strict=True):
        found = bin_means(time, value, np.array([0, time.size]), np.array([False]), edges)[0]
        known = found[np.isfinite(found)]
        slack = 1e-6 * (1 + value.max())
        assert (known >= value.min() - slack).all()
        assert (known <= value.max() + slack).all()


@given(many_series())
def test_rates_over_bins_add_up_to_the_increase(
    drawn: tuple[list[np.ndarray], list[np.ndarray], list[bool], np.ndarray],
) -> None:
    _, values, _, _ = drawn
    for value in values:
        time = np.arange(value.size, dtype=np.float64)
        edges = np.linspace(0, max(1, value.size - 1), 8)
        found = bin_means(time, value, np.array([0, value.size]), np.array([True]), edges)[0]
        if value.size > 1:
            total = increments(value).sum()
            assert (found * np.diff(edges)).sum() == pytest.approx(total, rel=1e-9, abs=1e-6)
