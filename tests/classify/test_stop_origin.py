"""A rank that died did not hang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rca.classify.classifier import refined_stop_cause
from rca.classify.components import Component

CAUSES = {"process_crash": 0.2, "hang": 0.8}


def features(**known: list[int]) -> Any:
    """Endings in which nothing is known but what is given per rank."""
    found = {name: np.isin(np.arange(6), known.get(name, [])) for name in ("origin", "died")}
    return SimpleNamespace(job_end=SimpleNamespace(**found))


@pytest.mark.parametrize("known", [{"died": [2]}, {"origin": [2, 3]}], ids=["it died", "several began it"])
def test_ranks_that_ended_crashed(known: dict[str, list[int]]) -> None:
    answer = refined_stop_cause(Component("node", (2, 3), 0.9), CAUSES, features(**known))
    assert answer["process_crash"] > 0.9
    assert sum(answer.values()) == pytest.approx(1.0)


def test_otherwise_the_beliefs_stay() -> None:
    assert refined_stop_cause(Component("rank", (2,), 0.9), CAUSES, features(origin=[2])) == CAUSES
