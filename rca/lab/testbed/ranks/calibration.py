"""Calibration of GPU ranks before the job: all ranks get the same pace.

A straggler is visible only among ranks of the same pace. The first GPU rank therefore repeats its batch until
the GPU is busy for the nominal time, and its update likewise. It copies as many bytes as the link carries in
its share of the step. It then publishes the measured phases, and the other ranks' device processes pad their
kernels to them.

A padded kernel takes longer than its padding: a process wakes up late, and pipes take time. Each of these
ranks therefore measures its own steps and shortens its padding by the excess.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from rca.arrays import FloatArray
from rca.lab.testbed.ranks.host import Accelerator
from rca.lab.testbed.ranks.models import TYPICAL_TOKENS, Network
from rca.lab.testbed.ranks.neighbour import Control
from rca.lab.testbed.ranks.shared import DevicePace, Pipes, RankMemory, Row
from rca.lab.testbed.ranks.stand_in import CHUNK_SECONDS, CHUNKS, OPTIMIZER_SECONDS, StandIn
from rca.lab.testbed.ranks.torch_device import TorchDevice, selected
from rca.lab.testbed.scenario import TestbedJob

# Long enough for a shared link to slow the step visibly.
COPY_SECONDS = 8.0e-3
_TRIAL_BYTES = 16 * 1024 * 1024
_MAX_BYTES = 512 * 1024 * 1024
_WARM_UP_RUNS, _ROUGH_STEPS, _THOROUGH_STEPS = 3, 2, 8
# After the pace is known; the first round finds almost all of the excess.
_ADJUSTMENTS, _ADJUSTMENT_STEPS = 2, 3
# A padding is never shortened to less than half: the excess of a crowded moment would not last.
_MAX_EXCESS = 0.5
_PACE_TIMEOUT_SECONDS = 90.0
_PHASES = (Row.HOST_TO_DEVICE, Row.FORWARD, Row.BACKWARD, Row.OPTIMIZER)


class Resizable(Accelerator, Protocol):
    """An accelerator with a scalable amount of work."""

    n_bytes: int
    repeats: int
    updates: int

    def resize(self, n_bytes: int, repeats: int) -> None:
        """Set the bytes copied and the batch's repetitions per step."""

    def growth_factor(self) -> float:
        """Factor by which the batch may grow."""


def calibrate(device: Resizable, network: Network, length: float, scale: float, pace: FloatArray) -> None:
    """Find the work that fills a nominal step, measure its phases, publish both.

    Parameters
    ----------
    length : float
        Tokens per sequence of the measurement, 0 for models without sequences.
    scale : float
        The job's factor on all nominal times.
    pace : ndarray of shape (len(DevicePace),)
        Output; `DevicePace.REPEATS` is written last, because other ranks wait for it.
    """
    device.resize(_TRIAL_BYTES, 1)
    measure(device, length, _WARM_UP_RUNS)
    rough = measure(device, length, _THOROUGH_STEPS)
    copied = float(rough[Row.HOST_TO_DEVICE])
    device.updates = max(1, round(OPTIMIZER_SECONDS * scale / float(rough[Row.OPTIMIZER])))
    device.resize(int(min(_MAX_BYTES, _TRIAL_BYTES * COPY_SECONDS * scale / copied)), 1)
    _fill_step(device, length, network)
    took = measure(device, length, _THOROUGH_STEPS)
    pace[DevicePace.COPY] = took[Row.HOST_TO_DEVICE] / (CHUNKS * CHUNK_SECONDS * scale)
    pace[DevicePace.FORWARD] = took[Row.FORWARD] / sum(network.forward_seconds)
    pace[DevicePace.BACKWARD] = took[Row.BACKWARD] / sum(network.backward_seconds)
    pace[DevicePace.OPTIMIZER] = took[Row.OPTIMIZER] / (OPTIMIZER_SECONDS * scale)
    pace[DevicePace.OUTSIDE_SECONDS] = took[Row.STEP]
    pace[DevicePace.COPIED_BYTES] = device.n_bytes
    pace[DevicePace.UPDATES] = device.updates
    pace[DevicePace.REPEATS] = device.repeats


def adopt_pace(device: Resizable, pace: FloatArray) -> None:
    """Take the amount of work from the first GPU rank.

    Raises
    ------
    TimeoutError
        If that rank publishes none.
    """
    _wait_for_pace(pace)
    device.updates = int(pace[DevicePace.UPDATES])
    device.resize(int(pace[DevicePace.COPIED_BYTES]), int(pace[DevicePace.REPEATS]))


