"""The device of a rank without a GPU: a device process and a copy-engine process, and the host's end of both.

The device process runs real forward and backward kernels, each padded to a fixed time. The copy engine copies
in chunks. All copiers of a node share one token, which replaces the PCIe link.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from math import ceil
from typing import Any

from rca.arrays import FloatArray
from rca.lab.testbed.ranks.models import LEARNING_RATE, TYPICAL_TOKENS, Network, views
from rca.lab.testbed.ranks.shared import (
    BATCH_BYTES,
    KERNEL,
    TOKEN,
    DevicePace,
    Knob,
    Pipe,
    Pipes,
    RankMemory,
    Row,
)

FORWARD, BACKWARD, OPTIMIZE, SYNCHRONIZE = range(4)
OPTIMIZER_SECONDS = 3.0e-3
CHUNKS = 16
CHUNK_SECONDS = 0.18e-3
# Without a pause, the process that returns the token would always get it again.
PAUSE_SECONDS = 0.02e-3
DISPATCH_SECONDS = 0.06e-3


def serve_kernels(network: Network, shared: RankMemory, pipes: Pipes, scale: float) -> None:
    """Run the received kernels in order until killed."""
    import torch

    torch.set_num_threads(1)
    device = Device(network, shared, scale)
    while True:
        kind, block, length = KERNEL.unpack(pipes.kernels.receive(KERNEL.size))
        if kind == SYNCHRONIZE:
            pipes.synchronized.send(TOKEN)
            continue
        started = time.monotonic()
        device.run(kind, block, length)
        seconds = device.padded_seconds(kind, block, length) * shared.knobs[Knob.KERNEL_FACTOR]
        if kind != OPTIMIZE:
            seconds *= shared.knobs[Knob.BATCH_SHARE]
        seconds -= device.excess_seconds(kind)
        time.sleep(max(0.0, started + seconds - time.monotonic()))


class Device:
    """The network's state on the device."""

    def __init__(self, network: Network, shared: RankMemory, scale: float) -> None:
        import torch

        self._network = network
        self._shared = shared
        self._scale = scale
        self._parameters = network.parameters()
        self._batch = torch.from_numpy(shared.device_batch)
        self._gradients = views(torch.frombuffer(shared.gradients, dtype=torch.float32), self._parameters)
        self._held: list[tuple[Any, Any]] = []
        self._gradient: Any = None
        self._share = 1.0

    def run(self, kind: int, block: int, length: float) -> None:
        """Compute one kernel."""
        if kind == FORWARD:
            self._forward(block, int(length))
        elif kind == BACKWARD:
            self._backward(block)
        else:
            self._optimize()

    def padded_seconds(self, kind: int, block: int, length: float) -> float:
        """Padded time of a kernel; it grows with the tokens and squared lengths of the sequences."""
        pace = self._shared.pace
        if kind == OPTIMIZE:
            return OPTIMIZER_SECONDS * self._scale * float(pace[DevicePace.OPTIMIZER])
        forward = kind == FORWARD
        held = self._network.forward_seconds if forward else self._network.backward_seconds
        nominal = held[block] * float(pace[DevicePace.FORWARD if forward else DevicePace.BACKWARD])
        relative = length / TYPICAL_TOKENS
        return nominal * (1.0 if length == 0 else 0.5 * relative + 0.5 * relative**2)

    def excess_seconds(self, kind: int) -> float:
        """Time of a kernel beyond its padding, by the calibration."""
        if kind == OPTIMIZE:
            return float(self._shared.excess[DevicePace.OPTIMIZER])
        phase = DevicePace.FORWARD if kind == FORWARD else DevicePace.BACKWARD
        return float(self._shared.excess[phase]) / len(self._network.blocks)

    def _forward(self, block: int, length: int) -> None:
        if block == 0:
            self._held = []
            self._share = float(self._shared.knobs[Knob.BATCH_SHARE])
            arrived = resized(self._network.inputs(self._batch, length), self._share)
        else:
            arrived = self._held[-1][1].detach()
        arrived.requires_grad_(True)
        self._held.append((arrived, self._network.blocks[block](arrived)))

    def _backward(self, block: int) -> None:
        arrived, left = self._held[block]
        if block == len(self._held) - 1:
            # Weighted by the samples, so that the update stays that of the whole batch.
            self._gradient = left.detach() * (self._share / left.numel())
            for parameter in self._parameters:
                parameter.grad = None
        left.backward(self._gradient)
        self._gradient = arrived.grad
        if block == 0:
            self._flatten()

    def _flatten(self) -> None:
        """Copy the gradients into the flat buffer of the collective, as a gradient bucket does."""
        for parameter, view in zip(self._parameters, self._gradients, strict=True):
            view.copy_(parameter.grad)

    def _optimize(self) -> None:
        for parameter, view in zip(self._parameters, self._gradients, strict=True):
            parameter.data.sub_(view, alpha=LEARNING_RATE)


