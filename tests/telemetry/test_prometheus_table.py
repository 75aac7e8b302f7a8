"""The metrics table of series from Prometheus: devices, series scraped twice, series in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rca.sources.prometheus.matrix import SeriesMatrix
from rca.sources.prometheus.metric_table import PlacedMatrix, SeriesPlace, metric_table


def series(labels: Mapping[str, str], times: Sequence[float], value: float = 1.0) -> SeriesMatrix:
    held = np.array(times, dtype=np.float64)
    return SeriesMatrix((labels,), np.array([held.size]), held, np.full(held.size, value))


def rows(*placed: tuple[SeriesPlace | None, SeriesMatrix]) -> tuple[list[dict[str, object]], list[str]]:
    table, notes = metric_table([PlacedMatrix(matrix, (place,)) for place, matrix in placed])
    return table.to_pylist(), notes


def test_devices_are_named_by_what_varies_at_one_place() -> None:
    node = SeriesPlace("a")
    held, notes = rows(
        (node, series({"__name__": "x", "device": "mlx5_0", "port": "1", "rack": "r1"}, [1])),
        (node, series({"__name__": "x", "device": "mlx5_1", "port": "1", "rack": "r1", "queue": "3"}, [1])),
        (node, series({"__name__": "x", "device": "mlx5_1", "port": "1", "rack": "r1", "queue": "4"}, [1])),
        (SeriesPlace("b"), series({"__name__": "x", "device": "mlx5_0", "port": "1", "rack": "r2"}, [1])),
    )
    assert [row["device"] for row in held] == ["mlx5_0/1", "mlx5_1/1/3", "mlx5_1/1/4", "mlx5_0/1"]
    assert notes == []


def test_a_gpus_own_label_is_not_repeated_and_a_containers_disk_is() -> None:
    held, _ = rows(
        (
            SeriesPlace("a", 0, "3", whole=True),
            series({"__name__": "x", "device": "nvidia3", "clock_type": "SYSTEM"}, [1]),
        ),
        (
            SeriesPlace("a", None, "trainer"),
            series({"__name__": "y", "device": "/dev/sda", "container": "trainer"}, [1]),
        ),
    )
    assert [row["device"] for row in held] == ["3/SYSTEM", "trainer//dev/sda"]


def test_a_series_that_was_scraped_twice_counts_once() -> None:
    place = SeriesPlace("a")
    held, notes = rows(
        (place, series({"__name__": "x", "job": "node"}, [1, 2], 1.0)),
        (place, series({"__name__": "x", "job": "kubernetes", "endpoint": "metrics"}, [1.5, 2.5, 3.5], 2.0)),
    )
    assert [row["value"] for row in held] == [2.0, 2.0, 2.0]
    assert notes == ["1 series were scraped twice: one of each was left out"]


def test_series_that_follow_one_another_are_one() -> None:
    place = SeriesPlace("a", 0, "0", whole=True)
    held, notes = rows(
        (place, series({"__name__": "x", "gpu": "0", "exported_pod": "old"}, [1, 2])),
        (place, series({"__name__": "x", "gpu": "0", "exported_pod": "new"}, [3, 4])),
        # The same labels in two parts: a query that was split by time.
        (place, series({"__name__": "x", "gpu": "0", "exported_pod": "new"}, [5, 6])),
    )
    assert [row["time"] for row in held] == [1, 2, 3, 4, 5, 6]
    assert {row["device"] for row in held} == {"0"}
    assert notes == []


def test_series_without_a_place_are_counted() -> None:
    held, notes = rows(
        (None, series({"__name__": "x"}, [1])), (SeriesPlace("a"), series({"__name__": "y"}, [1]))
    )
    assert [row["name"] for row in held] == ["y"]
    assert notes == ["1 series belong to no rank or node of the job: x"]


def test_no_series_is_an_empty_table() -> None:
    assert metric_table([])[0].num_rows == 0
