"""Marks on a device's own time line: CUDA events, or the host's clock where the host is the device."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Marks(Protocol):
    """Numbered points in time, reached in the order in which they were set."""

    def mark(self, number: int) -> None:
        """Set a mark behind everything the device was told so far."""

    def wait(self, number: int) -> None:
        """Return once the device has reached the mark; at once if it was never set."""

    def seconds(self, first: int, last: int) -> float:
        """Time between two marks that have been waited for."""


class HostMarks:
    """The host computes by itself: a mark is reached as soon as it is set."""

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

        # Blocking: a host that spins for the GPU would take the core from its neighbours.
        self._events = [torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(count)]

    def mark(self, number: int) -> None:
        """Record the event."""
        self._events[number].record()

    def wait(self, number: int) -> None:
        """Sleep until the GPU has come that far."""
        self._events[number].synchronize()

    def seconds(self, first: int, last: int) -> float:
        """Time between two events on the GPU, which counts in milliseconds."""
        return float(self._events[first].elapsed_time(self._events[last])) * 1e-3


def marks_on(device: Any, count: int) -> Marks:
    """Marks for a ``torch.device``."""
    return CudaMarks(count) if device.type == "cuda" else HostMarks(count)


def selected(where: str) -> Any:
    """The ``torch.device`` of this name, made the current one: events and pinned memory belong to that."""
    import torch

    device = torch.device(where)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
