"""The accelerator of a rank without a GPU: its device and copy-engine processes, at the end of pipes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from rca.arrays import FloatArray
from rca.testbed.ranks import device
from rca.testbed.ranks.shared import Row, Shared
from rca.testbed.ranks.wires import KERNEL, Wires

DISPATCH_SECONDS = 0.06e-3


class StandIn:
    """Dispatches kernels to the device process and waits for it.

    Parameters
    ----------
    n_blocks : int
        Kernels per direction.
    """

    def __init__(self, shared: Shared, wires: Wires, n_blocks: int) -> None:
        import torch

        self.gradients: Any = torch.frombuffer(shared.gradients, dtype=torch.float32)
        self._wires = wires
        self._blocks = range(n_blocks)
        self._length = 0.0

    def copy(self, slot: int, row: FloatArray) -> None:
        """Let the copy engine copy the batch."""
        began = time.monotonic()
        self._wires.copies.send(bytes([slot]))
        self._wires.copied.receive(1)
        row[Row.HOST_TO_DEVICE] = time.monotonic() - began

    def forward(self, length: float, row: FloatArray) -> None:
        """Run all blocks forward."""
        self._length = length
        row[Row.FORWARD] = self._launch(device.FORWARD, self._blocks)

    def backward(self, row: FloatArray) -> None:
        """Run all blocks backward."""
        row[Row.BACKWARD] = self._launch(device.BACKWARD, reversed(self._blocks))

    def optimize(self, row: FloatArray) -> None:
        """Run the optimizer's kernel."""
        row[Row.OPTIMIZER] = self._launch(device.OPTIMIZE, [0])

    def _launch(self, kind: int, blocks: Iterable[int]) -> float:
        """Dispatch kernels, wait until the device has run them; seconds from first to last."""
        began = time.monotonic()
        for block in blocks:
            _dispatch()
            self._wires.kernels.send(KERNEL.pack(kind, block, self._length))
        self._wires.kernels.send(KERNEL.pack(device.SYNCHRONIZE, 0, 0.0))
        self._wires.synchronized.receive(1)
        return time.monotonic() - began


def _dispatch() -> None:
    """Spend the CPU time that a framework spends on the way to a kernel launch."""
    until = time.thread_time() + DISPATCH_SECONDS
    while time.thread_time() < until:
        {name: [name] for name in ("grid", "block", "arguments")}.get("grid")
