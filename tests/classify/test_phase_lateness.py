"""Phase timers show which of several suspects are late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rca.classify.components import Component
from rca.classify.phase_lateness import late_members
from rca.classify.suspects import Suspicion
from rca.diagnosis.bundle import baseline
from rca.features import RANK_FEATURES, WINDOW_FEATURES, extract
from rca.features.resource_evidence import resource_names
from tests.for_each import for_each

NODE, STAGE = Component("node", (4, 5, 6, 7), 0.8), Component("stage", (4, 5, 6, 7), 0.8)
#: A head that takes every fault for one of some ranks.
SOME: Any = SimpleNamespace(probabilities=lambda rows: np.tile([1.0, 0.0], (len(rows), 1)))


def features(*own_time_excess: float, noise: float = 0.01) -> Any:
    """Four idle ranks, and four with so much own work above peers, relative to the step."""
    rank = np.zeros((8, len(RANK_FEATURES)))
    rank[4:, RANK_FEATURES.index("own_time_excess")] = own_time_excess
    rank[4:, RANK_FEATURES.index("own_time_excess_z")] = np.array(own_time_excess) / noise
    window = np.zeros(len(WINDOW_FEATURES))
    window[WINDOW_FEATURES.index("communication_measured")] = 2.0
    evidence = SimpleNamespace(versus_peers=np.zeros((8, len(resource_names()))))
    return SimpleNamespace(
        rank=rank, window=window, evidence=evidence, work=SimpleNamespace(own=np.ones((8, 4)))
    )


@for_each(
    ("excess", "late"),
    [
        ((0.01, 0.34, 0.08, 0.01), [5]),
        ((0.0, 0.34, 0.2, -0.02), [5, 6]),
        ((0.3, 0.34, 0.3, 0.0), None),
        ((0.0, 0.34, 0.1, 0.0), None),
        ((0.0, 0.01, 0.0, 0.0), None),
        ((0.0, 0.34, np.nan, 0.0), None),
    ],
    ids=["one", "two", "most", "one between", "hardly", "one without timers"],
)
def test_the_late_are_told_where_it_is_plain(excess: tuple[float, ...], late: list[int] | None) -> None:
    assert late_members(NODE, features(*excess)) == late


def test_nobody_is_late_within_the_noise() -> None:
    assert late_members(NODE, features(0.0, 0.34, 0.0, 0.0, noise=0.12)) is None


def test_nobody_is_told_without_timers_of_the_exchange() -> None:
    untimed = features(0.0, 0.34, 0.0, 0.0)
    untimed.window[WINDOW_FEATURES.index("communication_measured")] = 0.0
    assert late_members(NODE, untimed) is None


@pytest.mark.parametrize(("units", "late"), [(0.9, [5]), (1.0, None)], ids=["idle", "busy"])
def test_a_busy_disk_is_the_nodes_whoever_is_late(units: float, late: list[int] | None) -> None:
    disk = features(0.0, 0.34, 0.0, 0.0)
    disk.evidence.versus_peers[6, resource_names().index("storage")] = units
    assert late_members(NODE, disk) == late


@pytest.mark.parametrize(("gain", "late"), [(0.3, [5]), (0.4, None)], ids=["the rank's", "its own"])
def test_a_stage_stays_one_that_costs_more_than_its_latest_rank(gain: float, late: list[int] | None) -> None:
    heavy = features(0.0, 0.34, 0.0, 0.0)
    heavy.rank[4:, RANK_FEATURES.index("gain_stage")] = gain
    assert late_members(STAGE, heavy) == late


@pytest.mark.parametrize(("late", "named"), [(0.05, (5,)), (0.0, (4, 5))], ids=["told", "not told"])
def test_a_suspected_node_is_its_late_rank(make_window, late: float, named: tuple[int, ...]) -> None:
    window = extract(make_window(late={5: late}, steps=slice(20, None)))
    per_rank = np.array([0.01, 0.01, 0.01, 0.01, 0.8, 0.99, 0.01, 0.01])
    suspicion = Suspicion(baseline().classifier.heads | {"scope": SOME}, 0.3, window, per_rank)
    assert [each.ranks for each in suspicion.of_a_slow_job()] == [named]


@pytest.mark.parametrize(("late", "named"), [(0.05, [(5,)]), (0.0, [(4, 5, 6, 7)])], ids=["told", "not told"])
def test_a_suspected_stage_is_its_late_rank(make_window, late: float, named: list[tuple[int, ...]]) -> None:
    shape = {"data": 4, "pipeline": 2}
    window = extract(make_window(late={5: late}, steps=slice(20, None), parallelism=shape, ranks_per_node=2))
    per_rank = np.where(np.arange(8) < 4, 0.01, 0.9)
    suspicion = Suspicion(baseline().classifier.heads, 0.3, window, per_rank)
    assert [each.ranks for each in suspicion.of_a_slow_job()] == named


def test_whoever_is_late_and_was_never_suspected_does_not_stand_for_the_others(make_window) -> None:
    window = extract(make_window(late={5: 0.05}, steps=slice(20, None), ranks_per_node=4))
    per_rank = np.array([0.01, 0.01, 0.01, 0.01, 0.9, 0.2, 0.9, 0.9])
    suspicion = Suspicion(baseline().classifier.heads, 0.3, window, per_rank)
    assert [each.ranks for each in suspicion.of_a_slow_job()] == [(4, 5, 6, 7)]


def test_the_latest_has_to_be_late_beyond_noise_himself() -> None:
    other = features(0.0, 0.34, 0.0, 0.0)
    column = RANK_FEATURES.index("own_time_excess_z")
    other.rank[4:, column] = [9.0, 1.0, 0.0, 0.0]
    assert late_members(NODE, other) is None
