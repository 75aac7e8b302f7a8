"""Sets of signals: windows with less telemetry, to score answers without the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from rca.window.grouping import codes_of
from rca.window.window import Window

#: Metric names by exporter, lower case: DCGM and its predecessors.
GPU_PREFIXES = ("dcgm_", "nvidia_")
#: node exporter, process exporters, cAdvisor: counters that the kernel keeps.
KERNEL_PREFIXES = ("node_", "process_", "namedprocess_", "container_")
STEP_TIMES = ("rank", "step", "start_time", "step_seconds")

SIGNAL_SETS = {
    "all": "all telemetry of the window",
    "no-gpu-metrics": "without DCGM_* and nvidia_* metrics",
    "no-kernel-metrics": "without node_*, process_* and container_* metrics",
    "exporters-and-step-times": "metrics, events, and the start and length of every step",
    "phases-only": "phase durations and loads; no metrics, no events",
    "step-times-only": "start and length of every step; nothing else",
}


#: What a window was made of, from the most to the least.
TELEMETRY = ("phases and metrics", "phases only", "metrics, no phases", "step times only")
#: Columns that separate own work from waiting for other ranks.
TOLD_APART = ("forward_seconds", "communication_seconds", "communication_wait_seconds")


def telemetry_of(window: Window) -> str:
    """Name in `TELEMETRY` of what a window holds."""
    timed = [window.steps.column(name) for name in TOLD_APART if name in window.steps.column_names]
    phases = any(bool(np.isfinite(column.to_numpy()).any()) for column in timed)
    metrics = window.metrics.num_rows > 0
    return TELEMETRY[2 * (not phases) + (not metrics)]


def restrict(window: Window, signals: str) -> Window:
    """The window with only some of its signals.

    Parameters
    ----------
    signals : str
        A key of `SIGNAL_SETS`.
    """
    if signals == "all":
        return window
    if signals == "exporters-and-step-times":
        return replace(window, steps=window.steps.select(STEP_TIMES), ops=window.ops.slice(0, 0))
    if signals == "no-gpu-metrics":
        return replace(window, metrics=_without(window.metrics, GPU_PREFIXES))
    if signals == "no-kernel-metrics":
        return replace(window, metrics=_without(window.metrics, KERNEL_PREFIXES))
    bare = replace(
        window,
        metrics=window.metrics.slice(0, 0),
        events=window.events.slice(0, 0),
        ops=window.ops.slice(0, 0),
    )
    return bare if signals == "phases-only" else replace(bare, steps=bare.steps.select(STEP_TIMES))


def _without(metrics: pa.Table, prefixes: tuple[str, ...]) -> pa.Table:
    """Rows of metrics from all other exporters; decided once per name, not per sample."""
    code, names = codes_of(metrics.column("name"))
    kept = [position for position, name in enumerate(names) if not name.lower().startswith(prefixes)]
    return metrics.filter(pa.array(np.isin(code, kept)))
