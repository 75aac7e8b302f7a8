"""One incident: two tables, facts about the system, and the right answers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import networkx
import pandas as pd

from rca.causal.ranking.rank import Worse


@dataclass(frozen=True)
class Case:
    """An incident with its true root cause.

    Attributes
    ----------
    family : str
        What the table of results is split by.
    normal, anomalous : DataFrame
    causes : frozenset
        Columns that are right answers; empty where nothing is wrong.
    services : dict
        Column -> service, for judging services; empty where columns have none.
    graph : networkx.DiGraph, optional
    target : hashable, optional
    worse : str
    overlaps : bool
        Whether other cases hold some of the same rows; they are not pooled, for too narrow an interval.
    """

    family: str
    normal: pd.DataFrame
    anomalous: pd.DataFrame
    causes: frozenset[Hashable]
    services: dict[Hashable, str] = field(default_factory=dict)
    graph: networkx.DiGraph | None = None
    target: Hashable | None = None
    worse: Worse = "higher"
    overlaps: bool = False
