"""Foreign processes on a GPU: idle beside every GPU rank, busy when told to.

They are there in healthy captures, too, with all their buffers: memory in use must not tell a fault that
is only about to come. Only their work is the fault, and starting it takes no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum
from itertools import cycle
from typing import Any

from rca.arrays import FloatArray
from rca.testbed.ranks.torch_device import Marks, marks_on, selected

#: Beside each GPU rank.
NEIGHBOURS = 3
PERIOD_SECONDS = 0.02
_IDLE_SECONDS = 0.002
# What is under way at once: the GPU must not run dry between two of them, nor work on long after the end.
_IN_FLIGHT = 3
_Work = Callable[[], Any]


class Deed(IntEnum):
    """What a neighbour does with the GPU."""

    NOTHING = 0
    GEMMS = 1
    MEMORY_TRAFFIC = 2
    PINNED_COPIES = 3


class Control(IntEnum):
    """Shared floats through which a neighbour is told."""

    DEED = 0
    SHARE = 1
    READY = 2


class Works:
    """The deeds' operations with their buffers on a device.

    Parameters
    ----------
    device : torch.device
    side : int
        Rows of the square matrices.
    traffic_bytes, copied_bytes : int
        Moved by one operation.
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
        self._marks: Marks = marks_on(device, _IN_FLIGHT)
        self._works: dict[Deed, _Work] = {
            Deed.GEMMS: lambda: torch.mm(factors[0], factors[1], out=product),
            Deed.MEMORY_TRAFFIC: lambda: there[1].copy_(there[0]),
            Deed.PINNED_COPIES: lambda: arrived.copy_(host, non_blocking=True),
        }

    def warm_up(self) -> None:
        """Do everything once: the first time loads libraries."""
        for deed in self._works:
            self.do(deed, 0.0)

    def do(self, deed: Deed, seconds: float) -> int:
        """Keep the device busy for so long, with one operation at least; how many there were."""
        until = time.monotonic() + seconds
        done = 0
        for number in cycle(range(_IN_FLIGHT)):
            self._marks.wait(number)
            if done and time.monotonic() >= until:
                break
            self._works[deed]()
            self._marks.mark(number)
            done += 1
        for number in range(_IN_FLIGHT):
            self._marks.wait(number)
        return done


def serve(where: str, control: FloatArray) -> None:
    """Be a neighbour on a device until killed.

    Parameters
    ----------
    where : str
        A PyTorch device such as ``cuda:0``.
    control : ndarray of shape (len(Control),)
    """
    import torch

    torch.set_num_threads(1)
    device = selected(where)
    works = Works(device)
    works.warm_up()
    control[Control.READY] = 1
    while True:
        obey(works, control)


def obey(works: Works, control: FloatArray) -> None:
    """Do one period of what `control` says."""
    deed, share = Deed(int(control[Control.DEED])), float(control[Control.SHARE])
    if deed is Deed.NOTHING or share <= 0:
        time.sleep(_IDLE_SECONDS)
        return
    works.do(deed, PERIOD_SECONDS * share)
    time.sleep(PERIOD_SECONDS * (1 - share))


def instruct(controls: list[FloatArray], deed: Deed, load: float) -> None:
    """Spread a load over neighbours: 1.5 is one that never rests and one that rests half the time."""
    for number, control in enumerate(controls):
        control[Control.SHARE] = min(1.0, max(0.0, load - number))
        control[Control.DEED] = deed
