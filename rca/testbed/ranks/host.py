"""The host process: a data-parallel training loop that times its own phases."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rca.arrays import FloatArray
from rca.testbed.ranks.accelerator import Accelerator
from rca.testbed.ranks.checkpoint import CheckpointWriter
from rca.testbed.ranks.collectives import Collectives
from rca.testbed.ranks.collector import Collector
from rca.testbed.ranks.shared import SLOTS, Gauge, Row, Shared
from rca.testbed.ranks.table import LookupTable
from rca.testbed.ranks.wires import BATCH_READY, Wires
from rca.testbed.scenario import JobShape


@dataclass(frozen=True)
class HostPlan:
    """What a host needs to know.

    Attributes
    ----------
    rendezvous : str
        ``tcp://address:port`` of rank 0.
    interface : str
        Network interface for gloo.
    folder : Path
        Scratch space, on a disk.
    """

    rank: int
    job: JobShape
    rendezvous: str
    interface: str
    folder: Path


def train(plan: HostPlan, shared: Shared, wires: Wires, prepare: Callable[[], Accelerator]) -> None:
    """Train for the job's steps, writing a row of `shared.rows` for each.

    Parameters
    ----------
    prepare : callable
        Makes the accelerator in this process, ready for the first step.
    """
    import torch

    # Worker threads would spin for the one core that the host shares with its neighbours.
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = plan.interface
    accelerator = prepare()
    for slot in range(SLOTS):
        wires.slots.send(bytes([slot]))
    collectives = Collectives(plan.rank, plan.job, plan.rendezvous)
    host = Host(plan, shared, wires, collectives, accelerator)
    for step in range(plan.job.steps):
        shared.gauges[Gauge.STEP] = step
        host.step(step)
    shared.gauges[Gauge.FINISHED] = 1
    collectives.leave()


class Host:
    """One rank's training loop."""

    def __init__(
        self,
        plan: HostPlan,
        shared: Shared,
        wires: Wires,
        collectives: Collectives,
        accelerator: Accelerator,
    ) -> None:
        self._shared = shared
        self._wires = wires
        self._collectives = collectives
        self._accelerator = accelerator
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
        self._collectives.all_reduce(self._accelerator.gradients)
        row[Row.DONE_TIME] = time.monotonic()
        self._accelerator.optimize(row)
        self._collector.after_step(step)
        row[Row.CHECKPOINT] = self._checkpoints.after_step(step)
        row[Row.GC] = self._shared.gauges[Gauge.GC_SECONDS] - collected
        row[Row.STEP] = time.monotonic() - began

    def _load(self, row: FloatArray) -> None:
        began = time.monotonic()
        message = self._wires.batches.receive(BATCH_READY.size)
        slot, row[Row.SAMPLES], row[Row.TOKENS], row[Row.SQUARED_LENGTHS], self._length = BATCH_READY.unpack(
            message
        )
        self._table.touch()
        row[Row.DATA_LOADING] = time.monotonic() - began
        self._accelerator.copy(slot, row)
        self._wires.slots.send(bytes([slot]))

    def _compute(self, row: FloatArray) -> None:
        """Forward and backward; between pipeline stages, with activations sent over the network."""
        waited = self._collectives.receive_activations()
        self._accelerator.forward(self._length, row)
        sent = self._collectives.send_activations()
        returned = self._collectives.receive_gradients()
        self._accelerator.backward(row)
        sent += self._collectives.send_gradients()
        row[Row.PEER_WAIT] = waited + returned
        row[Row.PEER_TRANSFER] = sent
