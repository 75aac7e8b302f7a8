"""The device of a rank with a GPU: the host copies, computes, and measures times with marks on the device.

Marks are CUDA events, or times of the host's clock if the device is the CPU. Only memory pinning and marks
are specific to CUDA, so the same code runs on a CPU.
"""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Any, Protocol

from rca.arrays import FloatArray
from rca.lab.testbed.ranks.models import LEARNING_RATE, Network, views
from rca.lab.testbed.ranks.shared import BATCH_BYTES, Knob, RankMemory, Row

# Share of the device's memory; the rest is for other processes.
_MEMORY_SHARE = 0.5


class EventMarks(Protocol):
    """Numbered points in time, reached in the order in which they were set."""

    def mark(self, number: int) -> None:
        """Set a mark after all work submitted to the device."""

    def wait(self, number: int) -> None:
        """Return once the device has reached the mark, or at once if it was never set."""

    def seconds(self, first: int, last: int) -> float:
        """Seconds between two marks after `wait` for both."""


class HostMarks:
    """Marks for the CPU as device: a mark is reached when it is set."""

    def __init__(self, count: int) -> None:
        self._times = [0.0] * count

    def mark(self, number: int) -> None:
        """Note the time."""
        self._times[number] = time.monotonic()

    def wait(self, number: int) -> None:
        """Nothing to wait for."""

    def seconds(self, first: int, last: int) -> float:
        """Time between two marks."""
        return self._times[last] - self._times[first]


class CudaMarks:
    """Events on the current stream."""

    def __init__(self, count: int) -> None:
        import torch

        # Blocking: a host that polls the GPU would take the core from its neighbours.
        self._events = [torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(count)]

    def mark(self, number: int) -> None:
        """Record the event."""
        self._events[number].record()

    def wait(self, number: int) -> None:
        """Sleep until the GPU has reached the event."""
        self._events[number].synchronize()

    def seconds(self, first: int, last: int) -> float:
        """Seconds between two events; CUDA returns milliseconds."""
        return float(self._events[first].elapsed_time(self._events[last])) * 1e-3


def marks_on(device: Any, count: int) -> EventMarks:
    """Marks for a ``torch.device``."""
    return CudaMarks(count) if device.type == "cuda" else HostMarks(count)


def selected(where: str) -> Any:
    """Return the ``torch.device`` of this name and make it the current one, for events and pinned memory."""
    import torch

    device = torch.device(where)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


class Point(IntEnum):
    """Marks of a step, in order."""

    BEGUN = 0
    COPIED = 1
    FORWARD_DONE = 2
    BACKWARD_DONE = 3
    GRADIENTS_LEFT = 4
    AVERAGED = 5
    GRADIENTS_BACK = 6
    UPDATED = 7


