"""Samples of the metrics table as series."""

from __future__ import annotations

import numpy as np
import pytest
from telemetry_windows import START, metrics, window

from rca.window.grouping import contiguous_order, run_starts, series_numbers
from rca.window.signals.series import SeriesSet
from tests.for_each import for_each


def series(*samples: tuple[object, ...]) -> SeriesSet:
    return SeriesSet.from_window(window(metrics=metrics(*samples)))


def test_labels_tell_series_apart() -> None:
    found = series(
        (1, "node_load1", 1.0, "a"),
        (1, "node_load1", 2.0, "b"),
        (1, "node_load1", 3.0),
        (1, "DCGM_FI_DEV_SM_CLOCK", 4.0, "a", 0, "0"),
        (2, "node_load1", 5.0, "a"),
    )
    assert found.n_series == 4
    assert found.offsets.tolist() == [0, 2, 3, 4, 5]
    assert found.value.tolist() == [1, 5, 2, 3, 4]
    assert found.rank.tolist() == [-1, -1, -1, 0]
    assert [found.node_names[node] if node >= 0 else None for node in found.node] == ["a", "b", None, "a"]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_samples_come_out_in_time_order(order: list[int]) -> None:
    load, trip = "node_load1", "node_tcp_rtt_seconds"
    samples = [(1, load, 1.0), (2, load, 2.0), (1, trip, 3.0), (2, trip, 4.0)]
    found = series(*(samples[i] for i in order))
    by_name = {
        found.signals[signal].name: found.value[begin:end].tolist()
        for signal, begin, end in zip(found.signal, found.offsets[:-1], found.offsets[1:], strict=True)
    }
    assert by_name == {"node_load1": [1, 2], "node_tcp_rtt_seconds": [3, 4]}


def test_old_and_new_names_continue_one_series() -> None:
    found = series(
        (1, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 4.0, "a", 0),
        (2, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 8.0, "a", 0),
    )
    assert found.n_series == 1
    assert found.value.tolist() == [1, 1]


def test_other_units_are_converted() -> None:
    assert series((1, "node_disk_io_time_ms", 1500.0, "a", None, "sda")).value.tolist() == [1.5]


def test_unknown_metrics_are_counted_and_unused_samples_left_out() -> None:
    found = series(
        (1, "my_app_requests_total", 1.0),
        (2, "my_app_requests_total", 2.0),
        (1, "node_memory_MemTotal_bytes", 1.0),
        (1, "node_load1", None),
        (2, "node_load1", 1.0),
    )
    assert found.unknown == {"my_app_requests_total": 2}
    assert found.time.tolist() == [START + 2]


def test_a_window_without_metrics_has_no_series() -> None:
    empty = SeriesSet.from_window(window())
    assert empty.n_series == 0
    assert empty.bin_means([START, START + 1]).shape == (0, 1)


@for_each("edges", [[1.0], [], [2.0, 1.0], [1.0, 1.0], [[1.0, 2.0]]])
def test_edges_must_ascend(edges: list[float]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        SeriesSet.from_window(window()).bin_means(edges)


def test_each_kind_is_binned_its_own_way() -> None:
    samples = [
        (time, name, value)
        for name, values in {
            "node_load1": [1.0, 3.0, 5.0],
            "node_pressure_io_waiting_seconds_total": [7.0, 7.5, 8.0],
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": [4.0, 64.0, 0.0],
            "DCGM_FI_DEV_XID_ERRORS": [0.0, 79.0, 79.0],
        }.items()
        for time, value in enumerate(values)
    ]
    found = series(*samples)
    names = [found.signals[signal].channel for signal in found.signal]
    means = dict(zip(names, found.bin_means([START, START + 2])[:, 0], strict=True))
    assert means == pytest.approx({"load1": 3, "psi_io": 0.5, "throttled": 0.75, "xid": 79})


def test_many_interleaved_series_are_kept_apart() -> None:
    n_series, n_samples = 70_000, 2
    number = np.tile(np.arange(n_series), n_samples)
    order = contiguous_order(number.astype(np.int32), n_series)
    assert order is not None
    assert run_starts(number[order]).tolist() == list(range(0, n_series * n_samples, n_samples))
    assert (order[::2] < order[1::2]).all()


def test_labels_too_many_to_multiply_are_still_numbered() -> None:
    wide = [np.array([2**31 - 2, 5, 2**31 - 2, -1]) for _ in range(4)]
    number, n_series = series_numbers(wide)
    assert number.tolist() == [0, 1, 0, 2]
    assert n_series == 3
