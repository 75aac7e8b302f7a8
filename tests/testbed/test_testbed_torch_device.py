"""The path a GPU rank takes, on the CPU: the same code but for events and pinned memory. Needs PyTorch.

Everything runs in forked processes, as in a capture: a process that has computed gradients cannot fork
others that do.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from fake_nvml import FakeNvml
from testbed_records import scenario_of

import rca
from rca.lab.testbed import bed, capture
from rca.lab.testbed.gpus import Gpu, GpuMissing
from rca.lab.testbed.probe import installed
from rca.lab.testbed.process import ProcessTable
from rca.lab.testbed.ranks import models, neighbour
from rca.lab.testbed.ranks.calibration import measure, prepare
from rca.lab.testbed.ranks.neighbour import Control, GpuOperations, GpuWork, run_period
from rca.lab.testbed.ranks.shared import BATCH_BYTES, DevicePace, Knob, RankMemory, Row
from rca.lab.testbed.ranks.stand_in import BACKWARD, FORWARD, OPTIMIZE, Device, resized
from rca.lab.testbed.ranks.torch_device import HostMarks, TorchDevice
from rca.lab.testbed.sampling import gpu_watch
from rca.lab.testbed.scenario import TestbedJob
from rca.lab.testbed.sweep import exclusive, sweep
from rca.sources.labels import read_label
from rca.window.catalogue import resolve

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the testbed is Linux"),
    pytest.mark.skipif(not installed("torch"), reason="PyTorch is not installed"),
]


@pytest.fixture(scope="module", autouse=True)
def _imported_once():
    if installed("torch"):
        models.preload()


@pytest.fixture
def in_child(tmp_path):
    """Run a check in a forked process."""

    def run(check: Callable[[], None]) -> None:
        process_table = ProcessTable(tmp_path / "log")
        process_table.spawn("check", check)
        until = time.monotonic() + 90
        while process_table.alive and time.monotonic() < until:
            for ended in process_table.reap():
                assert ended.code == 0, (tmp_path / "log").read_text()
            time.sleep(0.01)
        still = list(process_table.alive)
        process_table.end_all()
        assert still == []

    return run


def shared_of(network: models.Network, seed: int = 3) -> RankMemory:
    shared = RankMemory(4, sum(parameter.numel() for parameter in network.parameters()))
    shared.slots[:] = np.random.default_rng(seed).integers(0, 256, shared.slots.shape, dtype=np.uint8)
    return shared


def length_of(model: str) -> int:
    return models.TYPICAL_TOKENS if model == "transformer" else 0


def one_step(model: str, repeats: int, pageable: float) -> None:
    """The same batch through the GPU ranks' path and through the stand-in's kernels, then one update."""
    import torch

    # As in a capture: a forked process must not use the thread pool of its parent's libraries.
    torch.set_num_threads(1)
    length = length_of(model)
    network, reference = models.build(model, 1.0), models.build(model, 1.0)
    shared = shared_of(network)
    device = TorchDevice(network, shared, torch.device("cpu"))
    device.resize(3 * BATCH_BYTES, repeats)
    shared.knobs[Knob.PAGEABLE_SHARE] = pageable
    row = np.full(len(Row), np.nan)
    device.copy(1, row)
    device.forward(length, row)
    device.backward(row)

    shared.device_batch[:] = shared.slots[1]
    stand_in = Device(reference, shared, 1.0)
    for block in range(8):
        stand_in.run(FORWARD, block, length)
    for block in reversed(range(8)):
        stand_in.run(BACKWARD, block, length)
    expected = torch.frombuffer(shared.gradients, dtype=torch.float32)
    assert expected.abs().max() > 0
    torch.testing.assert_close(device.gradients, expected, rtol=2e-3, atol=1e-6)

    before = [parameter.detach().clone() for parameter in network.parameters()]
    device.gradients.copy_(expected)
    device.optimize(row)
    stand_in.run(OPTIMIZE, 0, length)
    for old, new, alike in zip(before, network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(new, alike)
        assert not torch.equal(new, old)
    measured = [Row.HOST_TO_DEVICE, Row.FORWARD, Row.BACKWARD, Row.OPTIMIZER]
    assert (row[measured] > 0).all()


@pytest.mark.parametrize("model", ["mlp", "transformer", "convolution"])
def test_a_gpu_rank_computes_the_gradients_of_its_peers(in_child, model):
    in_child(partial(one_step, model, 1, 0.0))


def test_repeating_the_batch_does_not_change_its_gradient(in_child):
    in_child(partial(one_step, "mlp", 5, 0.0))


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_pageable_memory_holds_the_same_batch(in_child, share):
    in_child(partial(one_step, "mlp", 1, share))


def measuring_does_not_train() -> None:
    import torch

    network = models.build("mlp", 1.0)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    measure(TorchDevice(network, shared_of(network), torch.device("cpu")), 0, 3)
    assert all(map(torch.equal, before, network.parameters()))


def test_measuring_does_not_train(in_child):
    in_child(measuring_does_not_train)


def calibrated() -> None:
    job = TestbedJob(model="mlp", world_size=2, nodes=2, gpu_ranks=(1,))
    network = models.build("mlp", 1.0)
    shared = shared_of(network)
    device = prepare(network, shared, "cpu", job, 1)
    assert shared.pace[DevicePace.REPEATS] == device.repeats >= 1
    assert shared.pace[DevicePace.COPIED_BYTES] == device.n_bytes >= BATCH_BYTES
    assert (shared.pace[: DevicePace.REPEATS] > 0).all()


def test_a_rank_is_calibrated_on_any_device(in_child):
    in_child(calibrated)


def padded() -> None:
    network = models.build("mlp", 1.0)
    shared = shared_of(network)
    device = Device(network, shared, 1.0)
    nominal = [device.padded_seconds(kind, 0, 0) for kind in (FORWARD, BACKWARD, OPTIMIZE)]
    shared.pace[[DevicePace.FORWARD, DevicePace.BACKWARD, DevicePace.OPTIMIZER]] = 0.5, 2.0, 0.1
    paced = [device.padded_seconds(kind, 0, 0) for kind in (FORWARD, BACKWARD, OPTIMIZE)]
    np.testing.assert_allclose(paced, np.multiply(nominal, [0.5, 2.0, 0.1]))


def test_stand_ins_pad_to_the_published_pace(in_child):
    in_child(padded)


def small(device: object) -> GpuOperations:
    return GpuOperations(device, side=32, traffic_bytes=4096, copied_bytes=4096)


def foreign_processes_work() -> None:
    import torch

    operations = small(torch.device("cpu"))
    operations.warm_up()
    for work in (GpuWork.GEMMS, GpuWork.MEMORY_TRAFFIC, GpuWork.PINNED_COPIES):
        began = time.monotonic()
        assert operations.run(work, 0.03) >= 1
        assert time.monotonic() - began >= 0.03
        assert operations.run(work, 0.0) == 1
    control = np.zeros(len(Control))
    done: list[tuple[GpuWork, float]] = []
    operations.run = lambda work, seconds: done.append((work, seconds)) or 1  # type: ignore[method-assign]
    run_period(operations, control)
    control[Control.WORK], control[Control.SHARE] = GpuWork.GEMMS, 0.5
    run_period(operations, control)
    assert done == [(GpuWork.GEMMS, neighbour.WORK_PERIOD_SECONDS / 2)]


@pytest.mark.parametrize(("share", "rows"), [(1.0, 4), (0.5, 2), (1.5, 6), (0.01, 1)])
def test_a_batch_has_its_share_of_samples(share: float, rows: int):
    import torch

    batch = torch.arange(8.0).reshape(4, 2)
    assert resized(batch, share).shape == (rows, 2)
    assert np.isin(resized(batch, share).numpy(), batch.numpy()).all()


def test_foreign_processes_work_only_with_a_load(in_child):
    in_child(foreign_processes_work)


def test_marks_of_the_host_are_its_own_clock():
    marks = HostMarks(2)
    marks.mark(0)
    time.sleep(0.01)
    marks.mark(1)
    marks.wait(1)
    assert 0.01 <= marks.seconds(0, 1) < 1


# A whole capture, in which rank 1's "GPU" is the CPU and NVML is a table.


def fake_watch(uuids, writer, period):
    nvml = FakeNvml("nvmlDeviceGetRetiredPages")
    gpu_watch.report([gpu_watch.GpuProbe(nvml, uuid) for uuid in uuids], partial(os.write, writer), period)


@pytest.fixture(scope="module")
def pretended():
    """A machine that seems to have a GPU."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(capture, "require_gpus", lambda count: (Gpu(0, "GPU-1", "Pretence", "0.0"),) * count)
        patched.setattr(Gpu, "torch_device", property(lambda self: "cpu"))
        patched.setattr(neighbour, "GpuOperations", small)
        patched.setattr(gpu_watch, "watch", fake_watch)
        yield patched


