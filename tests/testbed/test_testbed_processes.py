from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
import pytest
from testbed_records import scenario_of

from rca.lab.testbed.capture import FaultSchedule
from rca.lab.testbed.cgroups import find_hierarchies, members, remove_tree
from rca.lab.testbed.injection.device import restore_token
from rca.lab.testbed.process import ProcessPlacement, ProcessTable
from rca.lab.testbed.ranks.shared import Knob, PeerExited, Pipe, RankMemory, Row

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="the testbed is Linux"), pytest.mark.system]


def reaped(process_table: ProcessTable, seconds: float = 10.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        exits = process_table.reap()
        if exits:
            return exits
        time.sleep(0.01)
    return []


def test_shared_memory_is_seen_by_both_sides(process_table):
    shared = RankMemory(n_steps=3, n_parameters=4)
    assert np.isnan(shared.rows).all()
    assert shared.knobs[Knob.KERNEL_FACTOR] == 1

    def write() -> None:
        shared.rows[1, Row.STEP] = 0.25
        shared.gradients[:4] = b"\x01\x02\x03\x04"

    process_table.spawn("writer", write)
    assert [each.code for each in reaped(process_table)] == [0]
    assert shared.rows[1, Row.STEP] == 0.25
    assert bytes(shared.gradients[:4]) == b"\x01\x02\x03\x04"


def test_a_child_that_fails_leaves_its_traceback_in_the_log(process_table, tmp_path):
    def fail() -> None:
        raise ValueError("no such kernel")

    process_table.spawn("device", fail, rank=3)
    [exit_] = reaped(process_table)
    assert (exit_.code, exit_.process.rank, exit_.by_signal) == (1, 3, None)
    assert "no such kernel" in (tmp_path / "log").read_text()


def test_all_processes_can_be_ended(process_table):
    for _ in range(3):
        process_table.spawn("sleeper", lambda: time.sleep(60), ProcessPlacement(nice=1))
    pids = list(process_table.alive)
    process_table.end_all()
    assert process_table.alive == {}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_killed_process_has_the_code_of_its_signal(process_table):
    process = process_table.spawn("sleeper", lambda: time.sleep(60))
    os.kill(process.pid, signal.SIGKILL)
    [exit_] = reaped(process_table)
    assert exit_.by_signal == signal.SIGKILL


def test_children_ignore_the_terminals_interrupt(process_table):
    pipe = Pipe.open()

    def wait() -> None:
        pipe.send(b"r")
        time.sleep(60)

    process = process_table.spawn("sleeper", wait)
    pipe.receive(1)
    os.kill(process.pid, signal.SIGINT)
    assert reaped(process_table, seconds=0.2) == []


def test_a_pipe_whose_writer_is_gone_is_an_error():
    reader, writer = os.pipe()
    os.close(writer)
    with pytest.raises(PeerExited):
        Pipe(reader, -1).receive(1)
    os.close(reader)


def test_a_lost_token_is_restored_once():
    pipe = Pipe.open()
    restore_token(pipe.reader, pipe.writer, patience_seconds=0.0)
    restore_token(pipe.reader, pipe.writer, patience_seconds=0.0)
    os.set_blocking(pipe.reader, False)
    assert os.read(pipe.reader, 10) == b"t"


class Noted:
    """An injector that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


def scheduled(**steps: int | None):
    fault = scenario_of({"kind": "cpu_hogs", "scope": "rank", "ranks": [0], **steps}).faults[0]
    injector = Noted()
    return FaultSchedule([(fault, injector)]), injector  # type: ignore[list-item]


def test_a_fault_starts_with_the_first_rank_and_ends_with_the_last():
    schedule, injector = scheduled(first_step=10, last_step=20)
    schedule.advance(8, 9)
    assert injector.calls == []
    schedule.advance(9, 10)
    schedule.advance(15, 15)
    schedule.advance(20, 21)
    assert injector.calls == ["start"]
    schedule.advance(21, 21)
    schedule.advance(22, 22)
    schedule.close()
    assert injector.calls == ["start", "stop"]
    [acted] = schedule.acted
    assert (acted.first_step, acted.last_step) == (10, 21)


def test_a_fault_that_lasts_is_removed_at_the_end():
    schedule, injector = scheduled(first_step=10, last_step=None)
    schedule.advance(30, 30)
    schedule.close()
    assert injector.calls == ["start", "stop"]
    assert (schedule.acted[0].first_step, schedule.acted[0].last_step) == (30, None)


def test_a_fault_that_never_started_is_not_in_the_label():
    schedule, injector = scheduled(first_step=10, last_step=20)
    schedule.close()
    assert (injector.calls, schedule.acted) == ([], [])


def test_hierarchies_are_found_on_either_layout(tmp_path):
    for controller in ("cpu", "memory"):
        (tmp_path / controller).mkdir()
        (tmp_path / controller / "tasks").touch()
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("io\n")
    held = find_hierarchies(tmp_path)
    assert held.mounts == {
        "cpu": tmp_path / "cpu",
        "memory": tmp_path / "memory",
        "blkio": tmp_path / "unified",
    }
    assert held.is_v2("blkio")
    assert not held.is_v2("cpu")
    assert held.roots() == [tmp_path / "cpu", tmp_path / "unified", tmp_path / "memory"]


def test_a_machine_without_groups_has_none(tmp_path):
    held = find_hierarchies(tmp_path)
    assert (held.mounts, held.unified, held.roots()) == ({}, None, [])


def test_groups_are_removed_from_the_leaves_up(tmp_path):
    (tmp_path / "rcatb" / "node-0" / "rank-0").mkdir(parents=True)
    assert members(tmp_path / "rcatb") == []
    assert remove_tree(tmp_path / "rcatb")
    assert not (tmp_path / "rcatb").exists()
    assert remove_tree(tmp_path / "rcatb")
