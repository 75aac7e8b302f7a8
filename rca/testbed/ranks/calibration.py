"""Calibration of GPU ranks before the job: all ranks get the same pace.

A straggler is visible only among ranks of the same pace. The first GPU rank therefore repeats its batch until
the GPU is busy for the nominal time. It copies as many bytes as the link carries in its share of the step. It
then publishes the measured phases, and the other ranks' device processes pad their kernels to them.
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from rca.arrays import FloatArray
from rca.testbed.ranks.host import Accelerator
from rca.testbed.ranks.models import TYPICAL_TOKENS, Network
from rca.testbed.ranks.shared import Pace, Row, Shared
from rca.testbed.ranks.stand_in import CHUNK_SECONDS, CHUNKS, OPTIMIZER_SECONDS
from rca.testbed.ranks.torch_device import TorchDevice, selected
from rca.testbed.scenario import JobShape

# Long enough for a shared link to slow the step visibly.
COPY_SECONDS = 8.0e-3
_TRIAL_BYTES = 16 * 1024 * 1024
_MOST_BYTES = 512 * 1024 * 1024
_WARM_UP_RUNS, _ROUGH_STEPS, _THOROUGH_STEPS = 3, 2, 8
_PACE_TIMEOUT_SECONDS = 60.0


class Resizable(Accelerator, Protocol):
    """An accelerator with a scalable amount of work."""

    n_bytes: int
    repeats: int

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
    pace : ndarray of shape (len(Pace),)
        Output; `Pace.REPEATS` is written last, because other ranks wait for it.
    """
    device.resize(_TRIAL_BYTES, 1)
    measure(device, length, _WARM_UP_RUNS)
    copied = float(measure(device, length, _ROUGH_STEPS)[Row.HOST_TO_DEVICE])
    device.resize(int(min(_MOST_BYTES, _TRIAL_BYTES * COPY_SECONDS * scale / copied)), 1)
    _fill_step(device, length, network)
    took = measure(device, length, _THOROUGH_STEPS)
    pace[Pace.COPY] = took[Row.HOST_TO_DEVICE] / (CHUNKS * CHUNK_SECONDS * scale)
    pace[Pace.FORWARD] = took[Row.FORWARD] / sum(network.forward_seconds)
    pace[Pace.BACKWARD] = took[Row.BACKWARD] / sum(network.backward_seconds)
    pace[Pace.OPTIMIZER] = took[Row.OPTIMIZER] / (OPTIMIZER_SECONDS * scale)
    pace[Pace.COPIED_BYTES] = device.n_bytes
    pace[Pace.REPEATS] = device.repeats


def adopt_pace(device: Resizable, pace: FloatArray) -> None:
    """Take the amount of work from the first GPU rank.

    Raises
    ------
    TimeoutError
        If that rank publishes none.
    """
    deadline = time.monotonic() + _PACE_TIMEOUT_SECONDS
    while pace[Pace.REPEATS] == 0:
        if time.monotonic() > deadline:
            raise TimeoutError("the first GPU rank published no pace")
        time.sleep(0.01)
    device.resize(int(pace[Pace.COPIED_BYTES]), int(pace[Pace.REPEATS]))


def measure(device: Accelerator, length: float, steps: int) -> FloatArray:
    """Run some steps alone and without learning; return the median row, shape (len(Row),)."""
    rows = np.full((steps, len(Row)), np.nan)
    for row in rows:
        device.copy(0, row)
        device.forward(length, row)
        device.backward(row)
        device.gradients.zero_()
        device.optimize(row)
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


def prepare(network: Network, shared: Shared, where: str, job: JobShape, rank: int) -> TorchDevice:
    """Set up a rank's device in the calling process, ready for the first step.

    Parameters
    ----------
    where : str
        A PyTorch device such as ``cuda:0``.
    """
    ready = TorchDevice(network, shared, selected(where))
    if rank == job.gpu_ranks[0]:
        length = TYPICAL_TOKENS if job.model == "transformer" else 0
        calibrate(ready, network, length, job.scale, shared.pace)
    else:
        adopt_pace(ready, shared.pace)
    return ready
