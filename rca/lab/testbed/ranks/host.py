"""The host process: a data-parallel training loop that measures its own phases.

It includes three parts on which faults act. They are the garbage collector with real objects, a lookup table
that loses its pages under a memory limit, and checkpoints that are really written.
"""

from __future__ import annotations

import gc
import mmap
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rca.arrays import FloatArray
from rca.lab.testbed.ranks.collectives import Collectives
from rca.lab.testbed.ranks.shared import BATCH_READY, SLOTS, Gauge, Knob, Pipes, RankMemory, Row
from rca.lab.testbed.scenario import TestbedJob

COLLECT_EVERY_STEPS = 2
TABLE_BYTES = 16 * 1024 * 1024
TOUCHES = 400
_CHECKPOINT_CHUNK = bytes(256 * 1024)
_CHECKPOINT_CHUNKS = 16


class Accelerator(Protocol):
    """Runs the parts of a step, in this order, and writes their durations into the step's row.

    A real device may work asynchronously until `backward` returns; only then the row is complete.

    Attributes
    ----------
    gradients : torch.Tensor
        float32 in host memory, averaged in place by the collective between `backward` and `optimize`.
    """

    gradients: Any

    def copy(self, slot: int, row: FloatArray) -> None:
        """Copy a loaded batch to the device; the slot is free afterwards."""

    def forward(self, length: float, row: FloatArray) -> None:
        """Run the forward pass on sequences of this length (0 for models without sequences)."""

    def backward(self, row: FloatArray) -> None:
        """Run the backward pass and put the gradients into `gradients`."""

    def optimize(self, row: FloatArray) -> None:
        """Apply `gradients` to the parameters."""


class GcMonitor:
    """Times every collection into the rank's gauges."""

    def __init__(self, shared: RankMemory) -> None:
        self._shared = shared
        self._began = 0.0
        self._kept: list[Any] = []
        self._frozen = False
        gc.collect()
        gc.freeze()  # inherited objects are no garbage of this process
        gc.callbacks.append(self._observe)

    def after_step(self, step: int) -> None:
        """Keep the set number of objects, and collect as often as a leaking job does."""
        wanted = int(self._shared.knobs[Knob.KEPT_OBJECTS])
        freeze = bool(self._shared.knobs[Knob.FREEZE_OBJECTS])
        if wanted == 0 or (self._frozen and not freeze):
            # Frozen objects cannot be thawed alone: new ones take their place.
            self._kept, self._frozen = [], False
        if wanted == 0:
            return
        if not self._kept:
            # Disabled during creation: pauses must fall into the steps.
            gc.disable()
            self._kept = [[] for _ in range(wanted)]
            gc.enable()
        if freeze and not self._frozen:
            gc.freeze()
            self._frozen = True
        if step % COLLECT_EVERY_STEPS == 0:
            gc.collect()

    def _observe(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.monotonic()
            return
        gauges = self._shared.gauges
        gauges[Gauge.GC_SECONDS] += time.monotonic() - self._began
        gauges[Gauge.GC_COLLECTIONS] += 1
        gauges[Gauge.GC_COLLECTED] += info["collected"]


class LookupTable:
    """A table of which every step reads random pages; the kernel charges them to the rank's group."""

    def __init__(self, path: Path, seed: int) -> None:
        # The rank itself writes the file: the kernel charges a page to the process that loads it.
        with path.open("wb") as file:
            file.write(bytes(TABLE_BYTES))
            file.flush()
            os.fsync(file.fileno())  # dirty pages could not be reclaimed
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), TABLE_BYTES, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_RANDOM)
        self._draw = np.random.default_rng(seed)
        self._pages = TABLE_BYTES // mmap.PAGESIZE
        self.checksum = 0

    def touch(self) -> None:
        """Read some entries."""
        for page in self._draw.integers(self._pages, size=TOUCHES):
            self.checksum ^= self._map[int(page) * mmap.PAGESIZE]


