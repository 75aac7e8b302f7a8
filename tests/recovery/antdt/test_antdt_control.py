"""Classes of stragglers, and the actions of the controllers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.errors import InvalidInput
from rca.runtime.antdt import (
    SOURCES,
    Accumulation,
    Decision,
    Dedicated,
    Hardware,
    Monitor,
    MonitorReading,
    NonDedicated,
    StragglerKind,
    Thresholds,
    accumulated,
)
from rca.runtime.antdt import controller as control

RULES = Thresholds(short_seconds=10, long_seconds=60)
NONE, TRANSIENT = StragglerKind.none, StragglerKind.transient
PERSISTENT, DETERMINISTIC = StragglerKind.persistent, StragglerKind.deterministic


def run(
    monitor: Monitor, begin: int, end: int, slow: dict[int, float] | None = None, seed: int = 0
) -> MonitorReading:
    """Batches of 10 samples each second, with noise of 3 %; slow workers need a multiple of the time."""
    rng = np.random.default_rng([seed, begin])
    for at in range(begin, end):
        for worker in range(monitor.n_workers):
            usual = 0.5 * (slow or {}).get(worker, 1.0)
            monitor.record(worker, float(at), usual * rng.normal(1, 0.03), 10)
    return monitor.reading(float(end - 1))


def test_equal_workers_are_no_stragglers() -> None:
    reading = run(Monitor(4, RULES), 0, 120)
    assert reading.stragglers == (NONE,) * 4
    assert reading.speed == pytest.approx(20, rel=0.05)


def test_a_short_slowdown_is_transient_then_persistent_then_gone() -> None:
    monitor = Monitor(4, RULES)
    run(monitor, 0, 100)
    assert run(monitor, 100, 112, {2: 2.0}).stragglers == (NONE, NONE, TRANSIENT, NONE)
    assert run(monitor, 112, 150, {2: 2.0}).stragglers[2] is PERSISTENT
    assert run(monitor, 150, 165).stragglers[2] is NONE


def test_what_is_slow_from_the_first_step_on_is_restarted_once() -> None:
    monitor, controller = Monitor(4, RULES), NonDedicated(Decision.of([25] * 4), restart_seconds=10)
    restarts = []
    for at in range(0, 400, 10):
        for action in controller.act(run(monitor, at, at + 10, {1: 1.6}), at + 11):
            if action.name == "KILL_RESTART" and action.worker is not None:
                restarts.append(action.worker)
                # It is as slow on the other machine.
                controller.restarted(action.worker)
                monitor.forget(action.worker)
    assert restarts == [1]
    assert monitor.reading(399.0).stragglers[1] is DETERMINISTIC


def test_what_is_still_slow_after_a_restart_is_deterministic() -> None:
    monitor = Monitor(4, RULES, restarted=[1])
    assert run(monitor, 0, 30, {1: 1.6}).stragglers[1] is TRANSIENT
    assert run(monitor, 30, 90, {1: 1.6}).stragglers[1] is DETERMINISTIC
    # It gets slower still: that is not its usual speed.
    assert run(monitor, 90, 150, {1: 3.0}).stragglers[1] is PERSISTENT


def test_a_slow_kind_of_hardware_is_deterministic_and_its_slow_worker_is_not() -> None:
    monitor = Monitor(6, RULES, hardware=["new", "new", "new", "old", "old", "old"])
    old = {3: 2.0, 4: 2.0, 5: 2.0}
    assert run(monitor, 0, 100, old).stragglers == (NONE,) * 3 + (DETERMINISTIC,) * 3
    found = run(monitor, 100, 190, {**old, 5: 4.0}).stragglers
    assert found == (NONE,) * 3 + (DETERMINISTIC, DETERMINISTIC, PERSISTENT)


def test_one_long_batch_changes_nothing() -> None:
    monitor = Monitor(4, RULES)
    run(monitor, 0, 100)
    monitor.record(0, 99.5, 50.0, 10)
    assert monitor.reading(99.5).stragglers == (NONE,) * 4


def test_smaller_batches_are_compared_per_sample() -> None:
    monitor = Monitor(2, RULES, fixed=0.1)
    for at in range(20):
        monitor.record(0, at, 0.1 + 0.02 * 10, 10)
        monitor.record(1, at, 0.1 + 0.02 * 40, 40)
    assert monitor.reading(19.0).speed == pytest.approx(50)


def test_a_worker_without_batches_has_no_speed() -> None:
    monitor = Monitor(2, RULES)
    for at in range(10):
        monitor.record(0, at, 0.1, 10)
        monitor.record(1, at, 0.1, 0)
    reading = monitor.reading(9.0)
    assert not reading.is_complete
    assert NonDedicated(Decision.of([10, 10]), 60).act(reading, 11) == ()


@pytest.mark.parametrize(
    ("worker", "seconds", "message"),
    [(2, 1.0, "there is no worker 2"), (0, -1.0, "did 10 samples in -1.0 s"), (0, float("nan"), "in nan s")],
)
def test_impossible_batches_are_refused(worker: int, seconds: float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Monitor(2).record(worker, 0.0, seconds, 10)


@pytest.mark.parametrize(
    "wrong", [{"slow_ratio": 1.0}, {"short_seconds": 600.0}, {"least_batches": 0}, {"least_gain": -0.1}]
)
def test_impossible_thresholds_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Thresholds(**wrong)


def test_every_threshold_has_a_source() -> None:
    assert set(SOURCES) == {each.name for each in fields(Thresholds)}


def test_a_transient_straggler_gets_smaller_batches() -> None:
    monitor, controller = Monitor(4, RULES), NonDedicated(Decision.of([25] * 4), restart_seconds=30)
    assert controller.act(run(monitor, 0, 100), 100) == ()
    (action,) = controller.act(run(monitor, 100, 112, {2: 2.0}), 113)
    assert (action.name, action.decision.from_step, action.decision.version) == ("ADJUST_BS", 113, 1)
    assert action.decision.total == 100
    assert action.decision.sizes[2] == pytest.approx(100 / 7, abs=1)
    # 25 samples at half of the speed, against 100 samples at 3.5 times the speed.
    assert action.gain == pytest.approx(1 - (100 / 3.5) / 50, abs=0.05)
    assert controller.act(run(monitor, 112, 120, {2: 2.0}), 121) == ()


def test_a_persistent_straggler_is_restarted_when_it_has_cost_a_restart() -> None:
    monitor, controller = Monitor(4, RULES), NonDedicated(Decision.of([25] * 4), restart_seconds=20)
    run(monitor, 0, 100)
    restarted, names = None, []
    for at in range(100, 300, 5):
        for action in controller.act(run(monitor, at, at + 5, {2: 4.0}), at + 6):
            names.append(action.name)
            if action.name == "KILL_RESTART":
                restarted = (action.worker, at)
    assert names[0] == "ADJUST_BS"
    # Once, while the restart is on its way.
    assert names.count("KILL_RESTART") == 1
    # After the adjustment a step takes 100/3.25 instead of 100/4: 19 % of the time is lost.
    # Some 4 s are lost before the adjustment, so 20 s are lost after 90 s.
    assert restarted is not None
    assert restarted[0] == 2
    assert 180 <= restarted[1] <= 205
    controller.restarted(2)
    monitor.forget(2)
    assert controller.lost[2] == 0


def seen(kind: StragglerKind, at: float, slow: float = 4.0) -> MonitorReading:
    """Worker 0 of four is slow, unless it is at speed."""
    ratio = np.array([1.0 if kind is NONE else slow, 1, 1, 1])
    return MonitorReading(at, 20 / ratio, ratio, ratio, (kind, NONE, NONE, NONE), np.zeros(4))


def test_a_reading_as_transient_does_not_clear_what_was_lost() -> None:
    """One in twenty; it was never restarted in 20,000 s."""
    controller = NonDedicated(Decision.of([25] * 4), restart_seconds=300)
    restarted = []
    for number in range(400):
        kind = TRANSIENT if number % 20 == 19 else PERSISTENT
        actions = controller.act(seen(kind, 50.0 * number), number)
        restarted += [50 * number for action in actions if action.name == "KILL_RESTART"]
    # After the adjustment a step takes 100/3.25 instead of 100/4: 19 % of the time is lost.
    assert restarted == [pytest.approx(300 / (1 - 3.25 / 4), abs=200)]


def test_a_short_time_at_speed_does_not_end_a_fault_and_a_long_one_does() -> None:
    controller = NonDedicated(Decision.of([25] * 4), restart_seconds=300, calm_seconds=60)
    for at in range(0, 200, 10):
        controller.act(seen(PERSISTENT, at), 1)
    lost = controller.lost[0]
    assert lost > 30
    for at in range(200, 250, 10):
        controller.act(seen(NONE, at), 1)
    controller.act(seen(TRANSIENT, 250), 1)
    assert controller.lost[0] > lost
    for at in range(260, 320, 10):
        controller.act(seen(NONE, at), 1)
    assert controller.lost[0] == 0


@settings(max_examples=60)
@given(
    kinds=st.lists(st.sampled_from([NONE, TRANSIENT, PERSISTENT, PERSISTENT]), min_size=1, max_size=150),
    slow=st.floats(1.5, 8.0),
    restart_seconds=st.floats(1.0, 60.0),
)
def test_a_lasting_fault_is_never_let_cost_more_than_a_restart(
    kinds: list[StragglerKind], slow: float, restart_seconds: float
) -> None:
    """So the rule costs at most twice what foresight does: the time lost, or one restart if that is less."""
    controller = NonDedicated(Decision.of([25] * 4), restart_seconds, least_gain=0.99, calm_seconds=40.0)
    # A step as long as the slow worker needs, where its peers would do.
    share, lost, calm = 1 - 1 / slow, 0.0, 0.0
    for number, kind in enumerate(kinds):
        actions = controller.act(seen(kind, 10.0 * number, slow), number)
        passed = 10.0 if number else 0.0
        calm = calm + passed if kind is NONE else 0.0
        lost = 0.0 if calm >= 40 else lost + (0.0 if kind is NONE else passed * share)
        foresight = min(lost, restart_seconds)
        if any(action.name == "KILL_RESTART" for action in actions):
            assert kind is PERSISTENT
            assert lost >= restart_seconds * (1 - 1e-9)
            return
        if kind is PERSISTENT:
            assert lost <= restart_seconds * (1 + 1e-9)
            assert lost == pytest.approx(foresight)


def test_recovery_in_time_avoids_the_restart() -> None:
    monitor, controller = Monitor(4, RULES), NonDedicated(Decision.of([25] * 4), restart_seconds=20)
    run(monitor, 0, 100)
    names = []
    for at in range(100, 300, 5):
        slow = {2: 4.0} if at < 145 else {}
        names += [action.name for action in controller.act(run(monitor, at, at + 5, slow), at + 6)]
    assert set(names) == {"ADJUST_BS"}
    assert 2 <= len(names) <= 4
    assert set(controller.decision.sizes) <= {24, 25, 26}


def test_a_slow_service_of_shards_is_named_once_and_no_worker_is_blamed() -> None:
    monitor, controller = Monitor(4, RULES), NonDedicated(Decision.of([25] * 4), restart_seconds=1)
    found = []
    for at in range(120):
        for worker in range(4):
            # Every fourth batch waits for a shard.
            monitor.record(worker, float(at), 0.5, 10, 2.0 if at % 4 == 0 and at >= 40 else 0.0)
        found += controller.act(monitor.reading(float(at)), at + 1)
    assert [action.name for action in found] == ["RELIEVE_SHARDS"]
    assert monitor.reading(119.0).stragglers == (NONE,) * 4
    assert found[0].after == pytest.approx(25 / 20)
    assert "for shards of the data" in found[0].reason


def test_a_deterministic_straggler_is_not_restarted() -> None:
    monitor = Monitor(4, RULES, restarted=[0])
    controller = NonDedicated(Decision.of([25] * 4), restart_seconds=1)
    for at in range(0, 300, 10):
        actions = controller.act(run(monitor, at, at + 10, {0: 1.6}), at + 11)
        assert all(action.name == "ADJUST_BS" for action in actions)
    assert controller.decision.sizes[0] < 20


def test_mixed_hardware_gets_micro_batches_within_its_memory() -> None:
    monitor = Monitor(4, RULES, hardware=["new", "new", "old", "old"])
    hardware = [Hardware(1, 32)] * 2 + [Hardware(1, 12)] * 2
    controller = Dedicated(Decision.of([12] * 4, [2] * 4), hardware)
    (action,) = controller.act(run(monitor, 0, 60, {2: 3.0, 3: 3.0}), 61)
    decision = action.decision
    assert decision.total == 96
    assert max(decision.sizes[2:]) <= 12
    assert decision.samples[0] == pytest.approx(3 * decision.samples[2], rel=0.15)
    assert action.gain > 0.4


def test_micro_batches_are_searched_anew_only_for_new_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def counted(workers: Sequence[Hardware], total: int, *, most_steps: int) -> Accumulation:
        searched.append(total)
        return accumulated(workers, total, most_steps=most_steps)

    monkeypatch.setattr(control, "accumulated", counted)
    controller = Dedicated(Decision.of([12] * 4, [2] * 4), [Hardware(1, 32)] * 4)

    def read(*speed: float) -> MonitorReading:
        return MonitorReading(0.0, np.array(speed), np.ones(4), np.ones(4), (NONE,) * 4, np.zeros(4))

    assert controller.act(read(20, 20, 10, 10), 1)
    for speed in (10.1, 10.2, 9.9):
        assert not controller.act(read(20, 20, 10, speed), 2)
    assert len(searched) == 1
    # Small changes that add up are one large change.
    assert controller.act(read(20, 20, 10, 5), 3)
    assert len(searched) == 2


def test_the_fixed_time_of_a_pass_is_not_taken_for_slowness() -> None:
    """One pass of 8 and four of 2 take 0.1 s each and 10 ms for each sample: the samples are equally fast."""
    monitor, hardware = Monitor(2, RULES), [Hardware(1, 8, fixed=0.1)] * 2
    controller = Dedicated(Decision.of([8, 2], [1, 4]), hardware)
    for at in range(20):
        monitor.record(0, at, 0.1 + 0.08, 8)
        monitor.record(1, at, 0.4 + 0.08, 8)
    (action,) = controller.act(monitor.reading(19.0), 20)
    assert action.decision.sizes == (8, 8)
    assert action.decision.steps == (1, 1)
    assert action.after == pytest.approx(0.18)


def test_a_restart_without_a_price_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a restart takes 0 s"):
        NonDedicated(Decision.of([1]), 0)
