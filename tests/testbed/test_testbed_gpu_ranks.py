"""Jobs with GPU ranks, as far as they can be checked without a GPU and without PyTorch."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_nvml import FakeNvml
from testbed_records import acted_of, record_of, rows_of, scenario_of

from rca.cli import run as run_command_line
from rca.errors import InvalidInput
from rca.testbed import FAULTS, gpus
from rca.testbed.campaign import require_gpus_of
from rca.testbed.gpus import Gpu, GpuMissing, find_gpus, require_gpus
from rca.testbed.injection import injector
from rca.testbed.labels import label_of
from rca.testbed.matrix import Matrix, expand, read_matrix
from rca.testbed.ranks.calibration import COPY_SECONDS, calibrate, follow
from rca.testbed.ranks.copier import CHUNK_SECONDS, CHUNKS
from rca.testbed.ranks.models import Network
from rca.testbed.ranks.neighbour import Control, Deed, instruct
from rca.testbed.ranks.shared import Knob, Pace, Row, Shared, job_pace
from rca.testbed.sampling.gpu_watch import GpuSeen
from rca.testbed.sampling.nvml import NAMES
from rca.testbed.window import window_of

ROOT = Path(__file__).parents[2]
GPU_MATRIX = ROOT / "data/testbed/matrix-gpu.yaml"
EXAMPLE = ROOT / "data/testbed/examples/gpu-gemms.yaml"
GPU_FAULTS = sorted(kind for kind, spec in FAULTS.items() if spec.device == "gpu")
GEMMS = {"kind": "gpu_gemms", "scope": "rank", "ranks": [1], "first_step": 15, "last_step": 30}


def gpu_scenario(*faults: dict[str, object], **job: object):
    return scenario_of(*faults, job={"nodes": 4, "gpu_ranks": [1], **job})


# Scenarios


@pytest.mark.parametrize("kind", GPU_FAULTS)
def test_a_fault_of_a_gpu_is_aimed_at_a_rank_that_has_one(kind):
    assert gpu_scenario(GEMMS | {"kind": kind}).faults[0].victims(gpu_scenario().job) == [1]
    with pytest.raises(ValueError, match=f"{kind} needs a real GPU"):
        gpu_scenario(GEMMS | {"kind": kind, "ranks": [0]})
    with pytest.raises(ValueError, match="needs a real GPU"):
        scenario_of(GEMMS | {"kind": kind})


@pytest.mark.parametrize("kind", ["device_clock", "device_duty_cycle", "killed_device", "hung_device"])
def test_a_fault_of_a_stand_in_is_aimed_at_a_rank_that_has_one(kind):
    aimed = {"kind": kind, "scope": "rank", "first_step": 15}
    assert gpu_scenario(aimed | {"ranks": [0]}).faults
    with pytest.raises(ValueError, match="rank 1 has a real GPU"):
        gpu_scenario(aimed | {"ranks": [0, 1]})


def test_uneven_sequences_act_on_all_ranks_and_so_not_beside_a_gpu():
    fault = {"kind": "sequence_lengths", "scope": "job", "first_step": 15}
    with pytest.raises(ValueError, match="acts on a stand-in"):
        gpu_scenario(fault, model="transformer")


@pytest.mark.parametrize("kind", ["cpu_hogs", "slow_dataset", "heavy_decoding", "gc_pauses", "killed_rank"])
def test_faults_of_the_host_hit_ranks_with_a_gpu_like_any_other(kind):
    assert gpu_scenario({"kind": kind, "scope": "rank", "ranks": [1], "first_step": 15}).faults


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"gpu_ranks": [4]}, "outside 0..3"),
        ({"gpu_ranks": [1, 1]}, "occurs twice"),
        ({"gpu_ranks": [1], "pipeline": 2}, "data-parallel"),
    ],
)
def test_gpu_ranks_that_cannot_be_are_refused(job, message):
    with pytest.raises(ValueError, match=message):
        scenario_of(job=job)


# The matrix


def test_the_gpu_matrix_covers_every_fault_of_a_gpu_in_both_parts():
    planned = expand(read_matrix(GPU_MATRIX))
    assert all(len(each.scenario.job.gpu_ranks) == 1 for each in planned)
    assert all(each.scenario.job.ranks_per_node == 1 for each in planned)
    kinds = {fault.kind for each in planned for fault in each.scenario.faults}
    assert set(GPU_FAULTS) <= kinds
    parts = defaultdict(set)
    for each in planned:
        for cause in {fault.spec.cause for fault in each.scenario.faults} or {"healthy"}:
            parts[cause].add(each.part)
    assert all({"train", "test"} <= held for held in parts.values())


def test_the_gpu_is_at_any_rank_and_the_victim_of_other_faults_may_have_none():
    planned = expand(read_matrix(GPU_MATRIX))
    assert {each.scenario.job.gpu_ranks[0] for each in planned} == {0, 1, 2, 3}
    hit = {
        victim in each.scenario.job.gpu_ranks
        for each in planned
        if each.group in ("gpu-cpu-hogs", "gpu-dataset")
        for fault in each.scenario.faults
        for victim in fault.ranks
    }
    assert hit == {True, False}


def matrix_of(**group: object) -> Matrix:
    return Matrix.model_validate({"name": "m", "groups": [{"name": "g", "models": ["mlp"], **group}]})


def test_a_group_without_a_rank_to_act_on_is_named():
    with pytest.raises(ValueError, match="gpu_gemms finds no rank"):
        matrix_of(faults=[{"kind": "gpu_gemms"}], world_sizes=[4])
    with pytest.raises(ValueError, match="device_clock finds no rank"):
        matrix_of(faults=[{"kind": "device_clock"}], world_sizes=[2], gpus=2)
    with pytest.raises(ValueError, match="5 GPU ranks in a job of 4"):
        matrix_of(world_sizes=[4, 8], gpus=5)


# Looking for GPUs


def test_each_missing_piece_is_named_alone(monkeypatch):
    for module, named in (("torch", "PyTorch is not installed"), ("pynvml", "nvidia-ml-py")):
        monkeypatch.setattr(gpus, "installed", lambda name, module=module: name != module)
        with pytest.raises(GpuMissing, match=named):
            find_gpus()


@pytest.fixture
def both_installed(monkeypatch):
    monkeypatch.setattr(gpus, "installed", lambda name: True)


@pytest.mark.usefixtures("both_installed")
def test_gpus_are_looked_for_in_another_process(monkeypatch):
    def look():
        return {"gpus": [{"index": 0, "uuid": f"GPU-{os.getpid()}", "name": "Imaginary", "driver": "570.00"}]}

    monkeypatch.setattr(gpus, "look", look)
    [found] = find_gpus()
    assert (found.name, found.torch_device) == ("Imaginary", "cuda:0")
    assert found.uuid != f"GPU-{os.getpid()}"
    with pytest.raises(GpuMissing, match="wants 2 GPUs, this machine has 1"):
        require_gpus(2)


@pytest.mark.usefixtures("both_installed")
def test_what_cuda_says_is_passed_on(monkeypatch):
    monkeypatch.setattr(gpus, "look", lambda: {"lacking": "no usable GPU: the driver is too old"})
    with pytest.raises(GpuMissing, match="cannot run here: no usable GPU: the driver is too old"):
        require_gpus(1)


@pytest.mark.usefixtures("both_installed")
def test_a_process_that_dies_of_the_question_is_an_answer(monkeypatch):
    def look():
        raise OSError("libcuda: bad image")

    monkeypatch.setattr(gpus, "look", look)
    with pytest.raises(GpuMissing, match="CUDA could not be asked: OSError: libcuda: bad image"):
        find_gpus()


def libraries(monkeypatch, *fails: str, cuda: str | None = "13.0", error: Exception | None = None) -> None:
    """Stand-ins for PyTorch and the binding, on a machine with one GPU unless told otherwise."""

    def init() -> None:
        if error is not None:
            raise error

    torch = SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(
            init=init,
            device_count=lambda: 1,
            get_device_properties=lambda index: SimpleNamespace(name="NVIDIA Imaginary", uuid="ff-00"),
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*fails))


def test_a_gpu_is_described_by_the_name_nvml_finds_it_by(monkeypatch):
    libraries(monkeypatch)
    [found] = gpus.look()["gpus"]
    assert Gpu(**found) == Gpu(0, "GPU-ff-00", "NVIDIA Imaginary", "570.00")


@pytest.mark.parametrize(
    ("fails", "cuda", "error", "said"),
    [
        ([], None, None, "PyTorch 2.13.0 was built without CUDA"),
        ([], "13.0", RuntimeError("Found no driver. Please check"), "no usable GPU: Found no driver"),
        (["nvmlDeviceGetHandleByUUID"], "13.0", None, "NVML does not answer: Not Found"),
    ],
)
def test_what_stands_between_us_and_the_gpu_is_said(monkeypatch, fails, cuda, error, said):
    libraries(monkeypatch, *fails, cuda=cuda, error=error)
    assert gpus.look()["lacking"] == said


@pytest.fixture
def no_gpu():
    try:
        found = find_gpus()
    except GpuMissing:
        return
    pytest.skip(f"this machine has a GPU: {found[0].name}")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    "command",
    [
        ["testbed", "capture", "--scenario", str(EXAMPLE), "-o", "captured"],
        ["testbed", "campaign", str(GPU_MATRIX), "-o", "captured"],
    ],
    ids=["capture", "campaign"],
)
def test_without_a_gpu_one_line_says_what_is_missing_and_nothing_is_written(
    command, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_command_line(command)
    first, *hints = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 1
    assert first.startswith("error (testbed-gpu): a job with GPU ranks cannot run here: ")
    assert len(hints) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_gpu")
def test_a_campaign_without_gpu_ranks_needs_no_gpu():
    require_gpus_of(expand(matrix_of(world_sizes=[4])))
    with pytest.raises(GpuMissing):
        require_gpus_of(expand(matrix_of(world_sizes=[4], gpus=1)))


def test_the_gpu_campaign_can_be_listed_anywhere(capsys):
    with pytest.raises(SystemExit) as ended:
        run_command_line(["testbed", "campaign", str(GPU_MATRIX), "--dry-run", "-o", "nowhere"])
    assert ended.value.code in (0, None)
    assert len(capsys.readouterr().out.splitlines()) == len(expand(read_matrix(GPU_MATRIX)))


# Calibration, on a device whose times follow a law


class Modelled:
    """An accelerator with a bandwidth, a time per repetition, and so much memory."""

    def __init__(self, per_repeat: float, bandwidth: float, room_for: float = np.inf) -> None:
        self.gradients = np.zeros(4)
        self.n_bytes, self.repeats = 1, 1
        self.most_repeats = 1
        self.updates: list[float] = []
        self._per_repeat, self._bandwidth, self._room_for = per_repeat, bandwidth, room_for
        self.gradients = SimpleNamespace(zero_=lambda: self.updates.append(0.0))

    def resize(self, n_bytes: int, repeats: int) -> None:
        self.n_bytes, self.repeats = n_bytes, repeats
        self.most_repeats = max(self.most_repeats, repeats)

    def room(self) -> float:
        return self._room_for / self.most_repeats

    def copy(self, slot, row):
        row[Row.HOST_TO_DEVICE] = self.n_bytes / self._bandwidth

    def forward(self, length, row):
        row[Row.FORWARD] = 1e-4 + self._per_repeat * self.repeats

    def backward(self, row):
        row[Row.BACKWARD] = 1e-4 + 2 * self._per_repeat * self.repeats

    def optimize(self, row):
        row[Row.OPTIMIZER] = 6e-4


def network_of(scale: float = 1.0, **fields: int) -> Network:
    return Network([], [2.5e-3 * scale] * 8, [4.9e-3 * scale] * 8, lambda raw, length: raw, **fields)


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("per_repeat", [5e-6, 1.3e-4, 7e-3])
def test_the_gpu_is_given_the_work_of_a_nominal_step_and_the_others_its_pace(per_repeat, scale):
    device, pace, network = Modelled(per_repeat, bandwidth=25e9), job_pace(), network_of(scale)
    calibrate(device, network, 0, scale, pace)
    took = 3 * per_repeat * device.repeats
    assert took == pytest.approx(network.compute_seconds, abs=1.6 * per_repeat + 4e-4)
    assert device.n_bytes / 25e9 == pytest.approx(COPY_SECONDS * scale, rel=1e-6)
    assert pace[Pace.COPY] * CHUNKS * CHUNK_SECONDS * scale == pytest.approx(COPY_SECONDS * scale)
    forward = pace[Pace.FORWARD] * sum(network.forward_seconds)
    backward = pace[Pace.BACKWARD] * sum(network.backward_seconds)
    assert forward + backward == pytest.approx(took + 2e-4)
    assert pace[Pace.REPEATS] == device.repeats


def test_memory_limits_the_batch_and_the_others_keep_the_shorter_step():
    device, pace = Modelled(1e-4, bandwidth=25e9, room_for=40), job_pace()
    calibrate(device, network_of(), 0, 1.0, pace)
    assert device.most_repeats <= 40
    assert pace[Pace.FORWARD] < 0.5


def test_kernels_that_take_only_so_much_limit_the_batch():
    device, pace = Modelled(1e-6, bandwidth=25e9), job_pace()
    calibrate(device, network_of(most_repeats=4095), 0, 1.0, pace)
    assert device.most_repeats == 4095


def test_a_huge_link_does_not_ask_for_a_huge_buffer():
    device, pace = Modelled(1e-4, bandwidth=1e12), job_pace()
    calibrate(device, network_of(), 0, 1.0, pace)
    assert device.n_bytes <= 512 * 1024**2


def test_nothing_is_learned_before_the_job():
    device = Modelled(1e-3, bandwidth=25e9)
    calibrate(device, network_of(), 0, 1.0, job_pace())
    assert device.updates
    assert set(device.updates) == {0.0}


def test_other_gpus_follow_the_first():
    pace = job_pace()
    pace[Pace.COPIED_BYTES], pace[Pace.REPEATS] = 1000, 7
    device = Modelled(1e-3, bandwidth=25e9)
    follow(device, pace)
    assert (device.n_bytes, device.repeats) == (1000, 7)


def test_a_job_without_gpus_keeps_the_nominal_pace():
    shared = Shared(2, 1)
    assert shared.pace[: Pace.REPEATS].tolist() == [1, 1, 1, 1]
    assert shared.pace[Pace.REPEATS] == 0


# Faults


def beside(n_ranks: int = 4):
    """A bed with nothing but what the injectors of GPU faults touch."""
    controls = [np.zeros(len(Control)) for _ in range(3)]
    shared = [Shared(2, 1) for _ in range(n_ranks)]
    bed = SimpleNamespace(
        job=gpu_scenario().job,
        neighbours={1: controls},
        ranks=[SimpleNamespace(shared=each) for each in shared],
    )
    return bed, controls, shared


@pytest.mark.parametrize(
    ("kind", "severity", "deed", "shares"),
    [
        ("gpu_gemms", 1, Deed.GEMMS, [0.4, 0, 0]),
        ("gpu_gemms", 3, Deed.GEMMS, [1, 1, 0]),
        ("gpu_memory_traffic", 2, Deed.MEMORY_TRAFFIC, [1, 0, 0]),
        ("pinned_copies", 3, Deed.PINNED_COPIES, [1, 1, 1]),
    ],
)
def test_foreign_work_starts_on_the_victims_gpu_and_ends(kind, severity, deed, shares):
    bed, controls, _ = beside()
    fault = gpu_scenario(GEMMS | {"kind": kind, "severity": severity}).faults[0]
    held = injector(bed, fault)
    held.start()
    assert [each[Control.SHARE] for each in controls] == shares
    assert {each[Control.DEED] for each in controls} == {deed}
    held.stop()
    assert {each[Control.DEED] for each in controls} == {Deed.NOTHING}


def test_a_load_is_spread_over_the_neighbours():
    controls = [np.zeros(len(Control)) for _ in range(3)]
    instruct(controls, Deed.GEMMS, 1.5)
    assert [each[Control.SHARE] for each in controls] == [1.0, 0.5, 0.0]


def test_pageable_copies_are_a_knob_of_the_victim_alone():
    bed, _, shared = beside()
    held = injector(bed, gpu_scenario(GEMMS | {"kind": "pageable_copies", "severity": 2}).faults[0])
    held.start()
    assert [each.knobs[Knob.PAGEABLE_SHARE] for each in shared] == [0, 0.6, 0, 0]
    held.stop()
    assert [each.knobs[Knob.PAGEABLE_SHARE] for each in shared] == [0, 0, 0, 0]


# What is written


def gpu_record(scenario, **seen: object):
    seconds = np.full(40, 0.1)
    seconds[15:31] = 0.15
    pace = job_pace()
    pace[Pace.REPEATS], pace[Pace.COPIED_BYTES] = 1200, 200e6
    record = record_of(rows_of(seconds, 4), [acted_of(scenario, i) for i in range(len(scenario.faults))])
    gpu = Gpu(0, "GPU-1", "NVIDIA Imaginary", "570.00")
    held = GpuSeen(1, gpu, answered=list(NAMES), rounds=10, **seen)
    held.samples.update(dict.fromkeys(NAMES, 10))
    record.gpus.append(held)
    return SimpleNamespace(record=record, seen=held, pace=pace)


def test_the_label_says_what_was_real():
    from dataclasses import replace

    scenario = gpu_scenario(GEMMS)
    made = gpu_record(scenario, reasons=0x4, sm_percent={"host of rank 1": 600.0, "gpu_neighbour": 300.0})
    made.seen.samples["DCGM_FI_DEV_POWER_USAGE"] = 4
    label = label_of(scenario, replace(made.record, pace=made.pace))
    assert [(cause.cause, cause.ranks) for cause in label.causes] == [("gpu_contention", (1,))]
    for said in (
        "rank 1 computes on a NVIDIA Imaginary (driver 570.00)",
        "clock event reasons were software power cap",
        "stopped answering at times: DCGM_FI_DEV_POWER_USAGE",
        "DCGM did not run",
        "batch 1200 times over and copies 200 MB",
        "the other ranks' devices are CPU processes",
        "gpu_gemms, severity 2 (1 processes' worth of matrix products)",
    ):
        assert said in label.notes
    assert label.model_extra is not None
    [gpu] = label.model_extra["gpus"]
    assert gpu["mean_sm_percent"] == {"gpu_neighbour": 30.0, "host of rank 1": 60.0}
    assert label.model_extra["gpu_pace"]["repeats"] == 1200


def test_a_job_of_gpus_only_has_no_stand_ins_to_speak_of():
    scenario = gpu_scenario(gpu_ranks=[0, 1, 2, 3])
    assert "Stand-ins" not in label_of(scenario, gpu_record(scenario).record).notes


def test_a_job_without_gpus_says_nothing_of_them():
    label = label_of(scenario_of(), record_of(rows_of(np.full(40, 0.1), 4)))
    assert "GPU" not in label.notes
    assert not {"gpus", "gpu_pace"} & set(label.model_extra or {})


def test_only_real_gpus_are_placed_beside_real_gpus():
    record = record_of(rows_of(np.full(40, 0.1), 4))
    placed = window_of(gpu_scenario(nodes=2), record).job.ranks
    assert placed is not None
    assert [place.gpu for place in placed] == [None, 1, None, None]
    stand_ins = window_of(scenario_of(), record).job.ranks
    assert stand_ins is not None
    assert [place.gpu for place in stand_ins] == [0, 1, 0, 1]


def test_the_matrix_names_what_is_wrong_with_a_drawn_scenario():
    matrix = matrix_of(faults=[{"kind": "sequence_lengths"}], models=["transformer"], world_sizes=[4], gpus=1)
    with pytest.raises(InvalidInput, match="acts on a stand-in"):
        expand(matrix)