def resized(batch: Any, share: float) -> Any:
    """A batch with a share of its samples; above 1 the first ones come again.

    Parameters
    ----------
    batch : torch.Tensor
        Samples in the first dimension.
    """
    if share == 1.0:
        return batch
    wanted = max(1, round(share * len(batch)))
    return batch.repeat(ceil(wanted / len(batch)), *[1] * (batch.dim() - 1))[:wanted]


def serve_copies(shared: RankMemory, pipes: Pipes, scale: float) -> None:
    """Copy batches from host to device memory until killed."""
    size = BATCH_BYTES // CHUNKS
    while True:
        slot = pipes.copies.receive(1)[0]
        for chunk in range(CHUNKS):
            part = slice(chunk * size, (chunk + 1) * size)
            pipes.link.receive(1)
            started = time.monotonic()
            shared.device_batch[part] = shared.slots[slot, part]
            seconds = (
                CHUNK_SECONDS * scale * shared.pace[DevicePace.COPY] - shared.excess[DevicePace.COPY] / CHUNKS
            )
            time.sleep(max(0.0, started + seconds - time.monotonic()))
            pipes.link.send(TOKEN)
            time.sleep(PAUSE_SECONDS)
        pipes.copied.send(TOKEN)


def copy_without_end(link: Pipe, scale: float) -> None:
    """Copy as a foreign process on the same link until killed."""
    while True:
        link.receive(1)
        time.sleep(CHUNK_SECONDS * scale)
        link.send(TOKEN)
        time.sleep(PAUSE_SECONDS)


class StandIn:
    """Dispatches kernels to the device process and waits for it.

    Parameters
    ----------
    n_blocks : int
        Kernels per direction.
    """

    def __init__(self, shared: RankMemory, pipes: Pipes, n_blocks: int) -> None:
        import torch

        self.gradients: Any = torch.frombuffer(shared.gradients, dtype=torch.float32)
        self._pipes = pipes
        self._blocks = range(n_blocks)
        self._length = 0.0

    def copy(self, slot: int, row: FloatArray) -> None:
        """Let the copy engine copy the batch."""
        began = time.monotonic()
        self._pipes.copies.send(bytes([slot]))
        self._pipes.copied.receive(1)
        row[Row.HOST_TO_DEVICE] = time.monotonic() - began

    def forward(self, length: float, row: FloatArray) -> None:
        """Run all blocks forward."""
        self._length = length
        row[Row.FORWARD] = self._launch(FORWARD, self._blocks)

    def backward(self, row: FloatArray) -> None:
        """Run all blocks backward."""
        row[Row.BACKWARD] = self._launch(BACKWARD, reversed(self._blocks))

    def optimize(self, row: FloatArray) -> None:
        """Run the optimizer's kernel."""
        row[Row.OPTIMIZER] = self._launch(OPTIMIZE, [0])

    def _launch(self, kind: int, blocks: Iterable[int]) -> float:
        """Dispatch kernels and wait until the device has run them; return the seconds from first to last."""
        began = time.monotonic()
        for block in blocks:
            _dispatch()
            self._pipes.kernels.send(KERNEL.pack(kind, block, self._length))
        self._pipes.kernels.send(KERNEL.pack(SYNCHRONIZE, 0, 0.0))
        self._pipes.synchronized.receive(1)
        return time.monotonic() - began


def _dispatch() -> None:
    """Use the CPU time that a framework needs for a kernel launch."""
    until = time.thread_time() + DISPATCH_SECONDS
    while time.thread_time() < until:
        {name: [name] for name in ("grid", "block", "arguments")}.get("grid")
