"""Held-out incidents in a system of services that call each other; they take no part in the calibration.

Load flows from the entry down, latency and errors flow back up. Utilisation saturates and errors are retried.
Load has a season, and another level during the incident than before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx
import numpy as np
import pandas as pd

from benchmarks.tabular.cases import TabularCase

FAULTS = ("cpu", "mem", "disk", "delay", "loss")
METRICS = ("load", "cpu", "mem", "diskio", "latency-50", "latency-90", "error")
SEASON_ROWS = 240


@dataclass
class System:
    """Services in calling order (the entry first); ``calls[i, j]`` requests to j per request to i."""

    calls: np.ndarray
    base: np.ndarray
    usage: np.ndarray
    memory: np.ndarray

    @property
    def size(self) -> int:
        """Number of services."""
        return len(self.base)


def draw(rng: np.random.Generator, n_normal: int = 600, n_anomalous: int = 300) -> TabularCase:
    """All metrics of every service; the right answer is the metric that the fault acts on."""
    system, fault = _system(rng), str(rng.choice(FAULTS))
    culprit = int(rng.integers(1, system.size))
    columns = _run(system, culprit, fault, n_normal, n_anomalous, rng)
    frame = pd.DataFrame(columns)
    frame.insert(0, "time", np.arange(len(frame)) + 1_700_000_000)
    hit = {"disk": ["diskio"], "delay": ["latency-50", "latency-90"], "loss": ["error"]}.get(fault, [fault])
    return TabularCase(
        family=f"services, {fault}",
        normal=frame.iloc[:n_normal],
        anomalous=frame.iloc[n_normal:],
        causes=frozenset(f"s{culprit:02d}_{metric}" for metric in hit),
        graph=_graph(system),
        target="s00_error" if fault == "loss" else "s00_latency-90",
    )


def draw_latencies(rng: np.random.Generator) -> TabularCase:
    """Only the latency of every service, few anomalous rows: the graph has to carry the answer."""
    system = _system(rng)
    culprit = int(rng.integers(1, system.size))
    n_anomalous = int(rng.choice([1, 3, 10]))
    columns = _run(system, culprit, "delay", 300, n_anomalous + 5, rng)
    kept = {name.split("_")[0]: values for name, values in columns.items() if name.endswith("latency-90")}
    frame = pd.DataFrame(kept)
    graph = networkx.DiGraph()
    graph.add_nodes_from(kept)
    graph.add_edges_from((f"s{j:02d}", f"s{i:02d}") for i, j in np.argwhere(system.calls > 0))
    return TabularCase(
        family="latencies of a call graph",
        normal=frame.iloc[:300],
        anomalous=frame.iloc[305:],
        causes=frozenset({f"s{culprit:02d}"}),
        graph=graph,
        target="s00",
    )


def _system(rng: np.random.Generator) -> System:
    n = int(rng.integers(5, 15))
    calls = np.zeros((n, n))
    for callee in range(1, n):
        callers = rng.choice(callee, size=min(callee, int(rng.integers(1, 3))), replace=False)
        calls[callers, callee] = rng.choice([0.3, 1.0, 2.0], callers.size)
    return System(
        calls=calls,
        base=rng.lognormal(-5.0, 0.7, n),
        usage=rng.uniform(0.2, 0.6, n),
        memory=rng.lognormal(18.0, 1.0, n),
    )


def _smooth(rng: np.random.Generator, n: int, memory: float = 0.8) -> np.ndarray:
    noise = rng.normal(size=n + 30)
    return np.convolve(noise, memory ** np.arange(30))[30 : n + 30] * np.sqrt(1 - memory**2)


def _entry_load(n_normal: int, n: int, rng: np.random.Generator) -> np.ndarray:
    season = 1.0 + 0.2 * np.sin(2 * np.pi * (np.arange(n) / SEASON_ROWS + rng.random()))
    level = np.where(np.arange(n) < n_normal, 1.0, rng.uniform(0.8, 1.3))
    return 100.0 * season * level * (1.0 + 0.05 * _smooth(rng, n))


def _run(
    system: System, culprit: int, fault: str, n_normal: int, n_anomalous: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    n = n_normal + n_anomalous
    since = np.maximum(np.arange(n) - n_normal + 1, 0)
    on = since > 0
    is_culprit = np.arange(system.size) == culprit
    loss = rng.uniform(0.1, 0.5) * on if fault == "loss" else np.zeros(n)
    own_error = np.stack(
        [np.clip(rng.poisson(0.3, n) / 100 + (loss if hit else 0.0), 0, 1) for hit in is_culprit]
    )
    load = _loads(system, own_error, _entry_load(n_normal, n, rng), rng)
    steady = np.stack([load[:, :n_normal].mean(axis=1)] * n, axis=1)
    metrics: dict[str, np.ndarray] = {}
    latency: list[np.ndarray] = [np.zeros(n)] * system.size
    error: list[np.ndarray] = [np.zeros(n)] * system.size
    for service in reversed(range(system.size)):
        kind = fault if is_culprit[service] else ""
        taken = rng.uniform(0.3, 0.8) * on if kind == "cpu" else np.zeros(n)
        leaked = np.minimum(since / 120.0, 1.5) * on if kind == "mem" else np.zeros(n)
        wrote = rng.uniform(5, 50) * on if kind == "disk" else np.zeros(n)
        usage = system.usage[service] * load[service] / steady[service]
        busy = usage / (1.0 - 0.7 * taken) + 0.3 * np.maximum(leaked - 0.5, 0.0) + 0.004 * wrote
        own = system.base[service] / (1.0 - np.minimum(busy, 0.97)) * rng.gamma(30.0, 1 / 30.0, n)
        if kind == "delay":
            own = own + on * rng.uniform(1.0, 20.0) * system.base.mean()
        below = [(c, system.calls[service, c]) for c in np.flatnonzero(system.calls[service])]
        latency[service] = own + sum(
            (w * np.roll(latency[c], rng.integers(0, 2)) for c, w in below), np.zeros(n)
        )
        passed = np.prod([(1 - 0.6 * error[c]) ** w for c, w in below], axis=0) if below else np.ones(n)
        error[service] = 1 - (1 - own_error[service]) * passed
        measured = (
            load[service],
            np.clip(usage + taken, 0, 1.2) * 100 + rng.normal(0, 1.0, n),
            system.memory[service] * (1 + leaked + 0.003 * _smooth(rng, n, 0.9)),
            rng.poisson(2.0, n) * 4096.0 * (1 + wrote),
            latency[service] * (1 + 0.03 * rng.normal(size=n)),
            latency[service] * rng.gamma(20.0, 1 / 20.0, n) * 1.6,
            np.round(rng.binomial(100, np.clip(error[service], 0, 1)) / 100, 2),
        )
        metrics |= {f"s{service:02d}_{name}": values for name, values in zip(METRICS, measured, strict=True)}
    return metrics


def _loads(system: System, own_error: np.ndarray, entry: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    load = np.zeros((system.size, entry.size))
    load[0] = entry
    for service in range(1, system.size):
        asked = system.calls[:, service] @ load
        # A failed call is made again a row later, at most twice.
        failed = np.roll(own_error[service], 1)
        load[service] = asked * (1 + failed + failed**2) * (1 + 0.03 * rng.normal(size=entry.size))
    return load


def _graph(system: System) -> networkx.DiGraph:
    graph = networkx.DiGraph()
    for service in range(system.size):
        here = f"s{service:02d}_"
        graph.add_edges_from((here + "load", here + name) for name in ("cpu", "latency-50", "latency-90"))
        for resource in ("cpu", "mem", "diskio"):
            graph.add_edges_from((here + resource, here + name) for name in ("latency-50", "latency-90"))
        graph.add_edge(here + "error", here + "load")
        for callee in np.flatnonzero(system.calls[service]):
            there = f"s{callee:02d}_"
            graph.add_edge(here + "load", there + "load")
            graph.add_edges_from(
                (there + name, here + name) for name in ("latency-50", "latency-90", "error")
            )
    return graph
