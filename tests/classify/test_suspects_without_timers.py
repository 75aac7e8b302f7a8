"""Without timers, several ranks are suspects together if their machines show why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rca.classify.suspects import Suspicion
from rca.window.job import Job, RankPlace

PLACES = tuple(RankPlace(rank=rank, node=f"n{rank // 2}") for rank in range(4))
TOPOLOGY = Job(job_id="j", world_size=4, ranks=PLACES, start=0.0, end=1.0).topology


def head(chances: list[float]) -> Any:
    """A head that gives each row these chances."""
    return SimpleNamespace(probabilities=lambda rows: np.tile(chances, (len(rows), 1)))


@pytest.mark.parametrize(
    ("late", "clocks", "found"),
    [
        ([0, 1], [3.0, 3.0], [(0, 1)]),
        ([0, 1], [3.0, 0.0], []),
        ([0], [0.0, 0.0], [(0,)]),
    ],
    ids=["both clocks", "one clock", "one rank"],
)
def test_a_node_needs_signals_on_all_its_ranks(
    late: list[int], clocks: list[float], found: list[tuple[int, ...]]
) -> None:
    scores = np.zeros((4, 2))
    scores[:2, 0] = clocks
    features: Any = SimpleNamespace(
        comparison=SimpleNamespace(slowed=None),
        work=SimpleNamespace(own=np.full((4, 3), np.nan)),
        evidence=SimpleNamespace(versus_peers=scores),
        topology=TOPOLOGY,
        rank=np.zeros((4, 1)),
        window=np.zeros(200),
    )
    per_rank = np.where(np.isin(np.arange(4), late), 0.9, 0.01)
    suspicion = Suspicion({"scope": head([0.9, 0.1]), "type": head([1.0])}, 0.5, features, per_rank)
    assert [each.ranks for each in suspicion.of_a_slow_job()] == found
