"""Fit the mechanisms with DoWhy: explicit graph, explicit additive-noise models, exported as numbers.

Importing ``dowhy.gcm`` takes seconds, so only training and tests import this module.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from rca.causal.graph import IDLE_RESOURCES, PHASES, WAITING, mechanism_parents
from rca.causal.mechanisms import Mechanisms
from rca.features.resource_evidence import resource_names
from rca.lab.training.cause_graph import hidden_parents, signal_of
from rca.lab.training.mechanism_checks import Arrow, falsification, gcm_module, quiet_dowhy, refutation

if TYPE_CHECKING:
    import pandas as pd

#: Scores and excess are clipped here: larger ones are saturated and would dominate the fit.
MAX_EXCESS = 3.0
#: From here on a score (units) or an excess (relative) indicates a fault.
REMARKABLE_SCORE = 1.0
REMARKABLE_EXCESS = 0.02
#: Least number of rows of a mechanism.
MIN_ROWS = 30


def fit_mechanisms(
    rows: pd.DataFrame,
    seed: int,
    healthy: pd.DataFrame | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Mechanisms:
    """Fit ``excess[phase] ~ scores of its parents`` per phase, and ``signal ~ waiting`` per idle resource.

    Parameters
    ----------
    rows : DataFrame
        One row per window: columns `resource_names()` (score, 0 where not measured) and `PHASES`
        (excess relative to the usual step).
    seed : int
        Of falsification and refutation.
    healthy : DataFrame, optional
        One row per healthy rank: `WAITING` and a signal's score per idle resource (NaN where not measured).
    progress : callable
        ``(done, total)`` tests: one of each arrow, and one of the graph.

    Returns
    -------
    Mechanisms
        Arrows that a refutation rejects are exported as 0. The `report` has ``graph`` (falsification),
        ``mechanisms`` (R squared and noise per node) and ``arrows`` (effects and their refutations).
    """
    data = _clipped(rows)
    total = sum(map(len, mechanism_parents().values())) + len(IDLE_RESOURCES) + 1
    done = count(1)
    progress(0, total)

    def tested() -> None:
        progress(next(done), total)

    fits, arrows = _fit_phases(data, seed, tested)
    idle, idle_arrows, idle_fits = _fit_idle(healthy, seed, tested)
    arrows += idle_arrows
    graph = falsification(tested_graph(), _remarkable(data), seed)
    progress(total, total)
    report = {
        "graph": graph,
        "mechanisms": {name: fit["quality"] for name, fit in fits.items()} | idle_fits,
        "arrows": [arrow.to_document() for arrow in arrows],
    }
    refuted = {(arrow.source, arrow.target) for arrow in arrows if not arrow.holds}
    return _exported(fits, idle, refuted, report)


def causal_model() -> Any:
    """The unfitted model of the phases: empirical roots, non-negative linear mechanisms."""
    return _linear_model(
        [*resource_names(), *PHASES],
        [(resource, phase) for phase, parents in mechanism_parents().items() for resource in parents],
    )


def tested_graph() -> Any:
    """The graph for tests of independence: the arrows, and the pairs with a hidden common parent."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from([*resource_names(), *PHASES])
    graph.add_edges_from(
        (resource, phase) for phase, held in mechanism_parents().items() for resource in held
    )
    graph.add_edges_from(hidden_parents())
    return graph


def idle_model(resource: str) -> Any:
    """The unfitted model of the effect of waiting on one resource's signal."""
    return _linear_model([WAITING, signal_of(resource)], [(WAITING, signal_of(resource))])


def _linear_model(nodes: list[str], edges: list[tuple[str, str]]) -> Any:
    import networkx
    from sklearn.linear_model import LinearRegression

    gcm = gcm_module()
    # The graph's nodes hold the mechanisms, so every model has its own graph.
    graph = networkx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    model = gcm.InvertibleStructuralCausalModel(graph)
    for node in graph.nodes:
        if graph.in_degree(node) == 0:
            model.set_causal_mechanism(node, gcm.EmpiricalDistribution())
            continue
        # A worse resource never shortens a phase, and idling never raises a clock.
        regression = gcm.ml.SklearnRegressionModel(LinearRegression(positive=True))
        model.set_causal_mechanism(node, gcm.AdditiveNoiseModel(prediction_model=regression))
    return model


