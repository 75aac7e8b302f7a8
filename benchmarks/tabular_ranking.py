"""`rca.rank_causes` and other methods on incidents that took no part in its calibration.

``python -m benchmarks tabular`` runs the held-out synthetic families; ``--public FOLDER`` runs PetShop. AC@k:
share of incidents with a right answer among the first k; Avg@5: mean of AC@1 to AC@5.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.tabular import pipelines, services
from benchmarks.tabular.accuracy import hits, with_interval
from benchmarks.tabular.baselines import ours, ours_informed, robust_scaler
from benchmarks.tabular.cases import Case
from benchmarks.tabular.petshop import read_petshop

Ranking = Callable[[Case], list[Hashable]]
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
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.family, []).append(case)
    if len(groups) > 1:
        groups["all"] = cases
    console = Console(width=140)
    for family, members in groups.items():
        console.print(_table(family, members))


def held_out(n_cases: int, seed: int) -> list[Case]:
    """The same number of incidents of every synthetic family."""
    rng = np.random.default_rng([seed, 1])
    return [draw(rng) for draw in FAMILIES.values() for _ in range(n_cases)]


def _table(family: str, cases: list[Case]) -> Table:
    columns = cases[0].normal.shape[1]
    table = Table(
        title=f"{family}: {len(cases)} incidents, {columns} columns in the first", title_justify="left"
    )
    table.add_column("ranking")
    for name in ("AC@1", "AC@3", "Avg@5", "ms per case"):
        table.add_column(name, justify="right")
    for name, rank in RANKINGS.items():
        found, taken = [], []
        for case in cases:
            began = time.perf_counter()
            order = rank(case)
            taken.append(time.perf_counter() - began)
            found.append(hits(case, order))
        judged = np.array(found)
        shares = [with_interval(values) for values in (judged[:, 0], judged[:, 2], judged.mean(axis=1))]
        table.add_row(name, *shares, f"{1e3 * float(np.median(taken)):.1f}")
    return table


if __name__ == "__main__":
    main()
