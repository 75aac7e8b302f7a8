"""Latenesses: who is late in which steps, what explains it, and when it raises the alarm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rca
from rca.diagnosis.alarm import ALARM_NUMBERS, RAISING, Explained, alarm_numbers, explained
from rca.diagnosis.bundle import baseline
from rca.diagnosis.timeline import Timeline
from rca.diagnosis.verdict import RAISED
from rca.features import extract
from rca.lab.simulation import Benign, Fault, simulate
from rca.lab.simulation.corpus import simulated_window
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window import Window
from tests.diagnosis.simulated_jobs import WORKLOAD, job
from tests.for_each import for_each


def found_in(window: Window) -> tuple[Timeline, list[Explained]]:
    features = extract(window)
    replay = PhaseReplay.from_arrays(features.phases.without_first(features.work.warmup), window.job)
    signals, found = explained(window, features, replay)
    return signals.line, found


def slowed(*faults: Fault, seed: int = 3, **changes: Any) -> Window:
    return simulate(job(*faults, seed=seed, workload=WORKLOAD, **changes)).window


HOT = Fault(cause="gpu_throttling", ranks=(3,), severity=0.6)


def test_a_late_rank_is_one_lateness_with_the_steps_and_seconds_of_the_fault() -> None:
    line, found = found_in(slowed(replace_steps(HOT, 40, 79)))
    worst = max(found, key=lambda each: each.late.seconds)
    assert (worst.late.kind, worst.late.ranks) == ("ranks", (3,))
    late = np.flatnonzero(worst.late.steps) + int(line.work.steps[0])
    # A GPU heats up for some steps, and cools down again.
    assert 40 <= late[0] <= 48
    assert 76 <= late[-1] <= 88
    assert worst.explanations[0].cause == "gpu_throttling"
    assert worst.explanations[0].ranks == (3,)
    saved = float((line.work.job_step[40:80].mean() - line.work.job_step[:40].mean()) * 40 / line.n_steps)
    assert worst.late.seconds == pytest.approx(saved, rel=0.25)


def replace_steps(fault: Fault, first: int, last: int) -> Fault:
    return fault.model_copy(update={"first_step": first, "last_step": last})


def test_two_faults_at_two_times_are_two_latenesses() -> None:
    second = Fault(cause="data_loader_stall", ranks=(9,), severity=0.6, first_step=60, last_step=95)
    _, found = found_in(slowed(replace_steps(HOT, 5, 40), second))
    places = {each.late.ranks: each for each in found if each.late.kind == "ranks"}
    assert {(3,), (9,)} <= places.keys()
    assert not (places[3,].late.steps & places[9,].late.steps).any()
    assert places[9,].explanations[0].cause == "data_loader_stall"


def test_a_healthy_job_has_no_lateness_worth_an_alarm() -> None:
    line, found = found_in(slowed())
    alarm = baseline().alarm
    assert alarm is not None
    assert alarm.probabilities(alarm_numbers(line, found)[None, :])[0, 1] < 0.5


def test_no_cause_comes_first_without_a_finding_of_its_own() -> None:
    """One rank computes longer, and no signal was measured: the cause is open."""
    window = slowed(HOT)
    bare = replace(window, metrics=window.metrics.slice(0, 0), events=window.events.slice(0, 0))
    _, found = found_in(bare)
    worst = max(found, key=lambda each: each.late.seconds)
    assert worst.late.ranks == (3,)
    assert worst.explanations[0].cause == "unknown"


def test_a_measured_normal_excludes() -> None:
    """The clock is normal: the lateness of one rank is not its throttling."""
    _, found = found_in(slowed(Fault(cause="cpu_contention", ranks=(3,), severity=0.6)))
    worst = max(found, key=lambda each: each.late.seconds)
    throttling = next(each for each in worst.explanations if each.cause == "gpu_throttling")
    assert throttling.evidence < 0
    assert worst.explanations[0].cause == "cpu_contention"


def test_a_pause_in_a_fixed_cycle_is_planned_and_no_fault() -> None:
    checkpoints = Benign(warmup_steps=0, slow_step_every=20, slow_step_factor=2.0)
    _, found = found_in(slowed(benign=checkpoints))
    assert not [each for each in found if each.may_be_a_fault and each.late.seconds > 0.05]


def test_louder_never_lowers_the_alarm() -> None:
    """Larger costs, sizes and evidence of any kind of lateness."""
    alarm = baseline().alarm
    assert alarm is not None
    windows = [simulated_window(seed, with_steps=True)[0] for seed in range(880_100_000, 880_100_012)]
    numbers = np.array([alarm_numbers(*found_in(window)) for window in windows])
    for column, name in enumerate(ALARM_NUMBERS):
        if name in RAISING:
            louder = numbers.copy()
            louder[:, column] = louder[:, column] * 1.5 + 0.5
            before, after = (alarm.probabilities(each)[:, 1] for each in (numbers, louder))
            assert (after >= before - 1e-12).all(), name


def step_times(ranks: int, n: int, longer: float, since: int) -> list[dict[str, Any]]:
    noise, begin, rows = np.random.default_rng(1), 0.0, []
    for step in range(n):
        seconds = 0.5 * (longer if step >= since else 1.0) * (1 + noise.normal(0, 0.01))
        rows += [
            {"rank": rank, "step": step, "start_time": 1.75e9 + begin, "step_seconds": seconds}
            for rank in range(ranks)
        ]
        begin += seconds
    return rows


def exporter(ranks: int, seconds: float, slow: int, since: float) -> list[dict[str, Any]]:
    noise = np.random.default_rng(2)
    return [
        {
            "time": 1.75e9 + at, "name": "DCGM_FI_DEV_SM_CLOCK", "node": None, "rank": rank, "device": None,
            "value": (900.0 if rank == slow and at >= since else 1980.0) + noise.normal(0, 5),
        }
        for at in np.arange(0.0, seconds, 5.0)
        for rank in range(ranks)
    ]  # fmt: skip


def window_of(ranks: int, steps: list[dict[str, Any]], metrics: list[dict[str, Any]]) -> Window:
    end = max(row["start_time"] + row["step_seconds"] for row in steps)
    placed = [{"rank": rank, "node": f"node-{rank // 4}"} for rank in range(ranks)]
    facts = {"job_id": "a", "world_size": ranks, "start": 1.75e9, "end": end, "ranks": placed}
    return rca.Window.from_tables(facts, steps=steps, metrics=metrics)


def test_slower_steps_alone_may_be_more_work() -> None:
    """Nothing is counted and nothing deviates: no alarm, and no certain health."""
    answer = rca.diagnose(window_of(8, step_times(8, 120, 1.4, 60), exporter(8, 80, -1, 0)))
    assert answer.failure_mode != "fail_slow" or answer.abstained
    assert answer.verdict != "healthy"


@for_each("ranks", [4, 8, 32])
def test_slower_steps_with_one_slow_clock_are_that_machine(ranks: int) -> None:
    """Step times and an exporter: the commonest telemetry."""
    steps = step_times(ranks, 120, 1.6, 60)
    answer = rca.diagnose(window_of(ranks, steps, exporter(ranks, 78, 2, 30.0)))
    assert (answer.verdict, answer.causes[0].cause) == ("fail_slow", "gpu_throttling")
    assert answer.causes[0].ranks == [2]
    assert answer.slowdown.seconds_per_step == pytest.approx(0.15, rel=0.35)


def test_an_alarm_of_latenesses_is_at_least_as_probable_as_its_limit() -> None:
    answers = [rca.diagnose(simulated_window(seed)[0]) for seed in (880000009, 880000126)]
    for answer in answers:
        assert answer.failure_mode == "fail_slow"
        assert answer.failure_mode_probability["fail_slow"] >= RAISED
        assert answer.stragglers