def _clipped(rows: pd.DataFrame) -> pd.DataFrame:
    data = rows[[*resource_names(), *PHASES]].clip(lower=-MAX_EXCESS, upper=None)
    data[list(PHASES)] = data[list(PHASES)].clip(upper=MAX_EXCESS)
    return data


def _remarkable(data: pd.DataFrame) -> pd.DataFrame:
    """Scores and excesses that indicate a fault, 0 instead of the others.

    All scores of an absent exporter are 0, and those of a present one are noisy. Small scores are therefore
    dependent because of the exporters, not because of faults.
    """
    floor = [REMARKABLE_SCORE if name not in PHASES else REMARKABLE_EXCESS for name in data.columns]
    return data.where(data.ge(floor), 0.0)


def _fit_phases(
    data: pd.DataFrame, seed: int, tested: Callable[[], None]
) -> tuple[dict[str, dict[str, Any]], list[Arrow]]:
    """Slopes, intercept and noise per phase; arrows are refuted with the other parents held fixed."""
    model = causal_model()
    with quiet_dowhy():
        gcm_module().fit(model, data)
    fits: dict[str, dict[str, Any]] = {}
    arrows: list[Arrow] = []
    for phase, parents in mechanism_parents().items():
        if not parents:
            noise = float(data[phase].std(ddof=0))
            fits[phase] = {"slopes": {}, "intercept": 0.0, "quality": {"r_squared": 0.0, "noise": noise}}
            continue
        fits[phase] = _linear_fit(model, phase, data)
        for resource, slope in fits[phase]["slopes"].items():
            others = [name for name in parents if name != resource]
            arrows.append(refutation(data, resource, phase, others, slope, seed))
            tested()
    return fits, arrows


def _fit_idle(
    healthy: pd.DataFrame | None, seed: int, tested: Callable[[], None]
) -> tuple[dict[str, float], list[Arrow], dict[str, dict[str, float]]]:
    """The effect of waiting on the signals of healthy ranks."""
    idle: dict[str, float] = {}
    arrows: list[Arrow] = []
    quality: dict[str, dict[str, float]] = {}
    if healthy is None:
        return idle, arrows, quality
    for resource in IDLE_RESOURCES:
        signal = signal_of(resource)
        measured = healthy[[WAITING, signal]].dropna()
        if len(measured) < MIN_ROWS:
            continue
        model = idle_model(resource)
        with quiet_dowhy():
            gcm_module().fit(model, measured)
        fit = _linear_fit(model, signal, measured)
        idle[resource] = fit["slopes"][WAITING]
        quality[signal] = fit["quality"]
        arrows.append(refutation(measured, WAITING, signal, [], idle[resource], seed))
        tested()
    return idle, arrows, quality


def _linear_fit(model: Any, node: str, data: pd.DataFrame) -> dict[str, Any]:
    from dowhy.graph import get_ordered_predecessors

    # DoWhy sorts a node's parents by name.
    names = list(get_ordered_predecessors(model.graph, node))
    fitted = model.causal_mechanism(node).prediction_model.sklearn_model
    slopes = np.maximum(fitted.coef_.ravel(), 0.0)
    intercept = float(np.ravel(fitted.intercept_)[0])
    observed = data[node].to_numpy()
    residual = observed - intercept - data[names].to_numpy() @ slopes
    explained = 1.0 - float(residual.var() / max(observed.var(), 1e-12))
    return {
        "slopes": dict(zip(names, slopes.tolist(), strict=True)),
        "intercept": intercept,
        "quality": {"r_squared": explained, "noise": float(residual.std())},
    }


def _exported(
    fits: dict[str, dict[str, Any]],
    idle: dict[str, float],
    refuted: set[tuple[str, str]],
    report: dict[str, Any],
) -> Mechanisms:
    resources = resource_names()
    coefficients = np.zeros((len(PHASES), len(resources)))
    for row, phase in enumerate(PHASES):
        for resource, slope in fits[phase]["slopes"].items():
            if (resource, phase) not in refuted:
                coefficients[row, resources.index(resource)] = slope
    return Mechanisms(
        resources,
        coefficients,
        np.array([fits[phase]["intercept"] for phase in PHASES]),
        np.array([fits[phase]["quality"]["noise"] for phase in PHASES]),
        idle={name: slope for name, slope in idle.items() if (WAITING, signal_of(name)) not in refuted},
        report=report,
    )
