"""Which latenesses are faults, and how they and the heads' suspects decide together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

import rca
from rca.classify.beliefs import ordered
from rca.classify.classifier import Classification, Suspect
from rca.classify.components import Component
from rca.classify.head import Head
from rca.diagnosis.alarm import Explained, explained
from rca.diagnosis.bundle import baseline
from rca.diagnosis.explanations import Explanation
from rca.diagnosis.lateness import Lateness
from rca.diagnosis.timeline import Timeline
from rca.diagnosis.verdict import (
    ALONE,
    RAISED,
    JudgedLateness,
    _at_its_place,
    _faults,
    lost_together,
    with_latenesses,
)
from rca.features import extract
from rca.lab.simulation import Fault, simulate
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window import Window
from tests.diagnosis.simulated_jobs import WORKLOAD, job
from tests.for_each import for_each

N_STEPS = 100


def late(kind: Any, *ranks: int, seconds: float = 0.1, steps: slice = slice(None), **more: Any) -> Lateness:
    mask = np.zeros(N_STEPS, dtype=bool)
    mask[steps] = True
    return Lateness(kind, ranks, mask, seconds, 10.0, **more)


def judged(
    each: Lateness, cause: str, evidence: float, probability: float = 0.95, *at: int
) -> JudgedLateness:
    best = Explanation(cause, at or each.ranks, evidence, evidence)
    causes = (best,) if cause == "unknown" else (best, Explanation("unknown", each.ranks, 0.0, 0.0))
    return JudgedLateness(Explained(each, causes), probability)


LOCAL = judged(late("ranks", 3, seconds=0.1), "gpu_throttling", 5.0)
EVERYBODY = tuple(range(8))


def test_the_job_is_late_because_one_rank_is() -> None:
    pace = judged(late("pace", *EVERYBODY, seconds=0.11), "unknown", 0.0)
    assert _faults([pace, LOCAL]) == [LOCAL]


@for_each(
    ("seconds", "evidence", "kept"),
    [(0.05, 3.0, False), (0.05, 4.5, True), (0.2, 3.0, True), (0.2, 2.0, False)],
)
def test_a_lateness_of_all_with_evidence_of_its_own_stays(
    seconds: float, evidence: float, kept: bool
) -> None:
    """More evidence is needed where it costs less than the local one."""
    transfer = judged(late("transfer", *EVERYBODY, seconds=seconds), "network_congestion", evidence)
    assert (transfer in _faults([LOCAL, transfer])) is kept


def test_in_other_steps_it_is_a_fault_of_its_own() -> None:
    early = judged(late("ranks", 3, steps=slice(0, 40)), "gpu_throttling", 5.0)
    later = judged(late("transfer", *EVERYBODY, steps=slice(60, 90), seconds=0.09), "unknown", 0.0)
    assert _faults([early, later]) == [early, later]


def test_an_open_lateness_within_a_shown_one_is_the_same() -> None:
    job_late = judged(late("job", *EVERYBODY, seconds=0.2), "data_loader_stall", 4.0)
    share = judged(late("share", *EVERYBODY, seconds=0.3), "unknown", 0.0)
    assert _faults([share, job_late]) == [job_late]


def test_a_trifle_beside_a_large_loss_is_left_out() -> None:
    trifle = judged(late("ranks", 5, seconds=0.005), "unknown", 0.0)
    assert _faults([LOCAL, trifle]) == [LOCAL]


def test_all_ranks_lose_what_the_largest_change_costs() -> None:
    job_late, planned = (
        late("job", *EVERYBODY, seconds=0.2),
        late("pace", *EVERYBODY, seconds=0.5, planned=True),
    )
    transfer = late("share", *EVERYBODY, seconds=0.7, phases={"transfer": 1.0})
    found = [Explained(each, ()) for each in (job_late, planned, transfer, late("ranks", 3, seconds=0.9))]
    assert lost_together(found) == 0.2
    assert lost_together([]) == 0.0


def looked_at(window: Window) -> tuple[Timeline, list[Explained]]:
    features = extract(window)
    replay = PhaseReplay.from_arrays(features.phases.without_first(features.work.warmup), window.job)
    signals, found = explained(window, features, replay)
    return signals.line, found


def slow(*suspects: Suspect) -> Classification:
    chances = {"fail_slow": 0.99, "healthy": 0.01, "fail_stop": 0.0}
    return Classification("fail_slow", chances, True, list(suspects), 0.9)


def suspect(causes: dict[str, float], *ranks: int) -> Suspect:
    return Suspect(Component("rank", ranks, 0.9), {}, ordered(causes))


HOT = Fault(cause="gpu_throttling", ranks=(3,), severity=0.7)


def test_a_finding_outweighs_a_doubtful_head() -> None:
    """The clock of the late rank is low: its head's second thought comes first."""
    line, found = looked_at(simulate(job(HOT, seed=1, workload=WORKLOAD)).window)
    doubtful = suspect({"cpu_contention": 0.6, "gpu_throttling": 0.3, "unknown": 0.1}, 3)
    (after,) = with_latenesses(slow(doubtful), line, found, baseline().alarm).suspects
    assert next(iter(after.causes)) == "gpu_throttling"
    assert sum(after.causes.values()) == pytest.approx(1.0)


