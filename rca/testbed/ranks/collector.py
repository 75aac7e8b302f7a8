"""Python's garbage collector in the host process: timed, and fed with real garbage on demand."""

from __future__ import annotations

import gc
import time
from typing import Any

from rca.testbed.ranks.shared import Gauge, Knob, Shared

EVERY_STEPS = 2


class Collector:
    """Times every collection into the rank's gauges."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._began = 0.0
        self._kept: list[Any] = []
        gc.collect()
        gc.freeze()  # what the fork inherited is nobody's garbage
        gc.callbacks.append(self._observe)

    def after_step(self, step: int) -> None:
        """Keep as many objects as asked for, and collect as a leaking job ends up doing."""
        wanted = int(self._shared.knobs[Knob.KEPT_OBJECTS])
        if wanted == 0:
            self._kept = []
            return
        if not self._kept:
            # Disabled while they are made: the pauses belong to the steps, not to the build-up.
            gc.disable()
            self._kept = [[] for _ in range(wanted)]
            gc.enable()
        if step % EVERY_STEPS == 0:
            gc.collect()

    def _observe(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.monotonic()
            return
        gauges = self._shared.gauges
        gauges[Gauge.GC_SECONDS] += time.monotonic() - self._began
        gauges[Gauge.GC_COLLECTIONS] += 1
        gauges[Gauge.GC_COLLECTED] += info["collected"]
