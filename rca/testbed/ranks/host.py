"""The host process: a data-parallel training loop that times its own phases."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rca.testbed.ranks import device
from rca.testbed.ranks.checkpoint import CheckpointWriter
from rca.testbed.ranks.collectives import Collectives
from rca.testbed.ranks.collector import Collector
from rca.testbed.ranks.shared import SLOTS, Gauge, Row, Shared
from rca.testbed.ranks.table import LookupTable
from rca.testbed.ranks.wires import BATCH_READY, KERNEL, Wires
from rca.testbed.scenario import JobShape

DISPATCH_SECONDS = 0.06e-3


@dataclass(frozen=True)
class HostPlan:
    """What a host needs to know.

    Attributes
    ----------
    n_blocks : int
        Kernels per direction.
    rendezvous : str
        ``tcp://address:port`` of rank 0.
    interface : str
        Network interface for gloo.
    folder : Path
        Scratch space, on a disk.
    """

    rank: int
    job: JobShape
    n_blocks: int
    rendezvous: str
    interface: str
    folder: Path


def train(plan: HostPlan, shared: Shared, wires: Wires) -> None:
    """Train for the job's steps, writing a row of `shared.rows` for each."""
    os.environ["GLOO_SOCKET_IFNAME"] = plan.interface
    for slot in range(SLOTS):
        wires.slots.send(bytes([slot]))
    collectives = Collectives(plan.rank, plan.job, plan.rendezvous)
    host = Host(plan, shared, wires, collectives)
    for step in range(plan.job.steps):
        shared.gauges[Gauge.STEP] = step
        host.step(step)
    shared.gauges[Gauge.FINISHED] = 1
    collectives.leave()


class Host:
    """One rank's training loop."""

    def __init__(self, plan: HostPlan, shared: Shared, wires: Wires, collectives: Collectives) -> None:
        import torch

        # Worker threads would spin for the one core that the host shares with its neighbours.
        torch.set_num_threads(1)
        self._plan = plan
        self._shared = shared
        self._wires = wires
        self._collectives = collectives
        self._gradients = torch.frombuffer(shared.gradients, dtype=torch.float32)
        self._collector = Collector(shared)
        self._table = LookupTable(plan.folder / f"table-{plan.rank}", plan.rank)
        self._checkpoints = CheckpointWriter(plan.folder / f"checkpoint-{plan.rank}", shared)
        self._length = 0.0

    def step(self, step: int) -> None:
        """Run one training step."""
        row = self._shared.rows[step]
        began = time.monotonic()
        row[Row.START] = began
        collected = float(self._shared.gauges[Gauge.GC_SECONDS])
        self._load(row)
        self._compute(row)
        row[Row.ARRIVAL_TIME] = time.monotonic()
        self._collectives.all_reduce(self._gradients)
        row[Row.DONE_TIME] = time.monotonic()
        row[Row.OPTIMIZER] = self._launch(device.OPTIMIZE, [0])
        self._collector.after_step(step)
        row[Row.CHECKPOINT] = self._checkpoints.after_step(step)
        row[Row.GC] = self._shared.gauges[Gauge.GC_SECONDS] - collected
        row[Row.STEP] = time.monotonic() - began

    def _load(self, row: Any) -> None:
        began = time.monotonic()
        message = self._wires.batches.receive(BATCH_READY.size)
        slot, row[Row.SAMPLES], row[Row.TOKENS], row[Row.SQUARED_LENGTHS], self._length = BATCH_READY.unpack(
            message
        )
        self._table.touch()
        loaded = time.monotonic()
        row[Row.DATA_LOADING] = loaded - began
        self._wires.copies.send(bytes([slot]))
        self._wires.copied.receive(1)
        row[Row.HOST_TO_DEVICE] = time.monotonic() - loaded
        self._wires.slots.send(bytes([slot]))

    def _compute(self, row: Any) -> None:
        """Forward and backward; between pipeline stages, with activations sent over the network."""
        blocks = range(self._plan.n_blocks)
        waited = self._collectives.receive_activations()
        row[Row.FORWARD] = self._launch(device.FORWARD, blocks)
        sent = self._collectives.send_activations()
        returned = self._collectives.receive_gradients()
        row[Row.BACKWARD] = self._launch(device.BACKWARD, reversed(blocks))
        sent += self._collectives.send_gradients()
        row[Row.PEER_WAIT] = waited + returned
        row[Row.PEER_TRANSFER] = sent

    def _launch(self, kind: int, blocks: Any) -> float:
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