@for_each(("of_all", "ranks"), [(0.5, (0, 1)), (4.0, tuple(range(16)))])
def test_a_suspect_of_the_whole_job_moves_to_the_place_that_shows_why(
    of_all: float, ranks: tuple[int, ...]
) -> None:
    """Unless a cause of the whole job explains the lateness nearly as well."""
    line, _ = looked_at(simulate(job(HOT, seed=1, workload=WORKLOAD)).window)
    everybody = tuple(range(line.topology.n_ranks))
    best = Explanation("nic_degradation", (0, 1), 6.0, 4.5)
    congested = Explanation("network_congestion", everybody, of_all, of_all)
    slow_transfer = JudgedLateness(Explained(late("transfer", *everybody), (best, congested)), 0.9)
    of_the_job = Suspect(Component("job", everybody, 0.9), {}, {"network_congestion": 0.9})
    assert _at_its_place(of_the_job, line, [slow_transfer]).component.ranks == ranks


def test_without_a_lateness_on_its_ranks_a_suspect_stays_as_it_is() -> None:
    line, found = looked_at(simulate(job(HOT, seed=1, workload=WORKLOAD)).window)
    elsewhere = suspect({"cpu_contention": 0.6, "unknown": 0.4}, 11)
    assert with_latenesses(slow(elsewhere), line, found, None).suspects == [elsewhere]


def test_a_fault_in_other_steps_is_a_further_suspect() -> None:
    first = Fault(cause="gpu_throttling", ranks=(3,), severity=0.7, first_step=5, last_step=40)
    second = Fault(cause="data_loader_stall", ranks=(9,), severity=0.7, first_step=60, last_step=95)
    window = simulate(job(first, second, seed=3, workload=WORKLOAD)).window
    line, found = looked_at(window)
    known = suspect({"gpu_throttling": 1.0}, 3)
    suspects = with_latenesses(slow(known), line, found, baseline().alarm).suspects
    assert [each.component.ranks for each in suspects] == [(3,), (9,)]
    steps = suspects[1].steps
    assert steps is not None
    assert not steps[:50].any()
    answer = rca.diagnose(window)
    named = {(each.cause, tuple(each.ranks)): each.seconds_per_step or 0.0 for each in answer.causes}
    assert {("gpu_throttling", (3,)), ("data_loader_stall", (9,))} <= named.keys()
    assert sum(named.values()) <= (answer.slowdown.seconds_per_step or 0.0) + 1e-9


class Certain:
    """An alarm that always has one probability."""

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        return np.tile([1.0 - self.probability, self.probability], (rows.shape[0], 1))


@for_each(
    ("head", "lateness", "timed", "mode"),
    [
        (0.1, RAISED + 0.01, False, "fail_slow"),
        (0.95, RAISED - 0.01, False, "healthy"),
        (0.1, ALONE + 0.01, True, "fail_slow"),
        (0.1, ALONE - 0.01, True, "healthy"),
        (0.95, 0.6, True, "healthy"),
        (0.95, 0.9, True, "fail_slow"),
        (0.5, 0.999, True, "fail_slow"),
    ],
)
def test_where_timers_show_who_is_late_head_and_latenesses_decide_together(
    head: float, lateness: float, timed: bool, mode: str
) -> None:
    window = simulate(job(HOT, seed=1, workload=WORKLOAD)).window
    if not timed:
        window = replace(window, steps=window.steps.select(["rank", "step", "start_time", "step_seconds"]))
    line, found = looked_at(window)
    assert line.localises is timed
    chances = {"healthy": 1.0 - head, "fail_slow": head, "fail_stop": 0.0}
    healthy = replace(slow(), mode="healthy", probability=chances)
    answer = with_latenesses(healthy, line, found, cast("Head", Certain(lateness)))
    assert answer.mode == mode
    if mode == "fail_slow":
        assert answer.probability["fail_slow"] >= max(head, RAISED)


@for_each(("lateness", "certain"), [(0.9, False), (0.4, True)])
def test_a_job_that_is_rather_slow_is_not_healthy_for_certain(lateness: float, certain: bool) -> None:
    line, found = looked_at(simulate(job(HOT, seed=1, workload=WORKLOAD)).window)
    chances = {"healthy": 0.5, "fail_slow": 0.5, "fail_stop": 0.0}
    healthy = replace(slow(), mode="healthy", probability=chances)
    answer = with_latenesses(healthy, line, found, cast("Head", Certain(lateness)))
    assert (answer.mode, answer.decided) == ("healthy", certain)


def test_a_bundle_without_an_alarm_raises_none() -> None:
    window = simulate(job(HOT, seed=1, workload=WORKLOAD)).window
    line, found = looked_at(window)
    healthy = replace(
        slow(), mode="healthy", probability={"healthy": 0.6, "fail_slow": 0.4, "fail_stop": 0.0}
    )
    assert with_latenesses(healthy, line, found, None) is healthy
    raised = with_latenesses(healthy, line, found, baseline().alarm)
    assert raised.mode == "fail_slow"
    assert raised.suspects[0].component.ranks == (3,)
