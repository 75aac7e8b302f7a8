"""One incident: two tables, facts about the system, and the right answers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import networkx
import pandas as pd

from rca.causal.ranking.rank import Worse


@dataclass(frozen=True)
class TabularCase:
    """An incident with its true root cause.

    Attributes
    ----------
    family : str
        What the table of results is split by.
    normal, anomalous : DataFrame
    causes : frozenset
        Columns that are right answers; empty where nothing is wrong.
    graph : networkx.DiGraph, optional
    target : hashable, optional
    worse : str
    """

    family: str
    normal: pd.DataFrame
    anomalous: pd.DataFrame
    causes: frozenset[Hashable]
    graph: networkx.DiGraph | None = None
    target: Hashable | None = None
    worse: Worse = "higher"
