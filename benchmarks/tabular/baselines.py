"""Rankings to compare with; each takes a case and returns its columns, best first."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd

import rca
from benchmarks.tabular.cases import Case

#: DoWhy's own defaults take a minute at thirty nodes.
DOWHY_SAMPLES, DOWHY_PERMUTATIONS = 500, 5
DOWHY_ROWS = 3
#: Larger graphs take it minutes per incident even so.
DOWHY_NODES = 30


def ours(case: Case) -> list[Hashable]:
    """`rca.rank_causes` with what a case comes with: tables and direction only."""
    return rca.rank_causes(case.normal, case.anomalous, worse=case.worse)["cause"].tolist()


def ours_informed(case: Case) -> list[Hashable]:
    """`rca.rank_causes` with graph and target too."""
    found = rca.rank_causes(case.normal, case.anomalous, case.graph, case.target, case.worse)
    return found["cause"].tolist()


def robust_scaler(case: Case) -> list[Hashable]:
    """Largest departure from the median in interquartile ranges over all anomalous rows, as BARO ranks [1]_.

    References
    ----------
    .. [1] Pham et al., "BARO: Robust Root Cause Analysis for Microservices via Multivariate Bayesian Online
       Change Point Detection", FSE 2024. A range of zero counts as one, as in scikit-learn's scaler.
    """
    before, after = numeric(case)
    middle = before.median()
    width = before.quantile(0.75) - before.quantile(0.25)
    away = ((after - middle) / width.where(width > 0, 1.0)).abs().max()
    return away.sort_values(ascending=False, kind="stable").index.tolist()


def chance(case: Case) -> list[Hashable]:
    """Columns in random order, the same for the same case: the floor."""
    after = numeric(case)[1]
    seed = int(pd.util.hash_pandas_object(after, index=False).sum())
    return list(np.random.default_rng(seed).permutation(after.columns))


def dowhy(case: Case) -> list[Hashable]:
    """Attribution of the last anomalous rows at the target by DoWhy, linear mechanisms, small budget."""
    from dowhy import gcm

    few = gcm.shapley.ShapleyConfig(num_permutations=DOWHY_PERMUTATIONS, n_jobs=1)
    return _attributed(case, num_distribution_samples=DOWHY_SAMPLES, shapley_config=few)


def dowhy_by_default(case: Case) -> list[Hashable]:
    """The same with as many samples and permutations as DoWhy takes by itself, on one core."""
    from dowhy import gcm

    return _attributed(case, shapley_config=gcm.shapley.ShapleyConfig(n_jobs=1))


def _attributed(case: Case, **budget: Any) -> list[Hashable]:
    from dowhy import gcm
    from sklearn.linear_model import LinearRegression

    gcm.config.disable_progress_bars()
    before, after = numeric(case)
    graph = case.graph.subgraph(before.columns).copy()
    model = gcm.InvertibleStructuralCausalModel(graph)
    for node in graph.nodes:
        mechanism = (
            gcm.AdditiveNoiseModel(gcm.ml.SklearnRegressionModel(LinearRegression()))
            if graph.in_degree(node)
            else gcm.EmpiricalDistribution()
        )
        model.set_causal_mechanism(node, mechanism)
    nodes = list(graph.nodes)
    gcm.fit(model, before[nodes].fillna(before[nodes].median()))
    found = gcm.attribute_anomalies(
        model,
        case.target,
        after[nodes].fillna(before[nodes].median()).tail(DOWHY_ROWS),
        **budget,
    )
    means = pd.Series({node: float(np.mean(values)) for node, values in found.items()})
    return means.sort_values(ascending=False, kind="stable").index.tolist()


def numeric(case: Case) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables without the clock."""
    drop = [name for name in ("time", "timestamp") if name in case.normal.columns]
    before = case.normal.drop(columns=drop).select_dtypes("number")
    return before, case.anomalous[before.columns]
