"""What another site would not have seen of the same job: exporters, phases, samples, names missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from rca.lab.evaluation.signal_sets import STEP_TIMES
from rca.lab.simulation.sampling_telemetry import CORE_PHASES, OPTIONAL_PHASES
from rca.window.grouping import codes_of
from rca.window.schema import LOAD_COLUMNS
from rca.window.window import Window

#: Metrics that come and go together, by how their names begin (lower case).
EXPORTERS: tuple[tuple[str, ...], ...] = (
    ("dcgm_", "nvidia_"),
    ("node_cpu", "node_load", "node_context", "node_procs"),
    ("node_pressure",),
    ("node_memory", "node_vmstat"),
    ("node_disk", "node_nfs"),
    ("node_network", "node_netstat", "node_infiniband"),
    ("node_tcp",),
    ("node_qdisc",),
    ("process_", "namedprocess_"),
    ("container_",),
    ("python_",),
)
WAIT, TRANSFER, TOGETHER = (
    "communication_wait_seconds", "communication_transfer_seconds", "communication_seconds",
)  # fmt: skip


def blinded(window: Window, rng: np.random.Generator) -> Window:
    """The window with blind spots drawn at random, about as often as real collections have them."""
    steps = _fewer_phases(window.steps, rng)
    metrics = _fewer_metrics(window.metrics, rng)
    if metrics.num_rows and rng.random() < 0.5:
        metrics = _thinned(metrics, window.job.start, rng)
    events = window.events if rng.random() < 0.5 else window.events.slice(0, 0)
    job = window.job
    if rng.random() < 0.05:
        job = job.model_copy(update={"ranks": None})
    elif rng.random() < 0.3:
        steps = _skewed(steps, window, rng)
    return replace(window, job=job, steps=steps, metrics=metrics, events=events)


def _fewer_phases(steps: pa.Table, rng: np.random.Generator) -> pa.Table:
    draw = rng.random()
    if draw < 0.06:
        return steps.select(STEP_TIMES)
    if draw < 0.2:
        steps = _unsplit(steps)
    if rng.random() < 0.5:
        return steps
    lost = {name for name in (*OPTIONAL_PHASES, *LOAD_COLUMNS) if rng.random() < 0.35}
    lost |= {name for name in CORE_PHASES if rng.random() < 0.1}
    return steps.select([name for name in steps.column_names if name not in lost])


def _unsplit(steps: pa.Table) -> pa.Table:
    """Communication as one duration, as a timer around the collective sees it."""
    names = steps.column_names
    if WAIT not in names or TRANSFER not in names:
        return steps
    both = steps.column(WAIT).to_numpy() + steps.column(TRANSFER).to_numpy()
    kept = steps.select([name for name in names if name not in (WAIT, TRANSFER, TOGETHER)])
    return kept.append_column(TOGETHER, pa.array(both))


def _fewer_metrics(metrics: pa.Table, rng: np.random.Generator) -> pa.Table:
    if rng.random() < 0.12:
        return metrics.slice(0, 0)
    code, names = codes_of(metrics.column("name"))
    held = np.ones(len(names), dtype=bool)
    if rng.random() < 0.5:
        gone = tuple(prefix for group in EXPORTERS if rng.random() < 0.3 for prefix in group)
        held &= np.array([not name.lower().startswith(gone) for name in names] if gone else held, dtype=bool)
    if rng.random() < 0.45:
        held &= rng.random(len(names)) >= rng.uniform(0, 0.3)
    if held.all():
        return metrics
    return metrics.filter(pa.array(held[code]))


def _thinned(metrics: pa.Table, start: float, rng: np.random.Generator) -> pa.Table:
    """Scraped two to ten times more rarely."""
    every = int(rng.choice([2, 3, 5, 10]))
    time = metrics.column("time").to_numpy()
    looks = np.unique(np.round(time, 2))
    apart = float(np.median(np.diff(looks))) if looks.size > 1 else 1.0
    slot = np.floor((time - start) / max(apart, 1e-3)).astype(np.int64)
    kept = slot % every == int(rng.integers(every))
    return metrics.filter(pa.array(kept)) if kept.any() else metrics


def _skewed(steps: pa.Table, window: Window, rng: np.random.Generator) -> pa.Table:
    """Clocks of nodes apart by milliseconds to half a second."""
    node = window.job.topology.node
    error = rng.normal(0, np.exp(rng.uniform(np.log(1e-3), np.log(0.5))), node.max() + 2)
    rank = steps.column("rank").to_numpy()
    fresh = steps.column("start_time").to_numpy() + error[node[rank]]
    place = steps.column_names.index("start_time")
    return steps.set_column(place, steps.schema.field("start_time"), pa.array(fresh))
