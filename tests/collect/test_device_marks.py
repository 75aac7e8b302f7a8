"""Phases by the clock of a device that runs behind the host, without waiting for it."""

from __future__ import annotations

import math

import pytest
from collector_clock import Clock, rows, spend, timer_with_clock

from rca.collect import device_marks
from rca.collect.device_marks import DeviceMarks
from rca.collect.timers import PHASE_NUMBERS, StepTimer


class Device:
    """A stream whose work is done at times that the test sets."""

    def __init__(self) -> None:
        self.busy_until = 0.0
        self.done_until = math.inf
        self.made = 0

    def work(self, seconds: float) -> None:
        self.busy_until += seconds

    def event(self) -> Event:
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self._device, self.at = device, math.nan

    def record(self, stream: Device) -> None:
        assert stream is self._device
        self.at = stream.busy_until

    def query(self) -> bool:
        return self.at <= self._device.done_until

    def elapsed_time(self, later: Event) -> float:
        assert self.query()
        assert later.query()
        return 1e3 * (later.at - self.at)


@pytest.fixture
def parts() -> tuple[StepTimer, Clock, Device]:
    """A timer that follows a device after its first step."""
    timer, clock = timer_with_clock(rows=256)
    device = Device()
    timer.find_marks = lambda: DeviceMarks(device.event, lambda: device, timer.write)
    timer.begin()
    timer.end()
    rows(timer)
    return timer, clock, device


def train(timer: StepTimer, clock: Clock, device: Device) -> None:
    """The host enqueues in 3 ms what takes the device 3 s."""
    timer.begin()
    for phase, seconds in (("forward", 1.0), ("backward", 2.0)):
        timer.enter(PHASE_NUMBERS[phase])
        clock.now += 0.0015
        device.work(seconds)
        timer.leave(PHASE_NUMBERS[phase])
    timer.end()


def test_phases_are_those_of_the_device(parts: tuple[StepTimer, Clock, Device]) -> None:
    timer, clock, device = parts
    timer.begin()
    device.work(0.25)
    spend(timer, clock, "data_loading", 5.0)
    timer.enter(PHASE_NUMBERS["backward"])
    device.work(1.0)
    timer.enter(PHASE_NUMBERS["communication"])
    device.work(0.5)
    timer.leave(PHASE_NUMBERS["communication"])
    device.work(1.0)
    timer.collected += 0.125
    timer.leave(PHASE_NUMBERS["backward"])
    timer.end()
    (row,) = rows(timer)
    assert (row["step"], row["step_seconds"], row["gc_seconds"]) == (1, 2.75, 0.125)
    assert (row["data_loading_seconds"], row["backward_seconds"]) == (0.0, 2.0)
    assert row["communication_seconds"] == 0.5
    assert math.isnan(row["forward_seconds"])


def test_rows_wait_for_the_device_and_come_in_order(parts: tuple[StepTimer, Clock, Device]) -> None:
    timer, clock, device = parts
    device.done_until = 0.0
    train(timer, clock, device)
    train(timer, clock, device)
    assert rows(timer) == []
    device.done_until = 6.5
    train(timer, clock, device)
    assert [(row["step"], row["backward_seconds"]) for row in rows(timer)] == [(1, 2.0), (2, 2.0)]


def test_events_are_used_again(parts: tuple[StepTimer, Clock, Device]) -> None:
    timer, clock, device = parts
    for _ in range(50):
        train(timer, clock, device)
    assert len(rows(timer)) == 50
    # Begin, two phases with their ends, and the end; the last step's are free after the next one has begun.
    assert device.made <= 12


def test_a_device_that_stops_keeps_the_steps_without_phases(parts: tuple[StepTimer, Clock, Device]) -> None:
    timer, clock, device = parts
    device.done_until = 0.0
    for _ in range(device_marks.MAX_WAITING + 2):
        train(timer, clock, device)
    assert [row["step"] for row in rows(timer)] == [1, 2]
    timer.settle()
    left = rows(timer)
    assert len(left) == device_marks.MAX_WAITING
    assert all(math.isnan(row["forward_seconds"]) for row in left)
    assert left[0]["step_seconds"] == pytest.approx(0.003)


def test_a_step_with_too_many_marks_keeps_its_duration(
    parts: tuple[StepTimer, Clock, Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    timer, clock, device = parts
    monkeypatch.setattr(device_marks, "MAX_MARKS", 3)
    train(timer, clock, device)
    (row,) = rows(timer)
    assert row["step_seconds"] == 3.0
    assert math.isnan(row["forward_seconds"])


def test_dropped_steps_leave_nothing_behind(parts: tuple[StepTimer, Clock, Device]) -> None:
    timer, clock, device = parts
    timer.begin()
    device.work(9.0)
    timer.cancel()
    train(timer, clock, device)
    (row,) = rows(timer)
    assert (row["step"], row["step_seconds"]) == (1, 3.0)


def test_a_phase_can_get_its_name_afterwards(parts: tuple[StepTimer, Clock, Device]) -> None:
    timer, _, device = parts
    timer.enter(PHASE_NUMBERS["data_loading"])
    device.work(4.0)
    timer.relabel(PHASE_NUMBERS["checkpoint"])
    timer.begin()
    timer.end()
    (row,) = rows(timer)
    assert row["checkpoint_seconds"] == 4.0
    assert row["data_loading_seconds"] == 0.0


def test_nothing_is_recorded_while_a_graph_is_captured() -> None:
    timer, clock = timer_with_clock()
    device = Device()
    timer.find_marks = lambda: DeviceMarks(device.event, lambda: device, timer.write, lambda: False)
    timer.begin()
    timer.end()
    train(timer, clock, device)
    assert device.made == 0
    row = rows(timer)[-1]
    assert row["step_seconds"] == pytest.approx(0.003)
    assert math.isnan(row["forward_seconds"])


def test_without_a_gpu_in_use_there_are_no_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_marks.sys.modules, "torch", None)
    assert device_marks.marks_of_gpu(lambda row: None) is None
