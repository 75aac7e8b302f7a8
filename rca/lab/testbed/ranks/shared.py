"""Pipes and memory that a rank's processes share with each other and with the capture.

Pipes carry fixed-size messages. Shared memory holds step rows, knobs, gauges, gradients and batches. A row is
written field by field during its step, so that a killed rank leaves its measurements. All times are the
machine's monotonic clock.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from rca.arrays import FloatArray

BATCH_READY = struct.Struct("=idddd")
KERNEL = struct.Struct("=iid")
TOKEN = b"t"
ByteArray = npt.NDArray[np.uint8]
SLOTS = 2
#: Slots that exist; a recovery may let more of them circulate.
MAX_SLOTS = 8
BATCH_BYTES = 64 * 1024


class PeerExited(RuntimeError):
    """The process at the other end of a pipe has ended."""


@dataclass(frozen=True)
class Pipe:
    """One direction."""

    reader: int
    writer: int

    @classmethod
    def open(cls) -> Pipe:
        """Create a pipe that forked processes inherit."""
        return cls(*os.pipe())

    def send(self, message: bytes) -> None:
        os.write(self.writer, message)

    def receive(self, size: int) -> bytes:
        """Wait for one message; all messages are smaller than a pipe's atomic size."""
        message = os.read(self.reader, size)
        if len(message) != size:
            raise PeerExited("pipe closed")
        return message


@dataclass(frozen=True)
class Pipes:
    """All pipes of one rank; `link` belongs to the node, and the holder of its token may copy.

    Attributes
    ----------
    kernels, synchronized : Pipe
        Host to device: the kernels; device to host: all kernels before the marker are done.
    slots, batches : Pipe
        Host to loader: a slot is free; loader to host: a slot has a batch.
    copies, copied : Pipe
        Host to copy engine and back.
    """

    link: Pipe
    kernels: Pipe = field(default_factory=Pipe.open)
    synchronized: Pipe = field(default_factory=Pipe.open)
    slots: Pipe = field(default_factory=Pipe.open)
    batches: Pipe = field(default_factory=Pipe.open)
    copies: Pipe = field(default_factory=Pipe.open)
    copied: Pipe = field(default_factory=Pipe.open)


class Row(IntEnum):
    """Columns of `RankMemory.rows`: durations in seconds, except where named otherwise."""

    START = 0
    DATA_LOADING = 1
    HOST_TO_DEVICE = 2
    FORWARD = 3
    BACKWARD = 4
    PEER_WAIT = 5
    PEER_TRANSFER = 6
    ARRIVAL_TIME = 7
    DONE_TIME = 8
    OPTIMIZER = 9
    CHECKPOINT = 10
    GC = 11
    STEP = 12
    SAMPLES = 13
    TOKENS = 14
    SQUARED_LENGTHS = 15


class Knob(IntEnum):
    """Settings that the capture may change while the job runs."""

    LOADER_DELAY_SECONDS = 0
    DECODE_SECONDS = 1
    LENGTH_SPREAD = 2
    KERNEL_FACTOR = 3
    KEPT_OBJECTS = 4
    CHECKPOINT_EVERY = 5
    CHECKPOINT_SECONDS = 6
    PAGEABLE_SHARE = 7
    #: Long-lived objects are frozen: the collector skips them.
    FREEZE_OBJECTS = 8
    #: Checkpoints are written by a thread.
    CHECKPOINT_IN_BACKGROUND = 9
    #: Samples of the rank relative to an equal share.
    BATCH_SHARE = 10
    #: Loaders that serve besides the first.
    MORE_LOADERS = 11
    #: Sequences are dealt out to the ranks by their cost.
    BALANCED_LENGTHS = 12


#: Values of the knobs without a fault.
NEUTRAL: dict[Knob, float] = dict.fromkeys(Knob, 0.0) | {Knob.KERNEL_FACTOR: 1.0, Knob.BATCH_SHARE: 1.0}


class Gauge(IntEnum):
    """Values that a rank reports about itself."""

    STEP = 0
    GC_SECONDS = 1
    GC_COLLECTIONS = 2
    GC_COLLECTED = 3
    FINISHED = 4


class DevicePace(IntEnum):
    """Calibration by a GPU rank before the job, for all ranks: see `rca.lab.testbed.ranks.calibration`.

    The first four are factors on the nominal times of ranks without a GPU; 1 in a job without GPUs.
    """

    COPY = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    #: Repetitions of the batch on the GPU; 0 until known.
    REPEATS = 4
    COPIED_BYTES = 5
    #: Repetitions of the update on the GPU.
    UPDATES = 6
    #: Seconds of the GPU rank's step outside its phases: launches, and the wake-up after a wait.
    OUTSIDE_SECONDS = 7


class RankMemory:
    """The shared memory of one rank; create it before forking.

    Parameters
    ----------
    pace : ndarray of shape (len(DevicePace),), optional
        The job's pace, from `job_pace`; without it the rank gets its own.

    Attributes
    ----------
    rows : ndarray of shape (n_steps, len(Row))
        NaN if not measured (yet).
    knobs : ndarray of shape (len(Knob),)
    gauges : ndarray of shape (len(Gauge),)
    slots : ndarray of shape (MAX_SLOTS, BATCH_BYTES), uint8
        Decoded batches in host memory.
    device_batch : ndarray of shape (BATCH_BYTES,), uint8
        The batch on the device.
    gradients : memoryview
        ``4 * n_parameters`` bytes, float32.
    pace : ndarray of shape (len(DevicePace),)
    excess : ndarray of shape (4,), seconds
        Time of a stand-in's copy, forward, backward and optimizer beyond their padding, by `DevicePace`.
        The padding is shortened by it. 0 in a job without GPUs.
    """

    def __init__(self, n_steps: int, n_parameters: int, pace: FloatArray | None = None) -> None:
        self.rows = shared_floats(n_steps * len(Row)).reshape(n_steps, len(Row))
        self.rows[:] = np.nan
        self.knobs = shared_floats(len(Knob))
        self.knobs[list(NEUTRAL)] = list(NEUTRAL.values())
        self.gauges = shared_floats(len(Gauge))
        self.gauges[Gauge.STEP] = -1
        self.pace = job_pace() if pace is None else pace
        self.excess = shared_floats(DevicePace.REPEATS)
        slots = np.frombuffer(mmap.mmap(-1, MAX_SLOTS * BATCH_BYTES), np.uint8)
        self.slots: ByteArray = slots.reshape(MAX_SLOTS, BATCH_BYTES)
        self.device_batch: ByteArray = np.frombuffer(mmap.mmap(-1, BATCH_BYTES), np.uint8)
        self.gradients = memoryview(mmap.mmap(-1, 4 * n_parameters))

    @property
    def step(self) -> int:
        """The step the rank is in; -1 before the first."""
        return int(self.gauges[Gauge.STEP])

    @property
    def finished(self) -> bool:
        return bool(self.gauges[Gauge.FINISHED])


def job_pace() -> FloatArray:
    """Pace of a job, shared by all its ranks: nominal until a GPU rank writes its own."""
    pace = shared_floats(len(DevicePace))
    pace[: DevicePace.REPEATS] = 1.0
    return pace


def shared_floats(count: int) -> FloatArray:
    """Array of zeros in memory that forked processes share, shape (count,)."""
    return np.frombuffer(mmap.mmap(-1, 8 * count), np.float64)