@pytest.fixture(scope="module")
def captured(pretended, tmp_path_factory):
    fault = {"kind": "pageable_copies", "scope": "rank", "ranks": [1], "first_step": 9, "severity": 3}
    hogs = {"kind": "gpu_gemms", "scope": "rank", "ranks": [1], "first_step": 9, "severity": 1}
    job = {"world_size": 2, "nodes": 2, "steps": 16, "gpu_ranks": [1]}
    path = tmp_path_factory.mktemp("testbed") / "window"
    capture.capture_to(scenario_of(fault, hogs, name="pretence", job=job), path)
    return path


def test_a_capture_has_the_gpu_ranks_steps_and_signals(captured):
    window = rca.read_window(captured)
    assert window.steps.num_rows == 32
    for phase in ("host_to_device_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds"):
        assert (window.steps.column(phase).to_numpy() > 0).all()
    metrics = window.metrics.to_pydict()
    names = set(metrics["name"])
    assert {name for name in names if resolve(name) is None} == set()
    gpu = [index for index, name in enumerate(metrics["name"]) if name.startswith("DCGM_")]
    assert {metrics["name"][index] for index in gpu} >= {"DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_PROF_PCIE_RX_BYTES"}
    assert {(metrics["node"][index], metrics["device"][index]) for index in gpu} == {("node-1", "0")}
    assert "DCGM_FI_DEV_RETIRED_SBE" not in names


