"""Samples in the window's long form, collected as plain lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    def between(self, start: float, end: float) -> Sequence[Sample]:
        """Samples with ``start <= time < end``."""
        return [sample for sample in self.samples if start <= sample.time < end]
