"""Harmless events that occur on every cluster and must not raise an alarm."""

from __future__ import annotations

import time

import numpy as np

from rca.lab.testbed.bed import Bed
from rca.lab.testbed.process import ProcessPlacement
from rca.lab.testbed.ranks.shared import Knob

_BURST_SECONDS = (0.15, 0.45)
_GENTLE_SHARE = 0.15
_GENTLE_PERIOD_SECONDS = 0.1
_SLOW_WARM_UP_STEPS = 7


class Hiccup:
    """Two short bursts of foreign load on one node, at random moments."""

    def __init__(self, bed: Bed, draw: np.random.Generator) -> None:
        self._bed = bed
        self._node = int(draw.integers(bed.job.nodes))
        steps = np.arange(bed.job.steps // 5, bed.job.steps)
        self._steps = [int(step) for step in draw.choice(steps, 2, replace=False)]
        self._seconds = float(draw.uniform(*_BURST_SECONDS))

    def at_step(self, step: int) -> None:
        """Start a burst when its step has come; it ends by itself."""
        due = [each for each in self._steps if each <= step]
        for each in due:
            self._steps.remove(each)
            self._bed.process_table.spawn("hiccup", self._burst, self._bed.foreign_placement(self._node))

    def _burst(self) -> None:
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            sum(range(10_000))


class NeighbourLoad:
    """A foreign process on every core: a little work, all the time."""

    def __init__(self, bed: Bed, draw: np.random.Generator) -> None:
        del draw
        for core in range(bed.permitted.cores):
            bed.process_table.spawn("neighbour", _work_and_rest, ProcessPlacement(core=core, nice=10))

    def at_step(self, step: int) -> None:
        """Nothing changes with the steps."""


class SlowWarmUp:
    """All loaders are slow in the first steps."""

    def __init__(self, bed: Bed, draw: np.random.Generator) -> None:
        self._bed = bed
        self._set(float(draw.uniform(1.0, 2.0)) * bed.job.nominal_step_seconds)

    def at_step(self, step: int) -> None:
        """End the warm-up once."""
        if step >= _SLOW_WARM_UP_STEPS and self._slow:
            self._set(0.0)

    def _set(self, seconds: float) -> None:
        self._slow = seconds > 0
        for held in self._bed.ranks:
            held.shared.knobs[Knob.LOADER_DELAY_SECONDS] = seconds


def _work_and_rest() -> None:
    while True:
        until = time.monotonic() + _GENTLE_SHARE * _GENTLE_PERIOD_SECONDS
        while time.monotonic() < until:
            sum(range(1_000))
        time.sleep((1 - _GENTLE_SHARE) * _GENTLE_PERIOD_SECONDS)
