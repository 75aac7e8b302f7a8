"""`rca.rank_causes` and other methods on incidents that took no part in its calibration.

``python -m benchmarks tabular`` runs the held-out synthetic families; ``--public FOLDER`` public captures in
the layout of RCAEval or PetShop, and DoWhy's microservice example. AC@k: share of incidents with a right
answer among the first k; Avg@5: mean of AC@1 to AC@5.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.tabular import pipelines, services
from benchmarks.tabular.accuracy import column_hits, service_hits, with_interval
from benchmarks.tabular.baselines import (
    DOWHY_NODES,
    chance,
    dowhy,
    dowhy_by_default,
    ours,
    ours_informed,
    robust_scaler,
)
from benchmarks.tabular.cases import Case
from benchmarks.tabular.petshop import read_petshop
from benchmarks.tabular.public import read_cases
from benchmarks.tabular.shop import NORMAL, read_shop

Ranking = Callable[[Case], list[Hashable]]
RANKINGS: dict[str, Ranking] = {
    "rca.rank_causes": ours,
    "rca.rank_causes, graph and target": ours_informed,
    "robust scaler": robust_scaler,
    "DoWhy attribution, graph and target": dowhy,
    "DoWhy's defaults, graph and target": dowhy_by_default,
    "random order": chance,
}
NEEDS_GRAPH = frozenset(name for name in RANKINGS if name.endswith("graph and target"))
FAMILIES = {"services": services.draw, "latencies": services.draw_latencies, "pipelines": pipelines.draw}


def main() -> None:
    """Rank, judge, print."""
    given = _arguments().parse_args()
    cases = _public(given.public) if given.public else held_out(given.cases, given.seed)
    console = Console(width=140)
    if not cases:
        raise SystemExit(
            f"no inject_time.txt next to a data.csv, no issue of PetShop and no {NORMAL} under {given.public}"
        )
    judge = service_hits if given.public else column_hits
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.family, []).append(case)
    for family, members in groups.items():
        console.print(
            _table(family, members, {dowhy: given.dowhy, dowhy_by_default: given.by_default}, judge)
        )
    pooled = [case for case in cases if not case.overlaps]
    if len({case.family for case in pooled}) > 1:
        console.print(_table("all", pooled, {dowhy: 0, dowhy_by_default: 0}, judge))


def _public(folder: Path) -> list[Case]:
    return [*read_cases(folder), *read_petshop(folder), *read_shop(folder)]


def held_out(n_cases: int, seed: int) -> list[Case]:
    """The same number of incidents of every synthetic family."""
    rng = np.random.default_rng([seed, 1])
    return [draw(rng) for draw in FAMILIES.values() for _ in range(n_cases)]


def _table(
    family: str,
    cases: list[Case],
    at_most: dict[Ranking, int],
    judge: Callable[[Case, list[Hashable]], np.ndarray],
) -> Table:
    columns = cases[0].normal.shape[1]
    table = Table(
        title=f"{family}: {len(cases)} incidents, {columns} columns in the first", title_justify="left"
    )
    table.add_column("ranking")
    for name in ("cases", "AC@1", "AC@3", "Avg@5", "ms per case"):
        table.add_column(name, justify="right")
    for name, rank in RANKINGS.items():
        usable = [case for case in cases if name not in NEEDS_GRAPH or case.graph is not None]
        if rank in at_most:
            usable = [case for case in usable if len(case.graph or ()) <= DOWHY_NODES][: at_most[rank]]
        if usable:
            table.add_row(name, *_row(rank, usable, judge))
    return table


def _row(
    rank: Ranking, cases: Iterable[Case], judge: Callable[[Case, list[Hashable]], np.ndarray]
) -> list[str]:
    hits, taken = [], []
    for case in cases:
        began = time.perf_counter()
        order = rank(case)
        taken.append(time.perf_counter() - began)
        hits.append(judge(case, order))
    found = np.array(hits)
    told = [with_interval(values) for values in (found[:, 0], found[:, 2], found.mean(axis=1))]
    return [str(len(hits)), *told, f"{1e3 * float(np.median(taken)):.1f}"]


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100, help="incidents per synthetic family")
    parser.add_argument("--dowhy", type=int, default=0, metavar="N", help="let DoWhy judge N cases per table")
    parser.add_argument(
        "--public", type=Path, metavar="FOLDER", help="captures of RCAEval or PetShop, or DoWhy's example"
    )
    parser.add_argument(
        "--by-default",
        type=int,
        default=0,
        metavar="N",
        help="and with its own budget, 13 s and more per case",
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
