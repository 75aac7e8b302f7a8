"""What timers tell: who of several suspects is late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rca.classify.suspicion import Suspicion
from rca.classify.timers import late_members
from rca.diagnosis.bundle import baseline
from rca.features import RANK_FEATURES, WINDOW_FEATURES, extract

NODE = (4, 5, 6, 7)


def features(*own_excess: float, measured: float = 2.0) -> Any:
    """A node's ranks with so much own work above peers, relative to the step; four idle ones before."""
    rank = np.zeros((8, len(RANK_FEATURES)))
    rank[4:, RANK_FEATURES.index("own_excess")] = own_excess
    window = np.zeros(len(WINDOW_FEATURES))
    window[WINDOW_FEATURES.index("communication_measured")] = measured
    return SimpleNamespace(rank=rank, window=window, work=SimpleNamespace(own=np.ones((8, 4))))


@pytest.mark.parametrize(
    ("own_excess", "late"),
    [
        ((0.01, 0.34, 0.01, 0.01), [5]),
        ((0.0, 0.34, 0.3, -0.02), [5, 6]),
        ((0.3, 0.34, 0.3, 0.31), None),
        ((0.0, 0.34, 0.1, 0.0), None),
        ((0.0, 0.04, 0.0, 0.0), None),
        ((0.0, 0.34, np.nan, 0.0), None),
    ],
    ids=["one", "two", "all", "one between", "hardly", "one without timers"],
)
def test_the_late_are_told_where_it_is_plain(own_excess: tuple[float, ...], late: list[int] | None) -> None:
    assert late_members(NODE, features(*own_excess)) == late


def test_nobody_is_told_without_timers_of_the_exchange() -> None:
    assert late_members(NODE, features(0.0, 0.34, 0.0, 0.0, measured=0.0)) is None


@pytest.mark.parametrize(("late", "named"), [(0.05, (5,)), (0.0, (4, 5))], ids=["told", "not told"])
def test_a_suspected_node_is_its_late_rank(make_window, late: float, named: tuple[int, ...]) -> None:
    window = extract(make_window(late={5: late}, steps=slice(20, None)))
    per_rank = np.array([0.01, 0.01, 0.01, 0.01, 0.8, 0.99, 0.01, 0.01])
    suspicion = Suspicion(baseline().classifier.heads, 0.3, window, per_rank)
    assert [each.ranks for each in suspicion.of_a_slow_job()] == [named]
