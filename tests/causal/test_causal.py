import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.causal import Mechanisms, attribute, attribution
from rca.causal.attribution import JobWork, RemovedCause, shapley
from rca.causal.graph import PHASES, mechanism_parents
from rca.causal.responsibility import UNMEASURED, responsibilities
from rca.errors import BundleError
from rca.features.resource_evidence import ADDED_RESOURCES, resource_names
from tests.for_each import for_each


def step_of(work):
    return work.own.max(axis=0) + work.transfer


def linear_mechanisms():
    coefficients = np.zeros((len(PHASES), len(resource_names())))
    for row, parents in enumerate(mechanism_parents().values()):
        coefficients[row, [resource_names().index(name) for name in parents]] = 0.1
    return Mechanisms(resource_names(), coefficients, np.zeros(len(PHASES)), np.ones(len(PHASES)))


@given(st.integers(1, 5), st.integers(0, 2**31))
def test_shapley_shares_add_up_and_respect_symmetry(n_players, seed):
    values = np.random.default_rng(seed).normal(size=2**n_players)
    shares = shapley(values)
    assert shares.sum() == pytest.approx(values[-1] - values[0])


def test_shapley_of_an_additive_game_is_each_players_own_worth():
    worth = np.array([1.0, 2.0, 4.0])
    values = np.array([sum(worth[i] for i in range(3) if index >> i & 1) for index in range(8)])
    assert shapley(values) == pytest.approx(worth)


def test_two_ranks_equally_late_share_the_cost_and_neither_alone_saves_anything():
    own = np.full((4, 10), 1.0)
    own[[1, 2]] += 0.5
    off = np.full((1, 10), 0.5)
    removals = [
        RemovedCause("runtime_gc", (1,), off, np.zeros(10)),
        RemovedCause("runtime_gc", (2,), off, np.zeros(10)),
    ]
    found = attribute(JobWork(own, np.zeros(10)), np.ones(10), removals, step_of)
    assert found.seconds == pytest.approx([0.25, 0.25])
    assert found.alone == pytest.approx([0.0, 0.0])
    assert found.unexplained == pytest.approx(0.0)


def test_what_no_removal_explains_is_left_as_unexplained():
    own = np.full((4, 10), 1.0)
    own[1] += 0.5
    removal = RemovedCause("runtime_gc", (1,), np.full((1, 10), 0.2), np.zeros(10))
    found = attribute(JobWork(own, np.zeros(10)), np.ones(10), [removal], step_of)
    assert found.seconds[0] == pytest.approx(0.2)
    assert found.unexplained == pytest.approx(0.3)
    assert found.slowdown == pytest.approx(0.5)


@given(st.integers(0, 2**31))
def test_parts_always_add_up_to_the_slowdown(seed):
    rng = np.random.default_rng(seed)
    own = rng.gamma(5.0, 0.1, (5, 12))
    removals = [
        RemovedCause("a", (int(rank),), rng.uniform(0, 0.3, (1, 12)), rng.uniform(0, 0.05, 12))
        for rank in rng.integers(0, 5, 3)
    ]
    ideal = np.quantile(own, 0.3, axis=0)
    found = attribute(JobWork(own, np.full(12, 0.1)), ideal, removals, step_of)
    assert found.seconds.sum() + found.unexplained == pytest.approx(found.slowdown)
    assert (found.seconds >= -1e-12).all()
    assert (found.intervals[:, 0] <= found.seconds + 1e-9).all()


def test_intervals_are_reproducible():
    own = np.random.default_rng(0).gamma(5.0, 0.1, (5, 30))
    removal = RemovedCause("a", (int(own.mean(axis=1).argmax()),), np.full((1, 30), 0.1), np.zeros(30))
    work = JobWork(own, np.zeros(30))
    first, second = (attribute(work, own.min(axis=0), [removal], step_of) for _ in range(2))
    assert (first.intervals == second.intervals).all()


def test_a_cause_without_an_arrow_to_the_phase_explains_nothing_there():
    weights = responsibilities({"gpu_throttling": 0.9}, {"data_loading": 0.2})
    assert weights["gpu_throttling"] == {}


