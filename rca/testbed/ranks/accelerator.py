"""What a host computes on: a stand-in made of processes, or a real device."""

from __future__ import annotations

from typing import Any, Protocol

from rca.arrays import FloatArray


class Accelerator(Protocol):
    """Runs the parts of a step, in this order, and writes what they took into the step's row.

    A real device may work behind the host's back until `backward` returns; the row is complete only then.

    Attributes
    ----------
    gradients : torch.Tensor
        float32 in host memory, averaged in place by the collective between `backward` and `optimize`.
    """

    gradients: Any

    def copy(self, slot: int, row: FloatArray) -> None:
        """Bring a loaded batch to the device; the slot is free afterwards."""

    def forward(self, length: float, row: FloatArray) -> None:
        """Run the forward pass on sequences of this length (0 where the model has none)."""

    def backward(self, row: FloatArray) -> None:
        """Run the backward pass and put the gradients into `gradients`."""

    def optimize(self, row: FloatArray) -> None:
        """Apply `gradients` to the parameters."""
