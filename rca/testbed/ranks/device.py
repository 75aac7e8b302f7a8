"""The device: real forward and backward kernels, each padded to a fixed time. Stands in for a GPU."""

from __future__ import annotations

import time
from typing import Any

from rca.testbed.ranks.models import TYPICAL, Network
from rca.testbed.ranks.shared import Knob, Pace, Shared
from rca.testbed.ranks.wires import KERNEL, TOKEN, Wires

FORWARD, BACKWARD, OPTIMIZE, SYNCHRONIZE = range(4)
OPTIMIZER_SECONDS = 3.0e-3
LEARNING_RATE = 1e-3


def serve(network: Network, shared: Shared, wires: Wires, scale: float) -> None:
    """Run the kernels it is sent, in order, until killed."""
    import torch

    torch.set_num_threads(1)
    device = Device(network, shared, scale)
    while True:
        kind, block, length = KERNEL.unpack(wires.kernels.receive(KERNEL.size))
        if kind == SYNCHRONIZE:
            wires.synchronized.send(TOKEN)
            continue
        started = time.monotonic()
        device.run(kind, block, length)
        seconds = device.padded_seconds(kind, block, length) * shared.knobs[Knob.KERNEL_FACTOR]
        time.sleep(max(0.0, started + seconds - time.monotonic()))


class Device:
    """The network's state on the device."""

    def __init__(self, network: Network, shared: Shared, scale: float) -> None:
        import torch

        self._network = network
        self._shared = shared
        self._scale = scale
        self._parameters = network.parameters()
        self._batch = torch.from_numpy(shared.device_batch)
        self._gradients = views(torch.frombuffer(shared.gradients, dtype=torch.float32), self._parameters)
        self._held: list[tuple[Any, Any]] = []
        self._gradient: Any = None

    def run(self, kind: int, block: int, length: float) -> None:
        """Compute one kernel for real."""
        if kind == FORWARD:
            self._forward(block, int(length))
        elif kind == BACKWARD:
            self._backward(block)
        else:
            self._optimize()

    def padded_seconds(self, kind: int, block: int, length: float) -> float:
        """Time the kernel is padded to; longer sequences cost their tokens and their squares."""
        pace = self._shared.pace
        if kind == OPTIMIZE:
            return OPTIMIZER_SECONDS * self._scale * float(pace[Pace.OPTIMIZER])
        forward = kind == FORWARD
        held = self._network.forward_seconds if forward else self._network.backward_seconds
        nominal = held[block] * float(pace[Pace.FORWARD if forward else Pace.BACKWARD])
        relative = length / TYPICAL
        return nominal * (1.0 if length == 0 else 0.5 * relative + 0.5 * relative**2)

    def _forward(self, block: int, length: int) -> None:
        if block == 0:
            self._held = []
            arrived = self._network.inputs(self._batch, length)
        else:
            arrived = self._held[-1][1].detach()
        arrived.requires_grad_(True)
        self._held.append((arrived, self._network.blocks[block](arrived)))

    def _backward(self, block: int) -> None:
        arrived, left = self._held[block]
        if block == len(self._held) - 1:
            self._gradient = left.detach() / left.numel()
            for parameter in self._parameters:
                parameter.grad = None
        left.backward(self._gradient)
        self._gradient = arrived.grad
        if block == 0:
            self._flatten()

    def _flatten(self) -> None:
        """Lay the gradients out for the collective, as a gradient bucket does."""
        for parameter, view in zip(self._parameters, self._gradients, strict=True):
            view.copy_(parameter.grad)

    def _optimize(self) -> None:
        for parameter, view in zip(self._parameters, self._gradients, strict=True):
            parameter.data.sub_(view, alpha=LEARNING_RATE)


def views(flat: Any, parameters: list[Any]) -> list[Any]:
    """Each parameter's part of a flat buffer, in its shape."""
    parts = flat.split([parameter.numel() for parameter in parameters])
    return [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]
