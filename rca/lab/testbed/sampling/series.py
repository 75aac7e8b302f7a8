"""Samples in the window's long form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Sample(NamedTuple):
    """One row of the metrics table; `time` on the monotonic clock."""

    time: float
    node: str | None
    rank: int | None
    device: str | None
    name: str
    value: float


class Series:
    """Rows of the metrics table."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def add(
        self,
        time: float,
        values: Mapping[str, float],
        *,
        node: str | None = None,
        rank: int | None = None,
        device: str | None = None,
    ) -> None:
        """Append one sample per metric name."""
        self.samples += [Sample(time, node, rank, device, name, float(v)) for name, v in values.items()]
