"""Calibration of a GPU rank before the job, on a device with a known law of its times."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rca.lab.testbed.ranks import calibration
from rca.lab.testbed.ranks.calibration import COPY_SECONDS, adopt_pace, calibrate, match_pace
from rca.lab.testbed.ranks.models import Network
from rca.lab.testbed.ranks.shared import DevicePace, RankMemory, Row, job_pace
from rca.lab.testbed.ranks.stand_in import CHUNK_SECONDS, CHUNKS, OPTIMIZER_SECONDS
from tests.for_each import for_each


class Modelled:
    """An accelerator with a bandwidth, a time per repetition, and so much memory."""

    def __init__(self, per_repeat: float, bandwidth: float, room_for: float = np.inf) -> None:
        self.n_bytes, self.repeats = 1, 1
        self.most_repeats = 1
        self.updates = 1
        self.steps = self.zeroed = 0
        self._per_repeat, self._bandwidth, self._room_for = per_repeat, bandwidth, room_for
        self.gradients = SimpleNamespace(zero_=self._zero)

    def _zero(self) -> None:
        self.zeroed += 1

    def resize(self, n_bytes: int, repeats: int) -> None:
        self.n_bytes, self.repeats = n_bytes, repeats
        self.most_repeats = max(self.most_repeats, repeats)

    def growth_factor(self) -> float:
        return self._room_for / self.most_repeats

    def copy(self, slot, row):
        row[Row.HOST_TO_DEVICE] = self.n_bytes / self._bandwidth

    def forward(self, length, row):
        row[Row.FORWARD] = 1e-4 + self._per_repeat * self.repeats

    def backward(self, row):
        row[Row.BACKWARD] = 1e-4 + 2 * self._per_repeat * self.repeats

    def optimize(self, row):
        self.steps += 1
        row[Row.OPTIMIZER] = 6e-4 * self.updates


def network_of(scale: float = 1.0, **fields: int) -> Network:
    return Network([], [2.5e-3 * scale] * 8, [4.9e-3 * scale] * 8, lambda raw, length: raw, **fields)


@for_each("scale", [1.0, 2.0])
@for_each("per_repeat", [5e-6, 1.3e-4, 7e-3])
def test_a_gpu_gets_the_work_of_a_nominal_step_and_other_ranks_its_pace(per_repeat, scale):
    device, pace, network = Modelled(per_repeat, bandwidth=25e9), job_pace(), network_of(scale)
    calibrate(device, network, 0, scale, pace)
    took = 3 * per_repeat * device.repeats
    assert took == pytest.approx(network.compute_seconds, abs=1.6 * per_repeat + 4e-4)
    assert device.n_bytes / 25e9 == pytest.approx(COPY_SECONDS * scale, rel=1e-6)
    assert pace[DevicePace.COPY] * CHUNKS * CHUNK_SECONDS * scale == pytest.approx(COPY_SECONDS * scale)
    forward = pace[DevicePace.FORWARD] * sum(network.forward_seconds)
    backward = pace[DevicePace.BACKWARD] * sum(network.backward_seconds)
    assert forward + backward == pytest.approx(took + 2e-4)
    assert pace[DevicePace.REPEATS] == device.repeats
    updated = pace[DevicePace.OPTIMIZER] * OPTIMIZER_SECONDS * scale
    assert updated == pytest.approx(6e-4 * device.updates) == pytest.approx(OPTIMIZER_SECONDS * scale)


def test_memory_limits_the_batch_and_other_ranks_take_the_shorter_step():
    device, pace = Modelled(1e-4, bandwidth=25e9, room_for=40), job_pace()
    calibrate(device, network_of(), 0, 1.0, pace)
    assert device.most_repeats <= 40
    assert pace[DevicePace.FORWARD] < 0.5


def test_kernel_limits_bound_the_batch():
    device, pace = Modelled(1e-6, bandwidth=25e9), job_pace()
    calibrate(device, network_of(most_repeats=4095), 0, 1.0, pace)
    assert device.most_repeats == 4095


def test_a_fast_link_does_not_need_a_huge_buffer():
    device, pace = Modelled(1e-4, bandwidth=1e12), job_pace()
    calibrate(device, network_of(), 0, 1.0, pace)
    assert device.n_bytes <= 512 * 1024**2


def test_calibration_does_not_train():
    device = Modelled(1e-3, bandwidth=25e9)
    calibrate(device, network_of(), 0, 1.0, job_pace())
    assert device.zeroed == device.steps


def test_other_gpus_take_the_pace_of_the_first():
    pace = job_pace()
    pace[DevicePace.COPIED_BYTES], pace[DevicePace.UPDATES], pace[DevicePace.REPEATS] = 1000, 5, 7
    device = Modelled(1e-3, bandwidth=25e9)
    adopt_pace(device, pace)
    assert (device.n_bytes, device.updates, device.repeats) == (1000, 5, 7)


def test_a_job_without_gpus_keeps_the_nominal_pace():
    shared = RankMemory(2, 1)
    assert shared.pace[: DevicePace.REPEATS].tolist() == [1, 1, 1, 1]
    assert shared.pace[DevicePace.REPEATS] == 0


class Late:
    """A stand-in that takes longer than its padding: by a constant time, and outside its phases."""

    def __init__(
        self, shared: RankMemory, late: dict[int, float], clock: SimpleNamespace, outside: float
    ) -> None:
        self.gradients = SimpleNamespace(zero_=lambda: None)
        self._shared, self._late, self._clock, self._outside = shared, late, clock, outside

    def _padded(self, phase: DevicePace, nominal: float) -> float:
        took = self._shared.pace[phase] * nominal - self._shared.excess[phase] + self._late[phase]
        self._clock.now += took
        return float(took)

    def copy(self, slot, row):
        row[Row.HOST_TO_DEVICE] = self._padded(DevicePace.COPY, CHUNKS * CHUNK_SECONDS)

    def forward(self, length, row):
        row[Row.FORWARD] = self._padded(DevicePace.FORWARD, 8 * 2.5e-3)

    def backward(self, row):
        row[Row.BACKWARD] = self._padded(DevicePace.BACKWARD, 8 * 4.9e-3)
        self._clock.now += self._outside

    def optimize(self, row):
        row[Row.OPTIMIZER] = self._padded(DevicePace.OPTIMIZER, OPTIMIZER_SECONDS)


LATE = {
    DevicePace.COPY: 2e-3,
    DevicePace.FORWARD: 1.5e-3,
    DevicePace.BACKWARD: 1e-3,
    DevicePace.OPTIMIZER: 4e-4,
}


def matched(monkeypatch, late: dict[int, float], outside: float, outside_of_gpu: float) -> RankMemory:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(calibration, "time", SimpleNamespace(monotonic=lambda: clock.now))
    shared = RankMemory(2, 1)
    shared.pace[: DevicePace.REPEATS] = 1.4, 1.02, 0.98, 1.0
    shared.pace[DevicePace.OUTSIDE_SECONDS], shared.pace[DevicePace.REPEATS] = outside_of_gpu, 7
    match_pace(Late(shared, late, clock, outside), network_of(), 0, 1.0, shared)
    return shared


def test_a_stand_in_shortens_its_padding_by_what_it_takes_longer(monkeypatch):
    shared = matched(monkeypatch, LATE, outside=0.0, outside_of_gpu=0.0)
    np.testing.assert_allclose(shared.excess, list(LATE.values()), rtol=1e-6)


def test_the_backward_makes_up_for_time_outside_the_phases(monkeypatch):
    shared = matched(monkeypatch, LATE, outside=7e-4, outside_of_gpu=2e-4)
    assert shared.excess[DevicePace.FORWARD] == pytest.approx(LATE[DevicePace.FORWARD])
    assert shared.excess[DevicePace.BACKWARD] == pytest.approx(LATE[DevicePace.BACKWARD] + 7e-4 - 2e-4)


def test_a_crowded_moment_shortens_no_padding_by_more_than_half(monkeypatch):
    shared = matched(monkeypatch, LATE | {DevicePace.COPY: 1.0}, outside=0.0, outside_of_gpu=0.0)
    assert shared.excess[DevicePace.COPY] == pytest.approx(0.5 * 1.4 * CHUNKS * CHUNK_SECONDS)
