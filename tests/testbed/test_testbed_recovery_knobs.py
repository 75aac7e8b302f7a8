"""Settings of running ranks with which recovery actions are carried out."""

from __future__ import annotations

import gc
import os
import sys

import numpy as np
import pytest

from rca.lab.testbed.ranks.host import CheckpointWriter, GcMonitor
from rca.lab.testbed.ranks.loader import balanced_length, draw_lengths, load, write_dataset
from rca.lab.testbed.ranks.models import TYPICAL_TOKENS
from rca.lab.testbed.ranks.shared import BATCH_READY, MAX_SLOTS, Knob, Pipe, Pipes, RankMemory

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="the testbed is Linux"), pytest.mark.system]


@pytest.fixture
def shared():
    return RankMemory(n_steps=4, n_parameters=1)


def test_frozen_objects_are_replaced_by_new_ones_when_they_thaw(shared, process_table):
    shared.knobs[Knob.KEPT_OBJECTS] = 1000

    def collect() -> None:
        monitor = GcMonitor(shared)
        before = gc.get_freeze_count()
        monitor.after_step(1)
        shared.rows[0, 0] = gc.get_freeze_count() - before
        shared.knobs[Knob.FREEZE_OBJECTS] = 1
        monitor.after_step(3)
        shared.rows[0, 1] = gc.get_freeze_count() - before
        shared.knobs[Knob.FREEZE_OBJECTS] = 0
        monitor.after_step(5)
        shared.rows[0, 2] = gc.get_freeze_count() - before

    process = process_table.spawn("collector", collect)
    os.waitpid(process.pid, 0)
    process_table.alive.clear()
    usual, frozen, thawed = shared.rows[0, :3]
    assert usual < 1000
    assert frozen >= 1000
    assert thawed <= frozen - 1000


def test_a_checkpoint_in_the_background_is_complete_before_the_next(shared, tmp_path):
    shared.knobs[Knob.CHECKPOINT_EVERY] = 1
    writer = CheckpointWriter(tmp_path / "checkpoint", shared)
    writer.after_step(0)
    size = (tmp_path / "checkpoint").stat().st_size
    shared.knobs[Knob.CHECKPOINT_IN_BACKGROUND] = 1
    writer.after_step(1)
    shared.knobs[Knob.CHECKPOINT_EVERY] = 0
    assert writer.after_step(2) == 0.0
    assert writer._writer is not None
    writer._writer.join()
    assert (tmp_path / "checkpoint").stat().st_size == size > 0


def test_a_further_loader_serves_until_it_is_taken_back(shared, process_table, tmp_path):
    pipes = Pipes(Pipe.open())
    write_dataset(tmp_path / "dataset", 0)
    shared.knobs[Knob.MORE_LOADERS] = 1
    further = process_table.spawn(
        "loader", lambda: load("mlp", shared, pipes, tmp_path / "dataset", 0, direct=False, number=1)
    )
    pipes.slots.send(bytes([MAX_SLOTS - 1]))
    assert BATCH_READY.unpack(pipes.batches.receive(BATCH_READY.size))[0] == MAX_SLOTS - 1
    shared.knobs[Knob.MORE_LOADERS] = 0
    pipes.slots.send(bytes([3]))
    _, status = os.waitpid(further.pid, 0)
    process_table.alive.clear()
    assert os.waitstatus_to_exitcode(status) == 0
    # The slot goes to the loaders that are left.
    assert pipes.slots.receive(1) == bytes([3])


def test_balanced_batches_cost_as_much_as_unequal_ones():
    def cost(tokens: np.ndarray) -> float:
        relative = tokens / TYPICAL_TOKENS
        return float(np.mean(relative + relative**2))

    lengths = draw_lengths(np.random.default_rng(1), 0.6, 8)
    assert lengths.max() > 2 * lengths.min()
    assert cost(np.array([balanced_length(lengths)])) == pytest.approx(cost(lengths), rel=0.05)
    assert balanced_length(lengths[:1]) == lengths[0]
