"""Foreign processes on a GPU: idle on every rank's GPU, busy during a fault.

Healthy captures have them as well, with all their buffers: memory in use must not reveal a later fault. Their
work is the fault, and it starts without delay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum
from itertools import cycle
from typing import Any

from rca.arrays import FloatArray
from rca.lab.testbed.ranks.torch_device import EventMarks, marks_on, selected

#: Number of foreign processes on each GPU.
NEIGHBOURS = 3
WORK_PERIOD_SECONDS = 0.02
_IDLE_SECONDS = 0.002
# Operations in flight: the GPU must not be idle between two of them, nor work long after the end.
_IN_FLIGHT = 3
_Operation = Callable[[], Any]


class GpuWork(IntEnum):
    """Kind of work of a foreign process."""

    NOTHING = 0
    GEMMS = 1
    MEMORY_TRAFFIC = 2
    PINNED_COPIES = 3


class Control(IntEnum):
    """Shared floats that control a foreign process."""

    WORK = 0
    SHARE = 1
    READY = 2


class GpuOperations:
    """Operations of each kind of work, with their buffers on a device.

    Parameters
    ----------
    side : int
        Rows of the square matrices.
    traffic_bytes, copied_bytes : int
        Bytes that one operation moves.
    """

    def __init__(
        self,
        device: Any,
        side: int = 2048,
        traffic_bytes: int = 256 * 1024 * 1024,
        copied_bytes: int = 32 * 1024 * 1024,
    ) -> None:
        import torch

        factors = torch.ones(2, side, side, device=device)
        product = torch.empty(side, side, device=device)
        there = torch.empty(2, traffic_bytes, dtype=torch.uint8, device=device)
        host = torch.ones(copied_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        arrived = torch.empty(copied_bytes, dtype=torch.uint8, device=device)
        self._marks: EventMarks = marks_on(device, _IN_FLIGHT)
        self._operations: dict[GpuWork, _Operation] = {
            GpuWork.GEMMS: lambda: torch.mm(factors[0], factors[1], out=product),
            GpuWork.MEMORY_TRAFFIC: lambda: there[1].copy_(there[0]),
            GpuWork.PINNED_COPIES: lambda: arrived.copy_(host, non_blocking=True),
        }

    def warm_up(self) -> None:
        """Run every operation once: the first run loads libraries."""
        for work in self._operations:
            self.run(work, 0.0)

    def run(self, work: GpuWork, seconds: float) -> int:
        """Keep the device busy for some seconds, with at least one operation; return their number."""
        until = time.monotonic() + seconds
        done = 0
        for number in cycle(range(_IN_FLIGHT)):
            self._marks.wait(number)
            if done and time.monotonic() >= until:
                break
            self._operations[work]()
            self._marks.mark(number)
            done += 1
        for number in range(_IN_FLIGHT):
            self._marks.wait(number)
        return done


def serve(where: str, control: FloatArray) -> None:
    """Run a foreign process on a device until killed.

    Parameters
    ----------
    where : str
        A PyTorch device such as ``cuda:0``.
    control : ndarray of shape (len(Control),)
    """
    import torch

    torch.set_num_threads(1)
    device = selected(where)
    operations = GpuOperations(device)
    operations.warm_up()
    control[Control.READY] = 1
    while True:
        run_period(operations, control)


def run_period(operations: GpuOperations, control: FloatArray) -> None:
    """Run one period of the work in `control`."""
    work, share = GpuWork(int(control[Control.WORK])), float(control[Control.SHARE])
    if work is GpuWork.NOTHING or share <= 0:
        time.sleep(_IDLE_SECONDS)
        return
    operations.run(work, WORK_PERIOD_SECONDS * share)
    time.sleep(WORK_PERIOD_SECONDS * (1 - share))


def set_gpu_load(controls: list[FloatArray], work: GpuWork, load: float) -> None:
    """Spread a load over foreign processes: 1.5 is one busy process and one that is busy half the time."""
    for number, control in enumerate(controls):
        control[Control.SHARE] = min(1.0, max(0.0, load - number))
        control[Control.WORK] = work
