"""Slowness of no catalogue cause has no type of its own and leaves the rest of the belief to the others."""

from __future__ import annotations

import pytest

from rca.classify.beliefs import combine
from rca.classify.link_evidence import between_machines
from rca.window.causes import UNKNOWN


def test_the_causes_share_what_the_unknown_leaves() -> None:
    types = {"compute": 0.9, "host": 0.1}
    causes = {"gpu_throttling": 0.2, "gpu_contention": 0.1, "cpu_contention": 0.1, UNKNOWN: 0.6}
    found = combine(types, causes)
    assert next(iter(found)) == UNKNOWN
    assert found[UNKNOWN] == 0.6
    assert found["gpu_throttling"] == pytest.approx(0.4 * 0.9 * 2 / 3)
    assert sum(found.values()) == pytest.approx(1.0)


def test_heads_that_know_no_unknown_give_it_no_belief() -> None:
    assert UNKNOWN not in combine({"compute": 1.0}, {"gpu_throttling": 0.7, "gpu_contention": 0.3})


def test_slow_collectives_are_between_causes_of_links_alone() -> None:
    beliefs = {UNKNOWN: 0.5, "gpu_throttling": 0.3, "network_congestion": 0.15, "nvlink_degradation": 0.05}
    assert between_machines(beliefs) == pytest.approx(
        {"network_congestion": 0.75, "nvlink_degradation": 0.25}
    )
    assert between_machines({UNKNOWN: 1.0}) == {}