@pytest.mark.long
def test_a_stand_in_keeps_about_the_pace_of_the_gpu(captured):
    """It shortens its padding by what a loaded machine adds, so it may be a little faster at times."""
    label, steps = read_label(captured), rca.read_window(captured).steps
    assert label.model_extra is not None
    pace = label.model_extra["gpu_pace"]
    for phase, nominal in (("forward", 8 * 2.5e-3), ("backward", 8 * 4.9e-3)):
        stand_in = steps.column(f"{phase}_seconds").to_numpy()[:16]
        assert np.median(stand_in) > 0.7 * pace[phase] * nominal


def test_the_label_describes_the_gpu(captured):
    label = read_label(captured)
    assert "rank 1 computes on a Pretence" in label.notes
    assert label.model_extra is not None
    assert [each["kind"] for each in label.model_extra["injected"]] == ["pageable_copies", "gpu_gemms"]
    [gpu] = label.model_extra["gpus"]
    assert gpu["unanswered"] == ["DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_RETIRED_DBE"]
    assert gpu["rounds"] >= 2
    assert label.model_extra["gpu_pace"]["repeats"] >= 1


def test_it_can_be_diagnosed(captured):
    assert rca.diagnose(rca.read_window(captured)).failure_mode in ("healthy", "fail_slow")


def test_a_gpu_that_refuses_other_processes_is_reported(captured, pretended, monkeypatch):
    def refused(where, control):
        raise RuntimeError("all CUDA-capable devices are busy or unavailable")

    monkeypatch.setattr(neighbour, "serve", refused)
    assert bed.neighbour.serve is refused
    scenario = scenario_of(name="alone", job={"world_size": 2, "nodes": 2, "gpu_ranks": [0]})
    with pytest.raises(GpuMissing, match="several processes") as failed:
        capture.capture(scenario)
    assert failed.value.hint is not None
    assert "busy or unavailable" in failed.value.hint


def test_nothing_is_left_behind(captured):
    with exclusive():
        assert sweep() == []