class CheckpointWriter:
    """Writes a file every ``CHECKPOINT_EVERY`` steps while that knob is set."""

    def __init__(self, path: Path, shared: RankMemory) -> None:
        self._path = path
        self._shared = shared
        self._writer: threading.Thread | None = None

    def after_step(self, step: int) -> float:
        """Write a checkpoint if it is due; return the seconds that the rank is held, or 0."""
        every = int(self._shared.knobs[Knob.CHECKPOINT_EVERY])
        if every == 0 or step % every != every - 1:
            return 0.0
        began = time.monotonic()
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._shared.knobs[Knob.CHECKPOINT_IN_BACKGROUND]:
            self._writer = threading.Thread(target=self._write)
            self._writer.start()
        else:
            self._write()
        return time.monotonic() - began

    def _write(self) -> None:
        began = time.monotonic()
        pause = float(self._shared.knobs[Knob.CHECKPOINT_SECONDS]) / _CHECKPOINT_CHUNKS
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for chunk in range(1, _CHECKPOINT_CHUNKS + 1):
                os.write(handle, _CHECKPOINT_CHUNK)
                os.fsync(handle)
                time.sleep(max(0.0, began + chunk * pause - time.monotonic()))
        finally:
            os.close(handle)


#: Given a rank's gradients and the step; the same answer on all ranks.
Average = Callable[[Any, int], bool]


@dataclass(frozen=True)
class HostPlan:
    """Settings of a host process.

    Attributes
    ----------
    rendezvous : str
        ``tcp://address:port`` of rank 0.
    interface : str
        Network interface for gloo.
    folder : Path
        Scratch space, on a disk.
    average : callable
        Averages the gradients of a step over the ranks in another way than by the stage's all-reduce, in
        place. False leaves them to the all-reduce.
    """

    rank: int
    job: TestbedJob
    rendezvous: str
    interface: str
    folder: Path
    average: Average = lambda gradients, step: False


def train(plan: HostPlan, shared: RankMemory, pipes: Pipes, prepare: Callable[[], Accelerator]) -> None:
    """Train for the job's steps, writing a row of `shared.rows` for each.

    Parameters
    ----------
    prepare : callable
        Makes the accelerator in this process, ready for the first step.
    """
    import torch

    # Worker threads would compete for the core that the host shares with its neighbours.
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = plan.interface
    accelerator = prepare()
    for slot in range(SLOTS):
        pipes.slots.send(bytes([slot]))
    collectives = Collectives(plan.rank, plan.job, plan.rendezvous)
    host = Host(plan, shared, pipes, collectives, accelerator)
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
        shared: RankMemory,
        pipes: Pipes,
        collectives: Collectives,
        accelerator: Accelerator,
    ) -> None:
        self._shared = shared
        self._pipes = pipes
        self._collectives = collectives
        self._average = plan.average
        self._accelerator = accelerator
        self._gc = GcMonitor(shared)
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
        if not self._average(self._accelerator.gradients, step):
            self._collectives.all_reduce(self._accelerator.gradients)
        row[Row.DONE_TIME] = time.monotonic()
        self._accelerator.optimize(row)
        self._gc.after_step(step)
        row[Row.CHECKPOINT] = self._checkpoints.after_step(step)
        row[Row.GC] = self._shared.gauges[Gauge.GC_SECONDS] - collected
        row[Row.STEP] = time.monotonic() - began

    def _load(self, row: FloatArray) -> None:
        began = time.monotonic()
        message = self._pipes.batches.receive(BATCH_READY.size)
        slot, row[Row.SAMPLES], row[Row.TOKENS], row[Row.SQUARED_LENGTHS], self._length = BATCH_READY.unpack(
            message
        )
        share = float(self._shared.knobs[Knob.BATCH_SHARE])
        row[[Row.SAMPLES, Row.TOKENS, Row.SQUARED_LENGTHS]] *= share
        self._table.touch()
        row[Row.DATA_LOADING] = time.monotonic() - began
        self._accelerator.copy(slot, row)
        self._pipes.slots.send(bytes([slot]))

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
