"""A second fault that the first one hides is found; answers about a single fault do not change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import rca
from rca.classify.classifier import Classification, Suspect
from rca.classify.components import Component
from rca.diagnosis import Diagnosis, hidden_faults, pipeline
from rca.diagnosis.bundle import baseline
from rca.diagnosis.hidden_faults import _at_the_same_time
from rca.features import FeatureSet, extract
from rca.features.slow_segment import Segment
from rca.lab.simulation import Fault, SimulationScenario, simulate
from rca.window import Window
from rca.window.job import Parallelism
from tests.diagnosis.simulated_jobs import WORKLOAD, job
from tests.for_each import for_each

ALL = tuple(range(16))
HOT = Fault(cause="gpu_throttling", ranks=(3,), severity=0.7)
LATER = Fault(cause="gpu_throttling", ranks=(3,), first_step=30, severity=0.7)


def two_faults(first: Fault, second: Fault, seed: int, **changes: Any) -> SimulationScenario:
    return job(first, second, seed=seed, **({"workload": WORKLOAD} | changes))


UNEQUAL = two_faults(HOT, Fault(cause="sequence_length_imbalance", ranks=ALL, severity=0.4), 1)
COLLECTING = two_faults(LATER, Fault(cause="runtime_gc", ranks=ALL, severity=0.5), 1)
HEAVY_STAGE = two_faults(
    LATER,
    Fault(cause="stage_imbalance", ranks=ALL[:8], severity=0.5),
    5,
    parallelism=Parallelism(data=8, pipeline=2),
    workload=WORKLOAD.model_copy(update={"microbatches": 4}),
)


@pytest.fixture
def without_asking_again(monkeypatch: pytest.MonkeyPatch) -> Callable[[Window], Diagnosis]:
    def answer(window: Window) -> Diagnosis:
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "with_hidden_faults", lambda found, *_: found)
            return rca.diagnose(window)

    return answer


def result(diagnosis: Diagnosis) -> set[tuple[str, int]]:
    """Causes that are likely, and how many ranks each has."""
    return {(cause.cause, len(cause.ranks)) for cause in diagnosis.causes if cause.probability >= 0.5}


@pytest.mark.parametrize(
    ("scenario", "second"),
    [
        (UNEQUAL, ("sequence_length_imbalance", 16)),
        (COLLECTING, ("runtime_gc", 16)),
        (HEAVY_STAGE, ("stage_imbalance", 8)),
    ],
    ids=["unequal sequences", "collections", "a heavy stage"],
)
def test_a_hidden_fault_is_told_beside_the_first(
    scenario: SimulationScenario, second: tuple[str, int], without_asking_again: Callable[[Window], Diagnosis]
) -> None:
    window = simulate(scenario).window
    assert result(without_asking_again(window)) == {("gpu_throttling", 1)}
    found = rca.diagnose(window)
    assert result(found) == {("gpu_throttling", 1), second}
    assert not found.abstained
    priced = sum(cause.seconds_per_step for cause in found.causes)
    assert priced + found.unexplained_seconds_per_step == pytest.approx(found.slowdown.seconds_per_step)
    for cause in found.causes:
        assert cause.interval[0] <= cause.seconds_per_step <= cause.interval[1]


def test_the_first_keeps_its_price_beside_what_everybody_suffers(
    without_asking_again: Callable[[Window], Diagnosis],
) -> None:
    """The hot rank is above its own past by both, and pays for its own alone."""
    labelled = simulate(COLLECTING)
    before, after = without_asking_again(labelled.window), rca.diagnose(labelled.window)
    (truth,) = (each for each in labelled.label["causes"] if each["cause"] == "gpu_throttling")
    for diagnosis in (before, after):
        (hot,) = (cause for cause in diagnosis.causes if cause.cause == "gpu_throttling")
        assert hot.seconds_per_step == pytest.approx(truth["seconds_per_step"], rel=0.15)


def test_of_many_ranks_the_first_still_costs_most() -> None:
    """One of 64 ranks is always above its own past by chance; that is not what collecting costs."""
    all_ranks = Fault(cause="runtime_gc", ranks=tuple(range(64)), severity=0.5)
    scenario = two_faults(LATER, all_ranks, 1, parallelism=Parallelism(data=64), n_steps=200)
    labelled = simulate(scenario)
    causes = {each["cause"]: each["seconds_per_step"] for each in labelled.label["causes"]}
    found = {each.cause: each.seconds_per_step for each in rca.diagnose(labelled.window).causes}
    assert found["gpu_throttling"] == pytest.approx(causes["gpu_throttling"], rel=0.15)
    assert found["runtime_gc"] < 2 * causes["runtime_gc"]


@for_each("cause", ["gpu_throttling", "cpu_contention", "pcie_degradation", "memory_pressure"])
@for_each("seed", [1, 2])
def test_one_fault_is_told_as_before(
    cause: str, seed: int, without_asking_again: Callable[[Window], Diagnosis]
) -> None:
    alone = Fault(cause=cause, ranks=(12,), first_step=20, severity=0.6)
    window = simulate(job(alone, seed=seed, workload=WORKLOAD)).window
    assert result(rca.diagnose(window)) == result(without_asking_again(window))


@for_each(
    ("slow", "left", "same"),
    [
        ((52, 99), (8, 44), False),
        ((40, 99), (30, 59), True),
        ((40, 99), (10, 43), False),
        ((50, 55), (0, 99), True),
        ((0, 99), (50, 55), True),
    ],
)
def test_what_acts_at_another_time_is_left_to_the_second_look(
    slow: tuple[int, int], left: tuple[int, int], same: bool
) -> None:
    def slow_in(first: int, last: int) -> FeatureSet:
        segment = Segment(first, last, 1.0, 1.0, last - first == 99)
        work, comparison = SimpleNamespace(steps=np.arange(100)), SimpleNamespace(segment=segment)
        return cast("FeatureSet", SimpleNamespace(work=work, comparison=comparison))

    assert _at_the_same_time(slow_in(*slow), slow_in(*left)) is same


def suspect(cause: str, *ranks: int, scope: Any = "rank", chance: float = 0.9) -> Suspect:
    return Suspect(Component(scope, ranks, 0.9), {}, {}, {cause: chance})


def wanted(monkeypatch: pytest.MonkeyPatch, window: Window, *suspects: Suspect) -> bool:
    """Whether the job is asked again, given who is suspected; with what is still slow left out of it."""
    counterfactual: list[object] = []
    monkeypatch.setattr(
        hidden_faults.Counterfactual, "is_still_slow", lambda self: counterfactual.append(self)
    )
    features = extract(window)
    found = Classification("fail_slow", {}, True, list(suspects), np.zeros(8), 0.9)
    assert hidden_faults.with_hidden_faults(found, window, features, baseline(), None) is found
    return bool(counterfactual)


@pytest.mark.parametrize(
    ("columns", "ranks", "again"),
    [
        (None, (5,), True),
        (None, tuple(range(8)), False),
        (None, (), False),
        (("rank", "step", "start_time", "step_seconds"), (5,), False),
    ],
    ids=["one rank", "all_ranks", "nobody", "whole steps"],
)
def test_a_job_is_asked_again_where_timers_tell_who_is_late(
    make_window, monkeypatch: pytest.MonkeyPatch, columns, ranks: tuple[int, ...], again: bool
) -> None:
    window = make_window(8, 60, late={5: 0.05}, steps=slice(30, None), columns=columns)
    suspects = [suspect("gpu_throttling", *ranks)] if ranks else []
    assert wanted(monkeypatch, window, *suspects) is again


def test_a_job_is_not_asked_again_where_whole_steps_have_to_price_it(
    make_window, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = make_window(8, 60, late={5: 0.05}, steps=slice(30, None))
    monkeypatch.setattr(hidden_faults, "timers_can_price", lambda *_: False)
    assert not wanted(monkeypatch, window, suspect("gpu_throttling", 5))


def test_hidden_suspects_are_reweighted_by_machine_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    window = simulate(COLLECTING).window
    seen: list[FeatureSet] = []

    def to_unknown(each: Suspect, features: FeatureSet, _: object) -> Suspect:
        seen.append(features)
        return replace(each, causes={"unknown": 1.0})

    monkeypatch.setattr(hidden_faults, "with_machine_evidence", to_unknown)
    assert result(rca.diagnose(window)) == {("gpu_throttling", 1)}
    # Of the counterfactual job: its evidence has no scores of the counterfactual rank.
    assert all(np.isnan(each.evidence.versus_peers[3]).all() for each in seen)
    assert seen


def test_one_cause_in_one_place_is_one_suspect_with_the_first_ones_beliefs(make_window) -> None:
    topology = make_window(8, 40).job.topology
    first = [suspect("cpu_contention", 4, chance=0.6), suspect("gpu_throttling", 0)]
    new = [
        suspect("cpu_contention", 5),
        suspect("cpu_contention", 7),
        suspect("runtime_gc", *range(8), scope="job"),
    ]
    together = hidden_faults.add_hidden_suspects(first, new, topology)
    assert [(each.component.scope, each.component.ranks) for each in together] == [
        ("node", (4, 5)),
        ("rank", (0,)),
        ("rank", (7,)),
        ("job", tuple(range(8))),
    ]
    assert together[0].causes == {"cpu_contention": 0.6}
