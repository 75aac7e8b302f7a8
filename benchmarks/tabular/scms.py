"""Random structural causal models with one fault, for the calibration of the weights of `rca.rank_causes`.

Drawn at random are the graph, functions, noise, lags, units, counts, rounding and scrape intervals. So are
constant and unrelated columns, missing values, unmeasured nodes, a hidden common factor that changes, wrong
graphs, and the fault with its size and onset.

Incidents with a course begin before the fault and may outlast it. Some of their effects are slow, and other
columns may have moved before.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx
import numpy as np
import pandas as pd

from benchmarks.tabular.cases import TabularCase

NOISES = ("normal", "laplace", "student", "gamma", "lognormal")
LINKS = ("linear", "linear", "saturating", "hinge", "growing")
#: Also the links of models with a course. The last is a queue that fills and empties with this time constant.
LINKS_WITH_COURSE, FILLING_ROWS = (*LINKS, "filling"), 20.0
#: With a course: probabilities of no, one and two nodes with an unrelated shift in all anomalous rows.
BUSY = (0.8, 0.15, 0.05)
FAULTS = ("step", "step", "ramp", "spikes", "spread", "gain")
UNITS = ("level", "level", "exponential", "counts", "rounded")
#: Rows before the tables begin, in which lags and autocorrelation settle.
SETTLING = 20


@dataclass(frozen=True)
class Model:
    """Nodes in causal order; ``weights[i, j]`` is the effect of i on j, ``lags`` in rows."""

    weights: np.ndarray
    lags: np.ndarray
    links: tuple[str, ...]
    noises: tuple[str, ...]
    memory: np.ndarray

    @property
    def reach(self) -> np.ndarray:
        """Which node acts on which along some path, itself included."""
        found = np.eye(len(self.links), dtype=bool) | (self.weights != 0)
        for _ in range(len(self.links)):
            found = found | (found.astype(int) @ found.astype(int) > 0)
        return found


def draw(rng: np.random.Generator, *, course: bool = False) -> TabularCase:
    """One incident, with a course or without."""
    mixed = rng.random() < 0.3
    model = _model(rng, int(rng.integers(4, 40)), mixed, LINKS_WITH_COURSE if course else LINKS)
    n_normal, n_anomalous = int(np.exp(rng.uniform(3.7, 6.9))), int(np.exp(rng.uniform(0.0, 5.7)))
    begins = 0 if rng.random() < 0.5 else int(rng.uniform(0, 0.6 if course else 0.3) * n_anomalous)
    lasts = n_anomalous - begins
    if course and rng.random() < 0.4:
        lasts = int(np.ceil(rng.uniform(0.3, 1.0) * lasts))
    quiet = rng.random() < 0.08
    root = None if quiet else int(rng.integers(len(model.links)))
    values = _simulate(model, rng, n_normal, n_anomalous, root, begins, lasts)
    names = [f"m{rank:02d}" for rank in rng.permutation(len(model.links))]
    kept = [at for at in range(len(names)) if at == root or rng.random() > rng.choice([0.0, 0.2])]
    # With a course, the target has to move in some rows only.
    moved = (
        np.quantile(np.abs(values[n_normal:]), 0.8, axis=0)
        if course
        else np.abs(np.median(values[n_normal:], axis=0))
    )
    target = _target(model, moved, root, kept, rng)
    if course:
        others = [at for at in kept if at not in (root, target)]
        for at in rng.permutation(np.array(others, dtype=int))[: rng.choice(3, p=BUSY)]:
            values[n_normal:, at] += np.exp(rng.uniform(np.log(3.0), np.log(100.0)))
    slowest = int(rng.choice([1, 1, 5, 15]))
    table = {
        names[at]: _scraped(_as_measured(values[:, at], rng), slowest, lasts if course else n_anomalous, rng)
        for at in kept
    }
    table |= _bystanders(rng, n_normal, n_anomalous)
    frame = pd.DataFrame(table)
    if rng.random() < 0.2:
        missing = rng.random(frame.shape) < 0.03
        missing[[0, 1, n_normal]] = False  # No column may vanish: the truth might.
        frame = frame.mask(missing)
    return TabularCase(
        family="random models",
        normal=frame.iloc[:n_normal],
        anomalous=frame.iloc[n_normal:],
        causes=frozenset() if root is None else frozenset({names[root]}),
        graph=_drawn(model, names, rng),
        target=names[target],
        worse="either" if mixed else "higher",
    )


def _model(rng: np.random.Generator, n: int, mixed: bool, links: tuple[str, ...]) -> Model:
    density = rng.uniform(1.0, 2.5) / max(n - 1, 1)
    edges = np.triu(rng.random((n, n)) < 2 * density, k=1)
    for node in range(1, n):  # Mostly one system, not many.
        if not edges[:node, node].any() and rng.random() < 0.8:
            edges[rng.integers(max(0, node - 6), node), node] = True
    strength = rng.lognormal(-0.2, 0.6, (n, n)) * rng.choice([0.2, 0.5, 1.0, 1.5])
    signs = rng.choice([-1.0, 1.0], (n, n)) if mixed else np.ones((n, n))
    lags = rng.integers(0, 4, (n, n)) if rng.random() < 0.6 else np.zeros((n, n), dtype=int)
    return Model(
        weights=edges * strength * signs / np.sqrt(np.maximum(edges.sum(axis=0), 1)),
        lags=lags,
        links=tuple(rng.choice(links, n)),
        noises=tuple(rng.choice(NOISES, n)),
        memory=rng.choice([0.0, 0.3, 0.8], n),
    )


def _simulate(
    model: Model,
    rng: np.random.Generator,
    n_normal: int,
    n_anomalous: int,
    root: int | None,
    begins: int,
    lasts: int,
) -> np.ndarray:
    n_rows = SETTLING + n_normal + n_anomalous
    values = np.zeros((n_rows, len(model.links)))
    start = SETTLING + n_normal + begins
    factor, loads = _common(model, rng, n_rows, SETTLING + n_normal)
    for node, link in enumerate(model.links):
        noise = _remembering(_noise(model.noises[node], n_rows, rng), model.memory[node])
        heard = np.zeros(n_rows)
        for parent in np.flatnonzero(model.weights[:, node]):
            heard += model.weights[parent, node] * np.roll(values[:, parent], model.lags[parent, node])
        caused = _link(link, heard)
        if node == root:
            caused, noise = _fault(caused, noise, slice(start, start + lasts), rng)
        values[:, node] = caused + noise + loads[node] * factor
    return values[SETTLING:]


def _common(
    model: Model, rng: np.random.Generator, n_rows: int, n_before: int
) -> tuple[np.ndarray, np.ndarray]:
    """Something unmeasured that moves many nodes, often at another level during the incident than before."""
    factor = _remembering(rng.normal(size=n_rows), 0.8)
    factor[n_before:] += rng.choice([0.0, 1.0]) * rng.uniform(-1.0, 2.0)
    affected = rng.random(len(model.links)) < 0.5
    return factor, affected * rng.uniform(0.2, 1.0, len(model.links)) * rng.choice([0.0, 1.0])


def _scraped(values: np.ndarray, slowest: int, lasts: int, rng: np.random.Generator) -> np.ndarray:
    """Values that a collector reads every few rows and holds in between, with a phase of its own."""
    every = int(rng.integers(1, slowest + 1))
    # A whole incident between two readings would have left no trace.
    if every == 1 or lasts < 2 * every:
        return values
    rows = np.arange(values.size)
    phase = int(rng.integers(every))
    return values[np.maximum((rows - phase) // every * every + phase, 0)]


def _noise(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    drawn = {
        "normal": lambda: rng.normal(size=n),
        "laplace": lambda: rng.laplace(size=n) / np.sqrt(2),
        "student": lambda: rng.standard_t(3, n) / np.sqrt(3),
        "gamma": lambda: (rng.gamma(2.0, size=n) - 2.0) / np.sqrt(2),
        "lognormal": lambda: (rng.lognormal(0.0, 0.7, n) - 1.28) / 1.02,
    }
    return np.asarray(drawn[kind]())


def _remembering(noise: np.ndarray, memory: float) -> np.ndarray:
    if memory == 0:
        return noise
    kept = np.convolve(noise, memory ** np.arange(SETTLING))[: noise.size]
    return kept * np.sqrt(1 - memory**2)


def _link(kind: str, heard: np.ndarray) -> np.ndarray:
    if kind == "saturating":
        return 3.0 * np.tanh(heard / 3.0)
    if kind == "hinge":
        return 0.5 * heard + 2.0 * np.maximum(heard - 1.5, 0.0)
    if kind == "growing":
        # A second-order term that ends, as no queue is infinite.
        return heard + 0.1 * np.clip(heard, 0.0, 30.0) ** 2
    if kind == "filling":
        kept = 1.0 - 1.0 / FILLING_ROWS
        return np.convolve(heard, kept ** np.arange(heard.size))[: heard.size] * np.sqrt(1 - kept**2)
    return heard


def _fault(
    caused: np.ndarray, noise: np.ndarray, during: slice, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    kind, size = rng.choice(FAULTS), float(np.exp(rng.uniform(np.log(2.0), np.log(300.0))))
    caused, noise = caused.copy(), noise.copy()
    rows = noise[during].size
    if kind == "step":
        noise[during] += size
    elif kind == "ramp":
        noise[during] += size * (np.arange(rows) + 1) / rows
    elif kind == "spikes":
        noise[during] += size * ((rng.random(rows) < rng.uniform(0.1, 0.6)) | (np.arange(rows) == 0))
    elif kind == "spread":
        noise[during] = np.abs(noise[during]) * size
    else:
        caused[during] = np.abs(caused[during]) * rng.uniform(2.0, 5.0)
        noise[during] += size / 3
    return caused, noise


def _target(
    model: Model, moved: np.ndarray, root: int | None, kept: list[int], rng: np.random.Generator
) -> int:
    """The alerted column: a measured effect of the fault with a visible change."""
    if root is None:
        return int(rng.choice(kept))
    effects = [at for at in kept if model.reach[root, at] and at != root]
    if not effects or rng.random() < 0.1:
        return root
    return int(rng.choice(np.array(effects)[moved[effects] >= np.median(moved[effects])]))


def _as_measured(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    kind, factor = rng.choice(UNITS), 10.0 ** rng.uniform(-3, 9)
    if kind == "exponential":
        return factor * np.exp(np.clip(0.3 * values, -20, 20))
    if kind == "counts":
        return rng.poisson(np.clip(rng.choice([0.1, 3.0, 30.0]) * (1 + 0.3 * values), 0.0, 1e6)).astype(float)
    level = rng.choice([0.0, 3.0, 30.0])
    if kind == "rounded":
        return np.round(level + values, int(rng.integers(0, 2)))
    return factor * (level + values)


def _bystanders(rng: np.random.Generator, n_normal: int, n_anomalous: int) -> dict[str, np.ndarray]:
    """Columns that have nothing to do with it: constant, nearly constant, wandering, busy with their own."""
    n = n_normal + n_anomalous
    found = {}
    for at in range(int(rng.integers(0, rng.choice([12, 12, 50])))):
        kind = rng.choice(["constant", "blips", "wandering", "plain", "moved"])
        if kind == "constant":
            values = np.full(n, rng.choice([0.0, 1.0, 4096.0]))
            values[n_normal:] += rng.choice([0.0, 0.0, 0.0, 1e-3, 1.0]) * (rng.random(n_anomalous) < 0.5)
        elif kind == "blips":
            values = rng.choice([0.0, 100.0]) + (rng.random(n) < 0.02) * rng.gamma(2.0, 1.0, n)
        elif kind == "wandering":
            values = np.cumsum(rng.normal(size=n)) * 0.1
        else:
            values = 10.0 + rng.normal(size=n)
            if kind == "moved":
                values[n_normal:] += rng.uniform(0.5, 3.0)
        found[f"x{at:02d}"] = values
    return found


def _drawn(model: Model, names: list[str], rng: np.random.Generator) -> networkx.DiGraph:
    """The graph as people draw it: a third of them miss some of the edges."""
    missing = rng.choice([0.0, 0.0, 0.15])
    graph = networkx.DiGraph()
    graph.add_nodes_from(names)
    for cause, effect in np.argwhere(model.weights != 0):
        if rng.random() >= missing:
            graph.add_edge(names[cause], names[effect])
    return graph