def match_pace(
    device: Accelerator, network: Network, length: float, scale: float, shared: RankMemory
) -> None:
    """Shorten a stand-in's padding until its phases and its whole step take as long as those of the GPU.

    Raises
    ------
    TimeoutError
        If the first GPU rank publishes no pace.
    """
    nominal = (
        CHUNKS * CHUNK_SECONDS * scale,
        sum(network.forward_seconds),
        sum(network.backward_seconds),
        OPTIMIZER_SECONDS * scale,
    )

    def shorten_padding() -> None:
        wanted = shared.pace[: DevicePace.REPEATS] * nominal
        took = measure(device, length, _ADJUSTMENT_STEPS)
        phases = took[list(_PHASES)]
        excess = phases - wanted
        # The rest of the step has no padding of its own, so the longest phase makes up for it.
        excess[DevicePace.BACKWARD] += took[Row.STEP] - shared.pace[DevicePace.OUTSIDE_SECONDS]
        shared.excess[:] = np.minimum(shared.excess + excess, _MAX_EXCESS * wanted)

    measure(device, length, _WARM_UP_RUNS)
    _wait_for_pace(shared.pace, meanwhile=shorten_padding)
    for _ in range(_ADJUSTMENTS):
        shorten_padding()


def measure(device: Accelerator, length: float, steps: int) -> FloatArray:
    """Run some steps alone and without learning; return the median row, shape (len(Row),).

    Its `Row.STEP` is the time of the host outside the four phases.
    """
    rows = np.full((steps, len(Row)), np.nan)
    for row in rows:
        began = time.monotonic()
        device.copy(0, row)
        device.forward(length, row)
        device.backward(row)
        seconds = time.monotonic() - began
        device.gradients.zero_()
        began = time.monotonic()
        device.optimize(row)
        seconds += time.monotonic() - began
        row[Row.STEP] = seconds - row[list(_PHASES)].sum()
    return np.asarray(np.median(rows, axis=0))


def _fill_step(device: Resizable, length: float, network: Network) -> None:
    """Repeat the batch until forward and backward take their nominal time, or memory is short."""
    wanted, most = network.compute_seconds, network.most_repeats
    taken = _compute_seconds(device, length)
    while taken < wanted / 2 and device.growth_factor() >= 2 and device.repeats <= most / 2:
        device.resize(device.n_bytes, 2 * device.repeats)
        taken = _compute_seconds(device, length)
    factor = min(wanted / taken, max(1.0, device.growth_factor()))
    device.resize(device.n_bytes, min(most, max(1, round(factor * device.repeats))))


def _compute_seconds(device: Accelerator, length: float) -> float:
    # The first run allocates memory and selects kernels for the new size.
    measure(device, length, 1)
    row = measure(device, length, _ROUGH_STEPS)
    return float(row[Row.FORWARD] + row[Row.BACKWARD])


def prepare(
    network: Network,
    shared: RankMemory,
    where: str,
    job: TestbedJob,
    rank: int,
    neighbours: Sequence[FloatArray] = (),
) -> TorchDevice:
    """Set up a rank's device in the calling process, ready for the first step.

    Parameters
    ----------
    where : str
        A PyTorch device such as ``cuda:0``.
    neighbours : sequence of ndarray of shape (len(Control),)
        Foreign processes on the GPU; it is measured after they have set themselves up.
    """
    ready = TorchDevice(network, shared, selected(where))
    if rank == job.gpu_ranks[0]:
        _wait_until(lambda: all(each[Control.READY] for each in neighbours), "a neighbour did not start")
        calibrate(ready, network, _typical_length(job), job.scale, shared.pace)
    else:
        adopt_pace(ready, shared.pace)
    return ready


def prepare_stand_in(network: Network, shared: RankMemory, pipes: Pipes, job: TestbedJob) -> StandIn:
    """Set up a rank without a GPU, at the pace of the job's GPU ranks if it has some."""
    ready = StandIn(shared, pipes, len(network.blocks))
    if job.gpu_ranks:
        match_pace(ready, network, _typical_length(job), job.scale, shared)
    return ready


def _typical_length(job: TestbedJob) -> float:
    return TYPICAL_TOKENS if job.model == "transformer" else 0


def _pause() -> None:
    time.sleep(0.01)


def _wait_for_pace(pace: FloatArray, meanwhile: Callable[[], None] = _pause) -> None:
    _wait_until(lambda: pace[DevicePace.REPEATS] > 0, "the first GPU rank published no pace", meanwhile)


def _wait_until(
    condition: Callable[[], bool], otherwise: str, meanwhile: Callable[[], None] = _pause
) -> None:
    deadline = time.monotonic() + _PACE_TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        meanwhile()
