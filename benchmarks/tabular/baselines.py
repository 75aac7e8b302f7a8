"""Rankings to compare with; each takes a case and returns its columns, best first."""

from __future__ import annotations

from collections.abc import Hashable

import pandas as pd

import rca
from benchmarks.tabular.cases import Case


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


def numeric(case: Case) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables without the clock."""
    drop = [name for name in ("time", "timestamp") if name in case.normal.columns]
    before = case.normal.drop(columns=drop).select_dtypes("number")
    return before, case.anomalous[before.columns]
