"""Fit the mechanisms with DoWhy: explicit graph, explicit additive-noise models, exported as numbers.

Importing ``dowhy.gcm`` takes seconds, so this module is only imported by training and by tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from rca.causal.graph import PHASES, mechanism_parents
from rca.causal.mechanisms import Mechanisms
from rca.errors import MissingExtra
from rca.features.evidence import resource_names

if TYPE_CHECKING:
    import pandas as pd

#: Effects are fitted up to here; beyond it scores and excess saturate and would dominate the squares.
MAX_EXCESS = 3.0


def fit_mechanisms(rows: pd.DataFrame, seed: int) -> tuple[Mechanisms, dict[str, Any]]:
    """Fit ``excess[phase] ~ scores of its parents`` for every phase of the graph.

    Parameters
    ----------
    rows : DataFrame
        One row per window: columns `resource_names()` (score, 0 where not measured) and `PHASES`
        (excess relative to the usual step).
    seed : int
        Of the placebo refutation.

    Returns
    -------
    mechanisms : Mechanisms
    report : dict
        Per phase: R squared, noise, coefficients and the largest coefficient a permuted (placebo) treatment
        got; a coefficient not above its placebo is not evidence of an effect.
    """
    model = causal_model()
    gcm = _gcm()
    data = rows[[*resource_names(), *PHASES]].clip(lower=-MAX_EXCESS, upper=None)
    data[list(PHASES)] = data[list(PHASES)].clip(upper=MAX_EXCESS)
    gcm.fit(model, data)
    resources = resource_names()
    coefficients = np.zeros((len(PHASES), len(resources)))
    intercepts, noise = np.zeros(len(PHASES)), np.zeros(len(PHASES))
    report: dict[str, Any] = {}
    for row, (phase, parents) in enumerate(mechanism_parents().items()):
        observed = data[phase].to_numpy()
        if not parents:
            noise[row] = float(observed.std())
            continue
        names = _parent_order(model, phase)
        fitted = model.causal_mechanism(phase).prediction_model.sklearn_model
        slopes = np.maximum(fitted.coef_.ravel(), 0.0)
        intercepts[row] = float(np.ravel(fitted.intercept_)[0])
        coefficients[row, [resources.index(name) for name in names]] = slopes
        residual = observed - intercepts[row] - data[names].to_numpy() @ slopes
        noise[row] = float(residual.std())
        report[phase] = {
            "r_squared": 1.0 - float(residual.var() / max(observed.var(), 1e-12)),
            "noise": noise[row],
            "coefficients": dict(zip(names, slopes.tolist(), strict=True)),
            "placebo": _placebo(data[names].to_numpy(), observed, names, seed),
        }
    return Mechanisms(resources, coefficients, intercepts, noise), report


def causal_model() -> Any:
    """The unfitted structural causal model: empirical roots, non-negative linear mechanisms."""
    import networkx
    from sklearn.linear_model import LinearRegression

    gcm = _gcm()
    graph = networkx.DiGraph()
    graph.add_nodes_from([*resource_names(), *PHASES])
    for phase, resources in mechanism_parents().items():
        graph.add_edges_from((resource, phase) for resource in resources)
    model = gcm.InvertibleStructuralCausalModel(graph)
    for node in graph.nodes:
        if graph.in_degree(node) == 0:
            model.set_causal_mechanism(node, gcm.EmpiricalDistribution())
            continue
        regression = gcm.ml.SklearnRegressionModel(LinearRegression(positive=True))
        model.set_causal_mechanism(node, gcm.AdditiveNoiseModel(prediction_model=regression))
    return model


def _parent_order(model: Any, node: str) -> list[str]:
    """Columns of a mechanism: DoWhy sorts a node's parents by name."""
    from dowhy.graph import get_ordered_predecessors

    return list(get_ordered_predecessors(model.graph, node))


def _placebo(scores: Any, observed: Any, names: Iterable[str], seed: int) -> dict[str, float]:
    """Coefficient each parent gets after its values are permuted, the others kept."""
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(seed)
    found = {}
    for column, name in enumerate(names):
        shuffled = scores.copy()
        shuffled[:, column] = rng.permutation(shuffled[:, column])
        found[name] = float(LinearRegression(positive=True).fit(shuffled, observed).coef_[column])
    return found


def _gcm() -> Any:
    try:
        from dowhy import gcm
    except ImportError as error:
        raise MissingExtra(
            "fitting the causal mechanisms needs DoWhy", hint="pip install 'straggler-rca[causal]'"
        ) from error
    gcm.config.disable_progress_bars()
    return gcm
