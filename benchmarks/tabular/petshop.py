"""PetShop: injected performance issues of a shop of 41 components, with its call graph [1]_.

``<folder>/**/<scenario>/`` with ``graph.csv`` (caller by callee), ``noissue/metrics.csv`` and
``<split>/issue_<n>/`` with ``metrics.csv`` and ``target.json``. An issue has five rows of five minutes each.
Its columns are the components' values of the metric that was alerted on. Split ``train`` is for development.

References
----------
.. [1] Hardt et al., "The PetShop Dataset: Finding Causes of Performance Issues across Microservices", CLeaR
   2024.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import networkx
import pandas as pd

from benchmarks.tabular.cases import TabularCase

NORMAL = Path("noissue") / "metrics.csv"
#: Metrics of which less is worse; of all others, more.
LOWER_IS_WORSE = frozenset({"availability", "requests"})


def read_petshop(folder: Path) -> Iterator[TabularCase]:
    """All issues under a folder, in the order of their paths; scenarios without normal rows are left out."""
    for drawn in sorted(folder.rglob("graph.csv")):
        scenario = drawn.parent
        if not (scenario / NORMAL).exists():
            continue
        calls = networkx.from_pandas_adjacency(pd.read_csv(drawn, index_col=0), create_using=networkx.DiGraph)
        normal = _metrics(scenario / NORMAL)
        for described in sorted(scenario.glob("*/issue_*/target.json")):
            yield _case(described, normal, calls.reverse())


def _case(described: Path, normal: pd.DataFrame, graph: networkx.DiGraph) -> TabularCase:
    facts = json.loads(described.read_text())
    target, metric = facts["target"]["node"], facts["target"]["metric"]
    statistic = facts["target"]["agg"]
    usual, during = (
        table.xs((metric, statistic), axis=1, level=(1, 2)).dropna(axis=1, how="all")
        for table in (normal, _metrics(described.parent / "metrics.csv"))
    )
    components = usual.columns.intersection(during.columns)
    return TabularCase(
        family=f"PetShop, {described.parents[1].name}",
        normal=usual[components],
        anomalous=during[components],
        causes=frozenset({facts["root_cause"]["node"]}),
        graph=graph,
        target=target,
        worse="lower" if metric in LOWER_IS_WORSE else "higher",
    )


def _metrics(path: Path) -> pd.DataFrame:
    """Table with the column levels component, metric and statistic."""
    return pd.read_csv(path, header=[0, 1, 2], index_col=0)