class TorchDevice:
    """A network on a device, with its input buffers.

    All copies over the link, of batches and of gradients, count as host to device: the window has one such
    phase. The host waits twice per step, before and after the collective, as gloo requires.

    Parameters
    ----------
    network : Network
        Moved to the device.

    Attributes
    ----------
    n_bytes, repeats : int
        Bytes copied per step, and repetitions of the batch on the device.
    updates : int
        Parts in which the parameters are updated, one after the other.
    """

    def __init__(self, network: Network, shared: RankMemory, device: Any) -> None:
        import torch

        network.move(device)
        self._torch = torch
        self._device = device
        self._network = network
        self._shared = shared
        self._pinned = device.type == "cuda"
        self._parameters = network.parameters()
        n_parameters = sum(parameter.numel() for parameter in self._parameters)
        self.gradients: Any = torch.zeros(n_parameters, pin_memory=self._pinned)
        self._flat = torch.zeros(n_parameters, device=device)
        self._views = views(self._flat, self._parameters)
        self._marks = marks_on(device, len(Point))
        self._output: Any = None
        self.n_bytes = 0
        self.updates = 1
        self.resize(BATCH_BYTES, 1)

    def resize(self, n_bytes: int, repeats: int) -> None:
        """Set the bytes copied per step and the repetitions of the batch on the device.

        Parameters
        ----------
        n_bytes : int
            At least the size of a batch; further bytes are copied but not used.
        """
        self.repeats = repeats
        if n_bytes == self.n_bytes:
            return
        torch, self.n_bytes = self._torch, max(n_bytes, BATCH_BYTES)
        # Both buffers always exist: the memory of a rank must not reveal which one it copies from.
        self._pageable = torch.ones(self.n_bytes, dtype=torch.uint8)
        self._staged = torch.ones(self.n_bytes, dtype=torch.uint8, pin_memory=self._pinned)
        self._arrived = torch.ones(self.n_bytes, dtype=torch.uint8, device=self._device)

    def growth_factor(self) -> float:
        """Factor by which the batch may grow before the device's memory is short."""
        if self._device.type != "cuda":
            return float("inf")
        free, _ = self._torch.cuda.mem_get_info(self._device)
        held = self._torch.cuda.memory_reserved(self._device)
        peak = self._torch.cuda.max_memory_allocated(self._device)
        return float(_MEMORY_SHARE * (free + held) / max(1, peak))

    def copy(self, slot: int, row: FloatArray) -> None:
        """Start copying the batch."""
        del row  # known only after the device has finished
        served = self._torch.from_numpy(self._shared.slots[slot])
        self._pageable[:BATCH_BYTES] = served
        self._staged[:BATCH_BYTES] = served
        split = int(self.n_bytes * float(self._shared.knobs[Knob.PAGEABLE_SHARE]))
        self._marks.mark(Point.BEGUN)
        self._arrived[:split].copy_(self._pageable[:split])
        self._arrived[split:].copy_(self._staged[split:], non_blocking=True)
        self._marks.mark(Point.COPIED)

    def forward(self, length: float, row: FloatArray) -> None:
        """Start the forward pass."""
        del row
        served = self._network.inputs(self._arrived[:BATCH_BYTES], int(length))
        held = served.repeat(self.repeats, *[1] * (served.dim() - 1))
        for block in self._network.blocks:
            held = block(held)
        self._output = held
        self._marks.mark(Point.FORWARD_DONE)

    def backward(self, row: FloatArray) -> None:
        """Run the backward pass, fetch the gradients, and wait for both."""
        for parameter in self._parameters:
            parameter.grad = None
        self._output.backward(self._output.detach() / self._output.numel())
        self._output = None
        for parameter, view in zip(self._parameters, self._views, strict=True):
            view.copy_(parameter.grad)
        self._marks.mark(Point.BACKWARD_DONE)
        self.gradients.copy_(self._flat, non_blocking=True)
        self._marks.mark(Point.GRADIENTS_LEFT)
        self._marks.wait(Point.GRADIENTS_LEFT)
        seconds = self._marks.seconds
        row[Row.FORWARD] = seconds(Point.COPIED, Point.FORWARD_DONE)
        row[Row.BACKWARD] = seconds(Point.FORWARD_DONE, Point.BACKWARD_DONE)
        row[Row.HOST_TO_DEVICE] = seconds(Point.BEGUN, Point.COPIED) + seconds(
            Point.BACKWARD_DONE, Point.GRADIENTS_LEFT
        )

    def optimize(self, row: FloatArray) -> None:
        """Send the averaged gradients back and apply them."""
        self._marks.mark(Point.AVERAGED)
        self._flat.copy_(self.gradients, non_blocking=True)
        self._marks.mark(Point.GRADIENTS_BACK)
        for _ in range(self.updates):
            for parameter, view in zip(self._parameters, self._views, strict=True):
                parameter.data.sub_(view, alpha=LEARNING_RATE / self.updates)
        self._marks.mark(Point.UPDATED)
        self._marks.wait(Point.UPDATED)
        row[Row.HOST_TO_DEVICE] += self._marks.seconds(Point.AVERAGED, Point.GRADIENTS_BACK)
        row[Row.OPTIMIZER] = self._marks.seconds(Point.GRADIENTS_BACK, Point.UPDATED)