def test_untimed_time_is_not_charged_to_a_cause_with_measured_phases():
    """Loading was timed and is not longer, so the longer time is not the loader's."""
    beliefs = {"data_loader_stall": 0.5, "runtime_gc": 0.3}
    excess = {"data_loading": 0.0, UNMEASURED: 0.2}
    timed = responsibilities(beliefs, excess, {"data_loading"})
    untimed = responsibilities(beliefs, {UNMEASURED: 0.2}, {"forward"})
    assert UNMEASURED not in timed["data_loader_stall"]
    assert timed["runtime_gc"][UNMEASURED] > 0
    assert untimed["data_loader_stall"][UNMEASURED] > 0


def test_mechanisms_survive_their_document_and_refuse_a_foreign_arrow():
    mechanisms = linear_mechanisms()
    document = mechanisms.to_document()
    assert (Mechanisms.from_document(document).coefficients == mechanisms.coefficients).all()
    row, column = PHASES.index("data_loading"), resource_names().index("gpu_clock")
    document["coefficients"][row][column] = 0.5
    with pytest.raises(BundleError, match="gpu_clock has no arrow to data_loading"):
        Mechanisms.from_document(document)


@for_each(
    ("resources", "message"),
    [
        (resource_names()[1:], f"{resource_names()[0]} missing$"),
        ((*resource_names(), "luck"), "luck not measured by this version$"),
        (resource_names()[::-1], "their order differs, or one is repeated$"),
        (None, "is not a list of names$"),
        ([7], "is not a list of names$"),
    ],
    ids=["fewer", "more", "other order", "null", "numbers"],
)
def test_resources_of_another_version_are_refused(resources: Sequence[Any] | None, message: str) -> None:
    document = linear_mechanisms().to_document()
    document["resources"] = None if resources is None else list(resources)
    with pytest.raises(BundleError, match=message) as refused:
        Mechanisms.from_document(document)
    assert "rca train" in refused.value.hint


def test_a_bundle_without_the_resources_added_later_gives_them_no_effect() -> None:
    document, before = linear_mechanisms().to_document(), resource_names()[: -len(ADDED_RESOURCES)]
    document["resources"] = list(before)
    document["coefficients"] = [row[: len(before)] for row in document["coefficients"]]
    mechanisms = Mechanisms.from_document(document)
    assert (mechanisms.resources, mechanisms.absent) == (resource_names(), ADDED_RESOURCES)
    assert mechanisms.coefficients[:, : len(before)].tolist() == document["coefficients"]
    assert not mechanisms.coefficients[:, len(before) :].any()
    assert mechanisms.effects(np.ones(len(resource_names()))).shape == (len(PHASES), len(resource_names()))


@pytest.mark.parametrize("phase", ["forward", "data_loading"])
def test_untimed_copies_may_be_where_inputs_are_loaded_or_used(phase: str) -> None:
    beliefs, others = {"pcie_degradation": 0.9}, {"forward", "data_loading", "transfer"}

    def weights(phase: str, measured: set[str]) -> dict[str, float]:
        return responsibilities(beliefs, {phase: 0.2}, measured)["pcie_degradation"]

    assert weights(phase, others)[phase] == pytest.approx(0.9)
    assert phase not in weights(phase, others | {"host_to_device"})
    assert "optimizer" not in weights("optimizer", {"transfer"})


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_an_untimed_exchange_is_in_phases_that_communicate(phase: str) -> None:
    beliefs = {"nvlink_degradation": 0.9}
    untimed = responsibilities(beliefs, {phase: 0.2}, {phase})
    timed = responsibilities(beliefs, {phase: 0.2}, {phase, "transfer"})
    assert untimed["nvlink_degradation"][phase] == pytest.approx(0.9)
    assert phase not in timed["nvlink_degradation"]


def test_resampled_means_are_the_same_in_blocks_and_take_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(0).random((3, 40_000))
    tracemalloc.start()
    in_blocks = attribution.resampled_means(values, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The starts of all blocks, and the draws of a few rounds.
    assert peak < 64 << 20
    monkeypatch.setattr(attribution, "MAX_DRAWN", 10**9)
    assert np.array_equal(attribution.resampled_means(values, 1), in_blocks)
