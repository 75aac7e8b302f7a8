"""Suspects of a slow job: what timers show and what machines show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rca.classify.components import Component
from rca.classify.suspects import MACHINE_EVIDENCE, Suspicion
from rca.features import WINDOW_FEATURES
from rca.features.resource_evidence import resource_names

TIMED, UNTIMED, OTHER = (Component("rank", (rank,), 0.9) for rank in (2, 5, 6))


def features(evidence: float) -> Any:
    """Ranks 5 and 6 have no phase timings; the machine of rank 5 shows so much of waiting for a CPU."""
    peers = np.zeros((8, len(resource_names())))
    peers[5, resource_names().index("cpu_wait")] = evidence
    own = np.ones((8, 4))
    own[5:7] = np.nan
    window = np.zeros(len(WINDOW_FEATURES))
    window[WINDOW_FEATURES.index("communication_measured")] = 2.0
    return SimpleNamespace(
        window=window, work=SimpleNamespace(own=own), evidence=SimpleNamespace(versus_peers=peers)
    )


@pytest.mark.parametrize(
    ("evidence", "kept"),
    [(MACHINE_EVIDENCE, [TIMED, UNTIMED]), (0.9 * MACHINE_EVIDENCE, [TIMED, UNTIMED, OTHER])],
    ids=["shown", "not shown"],
)
def test_machines_decide_between_untimed_suspects_only(evidence: float, kept: list[Component]) -> None:
    suspicion = Suspicion({}, 0.5, features(evidence), np.zeros(8))
    assert suspicion._timed_or_shown([TIMED, UNTIMED, OTHER]) == kept
