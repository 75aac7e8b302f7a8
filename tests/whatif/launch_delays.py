"""Launch delays of a traced step, to check that the replay with them reproduces the trace."""

from __future__ import annotations

import numpy as np

from rca.arrays import Seconds32
from rca.robust import nan_max
from rca.whatif.graph.graph import DependencyGraph
from rca.whatif.trace.step_shapes import StepShape


def launch_delays(shape: StepShape, graph: DependencyGraph) -> Seconds32:
    """Time between the latest end an operation waits for and its start: (n_ops, n_data, n_steps), seconds."""
    end = shape.start + shape.duration
    origin = np.nanmin(shape.start, axis=(0, 1))
    delays = np.zeros_like(shape.start)
    for op, before in graph.predecessors.items():
        ready = nan_max(end[list(before)]) if before else origin
        delays[op] = np.nan_to_num(shape.start[op] - ready)
    return delays
