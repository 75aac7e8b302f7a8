"""`rca.rank_causes` and other methods on incidents that took no part in its calibration.

``python -m benchmarks tabular`` runs the held-out synthetic families; ``--public FOLDER`` runs PetShop. AC@k:
share of incidents with a right answer among the first k; Avg@5: mean of AC@1 to AC@5.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

import rca
from benchmarks.measure import print_table
from benchmarks.tabular import pipelines, services
from benchmarks.tabular.cases import TabularCase
from benchmarks.tabular.petshop import read_petshop
from rca.lab.evaluation.intervals import bootstrap
from rca.lab.evaluation.tables import cell

#: Depths of Avg@5.
DEPTHS = (1, 2, 3, 4, 5)


def ours(case: TabularCase) -> list[Hashable]:
    """`rca.rank_causes` with what a case comes with: tables and direction only."""
    return rca.rank_causes(case.normal, case.anomalous, worse=case.worse)["cause"].tolist()


def ours_informed(case: TabularCase) -> list[Hashable]:
    """`rca.rank_causes` with graph and target too."""
    found = rca.rank_causes(case.normal, case.anomalous, case.graph, case.target, case.worse)
    return found["cause"].tolist()


def robust_scaler(case: TabularCase) -> list[Hashable]:
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


def numeric(case: TabularCase) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables without the clock."""
    drop = [name for name in ("time", "timestamp") if name in case.normal.columns]
    before = case.normal.drop(columns=drop).select_dtypes("number")
    return before, case.anomalous[before.columns]


def hits(case: TabularCase, ranking: Sequence[Hashable]) -> np.ndarray:
    """Whether a right column is among the first 1, 2, ... 5."""
    return np.array([bool(case.causes & set(ranking[:depth])) for depth in DEPTHS], dtype=float)


Ranking = Callable[[TabularCase], list[Hashable]]
RANKINGS: dict[str, Ranking] = {
    "rca.rank_causes": ours,
    "rca.rank_causes, graph and target": ours_informed,
    "robust scaler": robust_scaler,
}
FAMILIES = {"services": services.draw, "latencies": services.draw_latencies, "pipelines": pipelines.draw}


def main() -> None:
    """Rank, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100, help="incidents per synthetic family")
    parser.add_argument("--public", type=Path, metavar="FOLDER", help="PetShop's captures")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    cases = list(read_petshop(given.public)) if given.public else held_out(given.cases, given.seed)
    if not cases:
        raise SystemExit(
            f"{given.public}: no issue of PetShop; expected */graph.csv and */issue_*/target.json"
        )
    groups: dict[str, list[TabularCase]] = {}
    for case in cases:
        groups.setdefault(case.family, []).append(case)
    if len(groups) > 1:
        groups["all"] = cases
    for family, members in groups.items():
        _print_scores(family, members)


def held_out(n_cases: int, seed: int) -> list[TabularCase]:
    """The same number of incidents of every synthetic family."""
    rng = np.random.default_rng([seed, 1])
    return [draw(rng) for draw in FAMILIES.values() for _ in range(n_cases)]


def _print_scores(family: str, cases: list[TabularCase]) -> None:
    rows = []
    for name, rank in RANKINGS.items():
        found, taken = [], []
        for case in cases:
            began = time.perf_counter()
            order = rank(case)
            taken.append(time.perf_counter() - began)
            found.append(hits(case, order))
        judged = np.array(found)
        scores = (judged[:, 0], judged[:, 2], judged.mean(axis=1))
        shares = [cell(bootstrap(each, np.random.default_rng(0))) for each in scores]
        rows.append((name, *shares, f"{1e3 * float(np.median(taken)):.1f}"))
    title = f"{family}: {len(cases)} incidents, {cases[0].normal.shape[1]} columns in the first"
    print_table(title, ("ranking", "AC@1", "AC@3", "Avg@5", "ms per case"), rows)


if __name__ == "__main__":
    main()
