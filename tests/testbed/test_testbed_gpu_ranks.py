"""Jobs with GPU ranks, as far as they can be checked without a GPU and without PyTorch."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_nvml import FakeNvml
from testbed_records import GEMMS, gpu_scenario, scenario_of

from rca.cli import run as run_command_line
from rca.errors import InvalidInput
from rca.lab.testbed import FAULTS, gpus
from rca.lab.testbed.campaign import require_gpus_of
from rca.lab.testbed.gpus import Gpu, GpuMissing, find_gpus, require_gpus
from rca.lab.testbed.matrix import ScenarioMatrix, expand, read_matrix
from tests.for_each import for_each

ROOT = Path(__file__).parents[2]
GPU_MATRIX = ROOT / "data/testbed/matrix-gpu.yaml"
EXAMPLE = ROOT / "data/testbed/examples/gpu-gemms.yaml"
GPU_FAULTS = sorted(kind for kind, spec in FAULTS.items() if spec.device == "gpu")


# Scenarios


@pytest.mark.parametrize("kind", GPU_FAULTS)
def test_a_gpu_fault_needs_a_rank_with_a_gpu(kind):
    assert gpu_scenario(GEMMS | {"kind": kind}).faults[0].affected_ranks(gpu_scenario().job) == [1]
    with pytest.raises(ValueError, match=f"{kind} needs a real GPU"):
        gpu_scenario(GEMMS | {"kind": kind, "ranks": [0]})
    with pytest.raises(ValueError, match="needs a real GPU"):
        scenario_of(GEMMS | {"kind": kind})


@pytest.mark.parametrize("kind", ["device_clock", "device_duty_cycle", "killed_device", "hung_device"])
def test_a_stand_in_fault_needs_a_rank_without_a_gpu(kind):
    aimed = {"kind": kind, "scope": "rank", "first_step": 15}
    assert gpu_scenario(aimed | {"ranks": [0]}).faults
    with pytest.raises(ValueError, match="rank 1 has one"):
        gpu_scenario(aimed | {"ranks": [0, 1]})


def test_uneven_sequences_are_refused_in_a_job_with_gpus():
    fault = {"kind": "sequence_lengths", "scope": "job", "first_step": 15}
    with pytest.raises(ValueError, match="needs ranks without a real GPU"):
        gpu_scenario(fault, model="transformer")


@for_each("kind", ["cpu_hogs", "slow_dataset", "heavy_decoding", "gc_pauses", "killed_rank"])
def test_host_faults_may_hit_ranks_with_a_gpu(kind):
    assert gpu_scenario({"kind": kind, "scope": "rank", "ranks": [1], "first_step": 15}).faults


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"gpu_ranks": [4]}, "outside 0..3"),
        ({"gpu_ranks": [1, 1]}, "occurs twice"),
        ({"gpu_ranks": [1], "pipeline": 2}, "data-parallel"),
    ],
)
def test_impossible_gpu_ranks_are_refused(job, message):
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
    del parts["unknown"]  # slowness without a cause is not trained on
    assert all({"train", "test"} <= held for held in parts.values())


def test_any_rank_may_have_the_gpu_and_other_faults_may_hit_any_rank():
    planned = expand(read_matrix(GPU_MATRIX))
    assert {each.scenario.job.gpu_ranks[0] for each in planned} == {0, 1, 2, 3}
    hit = {
        rank in each.scenario.job.gpu_ranks
        for each in planned
        if each.group in ("gpu-cpu-hogs", "gpu-dataset")
        for fault in each.scenario.faults
        for rank in fault.ranks
    }
    assert hit == {True, False}


def matrix_of(**group: object) -> ScenarioMatrix:
    return ScenarioMatrix.model_validate({"name": "m", "groups": [{"name": "g", "models": ["mlp"], **group}]})


def test_a_group_without_a_possible_target_is_refused():
    with pytest.raises(ValueError, match="gpu_gemms has no possible target"):
        matrix_of(faults=[{"kind": "gpu_gemms"}], world_sizes=[4])
    with pytest.raises(ValueError, match="device_clock has no possible target"):
        matrix_of(faults=[{"kind": "device_clock"}], world_sizes=[2], gpus=2)
    with pytest.raises(ValueError, match="5 GPU ranks in a job of 4"):
        matrix_of(world_sizes=[4, 8], gpus=5)


def test_an_invalid_drawn_scenario_is_an_error_of_the_matrix():
    matrix = matrix_of(faults=[{"kind": "sequence_lengths"}], models=["transformer"], world_sizes=[4], gpus=1)
    with pytest.raises(InvalidInput, match="needs ranks without a real GPU"):
        expand(matrix)


# Looking for GPUs


def test_each_missing_module_is_named(monkeypatch):
    for module, named in (("torch", "PyTorch is not installed"), ("pynvml", "nvidia-ml-py")):
        monkeypatch.setattr(gpus, "installed", lambda name, module=module: name != module)
        with pytest.raises(GpuMissing, match=named):
            find_gpus()


@pytest.fixture
def both_installed(monkeypatch):
    monkeypatch.setattr(gpus, "installed", lambda name: True)


@pytest.mark.system
@pytest.mark.usefixtures("both_installed")
def test_another_process_queries_the_gpus(monkeypatch):
    def query_gpus():
        return {"gpus": [{"index": 0, "uuid": f"GPU-{os.getpid()}", "name": "Imaginary", "driver": "570.00"}]}

    monkeypatch.setattr(gpus, "query_gpus", query_gpus)
    [found] = find_gpus()
    assert (found.name, found.torch_device) == ("Imaginary", "cuda:0")
    assert found.uuid != f"GPU-{os.getpid()}"
    with pytest.raises(GpuMissing, match="needs 2 GPUs, this machine has 1"):
        require_gpus(2)


@pytest.mark.system
@pytest.mark.usefixtures("both_installed")
def test_the_error_of_cuda_is_reported(monkeypatch):
    monkeypatch.setattr(gpus, "query_gpus", lambda: {"lacking": "no usable GPU: the driver is too old"})
    with pytest.raises(GpuMissing, match="cannot run here: no usable GPU: the driver is too old"):
        require_gpus(1)


@pytest.mark.system
@pytest.mark.usefixtures("both_installed")
def test_a_query_process_that_ends_is_reported(monkeypatch):
    def query_gpus():
        raise OSError("libcuda: bad image")

    monkeypatch.setattr(gpus, "query_gpus", query_gpus)
    with pytest.raises(GpuMissing, match="CUDA does not start: OSError: libcuda: bad image"):
        find_gpus()


def libraries(monkeypatch, *fails: str, cuda: str | None = "13.0", error: Exception | None = None) -> None:
    """Stand-ins for PyTorch and the binding, on a machine with one GPU by default."""

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


def test_a_gpu_has_the_uuid_of_nvml(monkeypatch):
    libraries(monkeypatch)
    [found] = gpus.query_gpus()["gpus"]
    assert Gpu(**found) == Gpu(0, "GPU-ff-00", "NVIDIA Imaginary", "570.00")


@pytest.mark.parametrize(
    ("fails", "cuda", "error", "said"),
    [
        ([], None, None, "PyTorch 2.13.0 was built without CUDA"),
        ([], "13.0", RuntimeError("Found no driver. Please check"), "no usable GPU: Found no driver"),
        (["nvmlDeviceGetHandleByUUID"], "13.0", None, "NVML does not answer: Not Found"),
    ],
)
def test_the_reason_for_a_missing_gpu_is_reported(monkeypatch, fails, cuda, error, said):
    libraries(monkeypatch, *fails, cuda=cuda, error=error)
    assert gpus.query_gpus()["lacking"] == said


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
def test_without_a_gpu_the_command_names_what_is_missing_and_writes_nothing(
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
