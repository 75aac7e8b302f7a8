"""Held-out incidents in a pipeline with finite buffers.

They take no part in the calibration. A slow stage fills its own buffer, then blocks the stage before it.
Symptoms appear on both sides of the cause and grow while the cause stays constant.
"""

from __future__ import annotations

import networkx
import numpy as np
import pandas as pd

from benchmarks.tabular.cases import TabularCase

BUFFER = 60.0


def draw(rng: np.random.Generator, n_normal: int = 400, n_anomalous: int = 120) -> TabularCase:
    """Per stage its seconds per item, its backlog and its age of the oldest item; one stage gets slower."""
    n_stages, n = int(rng.integers(4, 10)), n_normal + n_anomalous
    slow = int(rng.integers(n_stages))
    arrivals = rng.poisson(10.0 * (1 + 0.2 * np.sin(np.arange(n) / 40.0 + rng.uniform(0, 6))), n)
    speed = rng.uniform(13.0, 18.0, n_stages)
    seconds = rng.gamma(25.0, 1 / 25.0, (n, n_stages)) / speed
    # A fifth to twice as slow again: enough to fall behind, sometimes only at the season's height.
    seconds[n_normal:, slow] *= rng.uniform(1.3, 3.0)
    backlog = _flow(arrivals, seconds)
    age = backlog * seconds * rng.lognormal(0.0, 0.2, backlog.shape) + 0.01
    table = {}
    for stage in range(n_stages):
        table[f"p{stage}_seconds"] = seconds[:, stage]
        table[f"p{stage}_backlog"] = backlog[:, stage]
        table[f"p{stage}_age"] = age[:, stage]
    frame = pd.DataFrame(table)
    return TabularCase(
        family="pipeline with back-pressure",
        normal=frame.iloc[:n_normal],
        anomalous=frame.iloc[n_normal:],
        causes=frozenset({f"p{slow}_seconds"}),
        graph=_graph(n_stages),
        target=f"p{int(rng.integers(max(0, slow - 1), slow + 1))}_age",
    )


def _flow(arrivals: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Backlog before every stage, shape (n_rows, n_stages)."""
    n_rows, n_stages = seconds.shape
    backlog, held = np.zeros((n_rows, n_stages)), np.zeros(n_stages)
    for row in range(n_rows):
        held[0] += arrivals[row]
        for stage in reversed(range(n_stages)):
            room = np.inf if stage == n_stages - 1 else BUFFER - held[stage + 1]
            done = max(0.0, min(held[stage], 1.0 / seconds[row, stage], room))
            held[stage] -= done
            if stage < n_stages - 1:
                held[stage + 1] += done
        backlog[row] = held
    return backlog


def _graph(n_stages: int) -> networkx.DiGraph:
    graph = networkx.DiGraph()
    for stage in range(n_stages):
        graph.add_edge(f"p{stage}_seconds", f"p{stage}_backlog")
        graph.add_edge(f"p{stage}_seconds", f"p{stage}_age")
        graph.add_edge(f"p{stage}_backlog", f"p{stage}_age")
        if stage:
            graph.add_edge(f"p{stage}_backlog", f"p{stage - 1}_backlog")
    return graph
