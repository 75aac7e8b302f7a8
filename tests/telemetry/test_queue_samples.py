"""A queue that is full in a single sample is not a lasting queue."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from telemetry_windows import metrics, window

from rca.window.signals.series import CHANCE, SeriesSet, without_queue_spikes


def cut(*values: float) -> list[float]:
    offsets = np.array([0, len(values)])
    return without_queue_spikes(np.array(values, float), offsets, np.array([True])).tolist()


def test_a_message_that_passes_leaves_no_trace() -> None:
    assert cut(*[0.0] * 6, 4e5, *[0.0] * 7) == [0.0] * 14


@pytest.mark.parametrize(
    "samples", [range(8, 14), range(4, 8), range(1, 14, 2)], ids=["long", "a row", "often"]
)
def test_a_lasting_queue_is_kept(samples) -> None:
    standing = [5000.0 if number in samples else 0.0 for number in range(14)]
    assert cut(*standing) == standing


def test_a_row_does_not_go_on_in_the_next_series() -> None:
    value = np.array([0, 0, 0, 0, 9, 9, 9, 9, 9, 0, 0, 0, 0, 0], float)
    found = without_queue_spikes(value, np.array([0, 7, 14]), np.array([True, True]))
    assert found.tolist() == [0.0] * 14


@pytest.mark.parametrize(("values", "expected"), [((7.0,), [7.0]), ((7.0, 9.0), [7.0, 7.0])])
def test_few_samples_keep_what_all_of_them_show(values, expected) -> None:
    assert cut(*values) == expected


def test_series_are_cut_one_by_one_and_steady_ones_not_at_all() -> None:
    value = np.array([0, 0, 0, 9, 5, 5, 5, 9, 0, 0, 0, 9], float)
    found = without_queue_spikes(value, np.array([0, 4, 8, 12]), np.array([True, True, False]))
    assert found.tolist() == [0, 0, 0, 0, 5, 5, 5, 5, 0, 0, 0, 9]


def test_without_momentary_series_nothing_is_copied() -> None:
    value = np.array([1.0, 2.0])
    assert without_queue_spikes(value, np.array([0, 2]), np.array([False])) is value


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=60))
def test_only_the_highest_are_cut_and_only_to_the_next(values: list[float]) -> None:
    found = cut(*values)
    lowered = [new < old for new, old in zip(found, values, strict=True)]
    assert sum(lowered) <= np.ceil(CHANCE * len(values))
    assert max(found) in values
    assert len({new for new, low in zip(found, lowered, strict=True) if low}) <= 1


def test_the_windows_queues_are_momentary_and_its_counters_are_not() -> None:
    samples = [(t, name, 1e5 if t == 5 else 0.0, "a") for t in range(10) for name in NAMES]
    found = SeriesSet.from_window(window(metrics=metrics(*samples)))
    highest = {
        found.signals[signal].channel: found.value[begin:end].max()
        for signal, begin, end in zip(found.signal, found.offsets[:-1], found.offsets[1:], strict=True)
    }
    assert highest == {"qdisc_backlog": 0.0, "tcp_send_queue": 0.0, "tcp_rtt": 1e5}


NAMES = ("node_qdisc_backlog", "node_tcp_send_queue_bytes", "node_tcp_rtt_seconds")
