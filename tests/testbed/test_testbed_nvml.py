"""NVML's answers under DCGM's names: units, what is not supported, what stops answering."""

from __future__ import annotations

import os
import time
from itertools import pairwise

import orjson
import pytest
from fake_nvml import FakeNvml

from rca.lab.testbed.gpus import Gpu
from rca.lab.testbed.probe import installed
from rca.lab.testbed.process import ProcessTable
from rca.lab.testbed.sampling import gpu_watch
from rca.lab.testbed.sampling.gpu_watch import GpuWatch, report
from rca.lab.testbed.sampling.nvml import NAMES, XID_NAME, GpuProbe, reasons_in_words
from rca.lab.testbed.sampling.series import Series
from rca.lab.testbed.scenario import TestbedJob
from rca.window.catalogue import resolve
from tests.for_each import for_each

GPU = Gpu(0, "GPU-1", "NVIDIA Imaginary", "570.00")
#: What the fake's answers are in DCGM's units: watts, MiB, bytes per second, nanoseconds, millijoules.
EXPECTED = {
    "DCGM_FI_DEV_SM_CLOCK": 1755,
    "DCGM_FI_DEV_MEM_CLOCK": 2619,
    "DCGM_FI_DEV_GPU_TEMP": 61,
    "DCGM_FI_DEV_MEMORY_TEMP": 74,
    "DCGM_FI_DEV_POWER_USAGE": 412.5,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 9_876_543_210,
    "DCGM_FI_DEV_GPU_UTIL": 87,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 35,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0x4,
    "DCGM_FI_DEV_POWER_VIOLATION": 5_000_000,
    "DCGM_FI_DEV_THERMAL_VIOLATION": 7_000_000,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 11,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 2,
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 3,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 1,
    "DCGM_FI_DEV_RETIRED_SBE": 2,
    "DCGM_FI_DEV_RETIRED_DBE": 1,
    "DCGM_FI_DEV_PCIE_LINK_GEN": 4,
    "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": 5,
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": 8,
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": 16,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 6,
    "DCGM_FI_DEV_FB_USED": 10 * 1024,
    "DCGM_FI_PROF_PCIE_TX_BYTES": 1.5e6,
    "DCGM_FI_PROF_PCIE_RX_BYTES": 24e9,
    "DCGM_FI_DEV_XID_ERRORS": 0,
}


def test_every_value_has_dcgms_name_and_unit():
    probe = GpuProbe(FakeNvml(), "GPU-1")
    assert probe.read() == pytest.approx(EXPECTED)
    assert set(probe.answered) == set(NAMES) == set(EXPECTED)


@for_each("name", NAMES)
def test_every_name_is_known_to_the_catalogue(name):
    signal = resolve(name)
    assert signal is not None
    assert signal.scale == 1, "a name the catalogue rescales would be another exporter's"


@for_each(
    ("name", "unit"),
    [
        ("DCGM_FI_DEV_SM_CLOCK", "MHz"),
        ("DCGM_FI_DEV_POWER_USAGE", "W"),
        ("DCGM_FI_DEV_POWER_VIOLATION", "ns"),
        ("DCGM_FI_DEV_FB_USED", "MiB"),
        ("DCGM_FI_PROF_PCIE_RX_BYTES", "B/s"),
    ],
)
def test_values_have_the_units_of_the_catalogue(name, unit):
    signal = resolve(name)
    assert signal is not None
    assert signal.unit == unit


def test_unsupported_queries_are_tried_once_and_left_out():
    nvml = FakeNvml("nvmlDeviceGetRetiredPages", "nvmlDeviceGetViolationStatus", "nvmlDeviceRegisterEvents")
    probe = GpuProbe(nvml, "GPU-1")
    missing = {name for name in NAMES if "RETIRED" in name or "VIOLATION" in name or name == XID_NAME}
    assert set(probe.answered) == set(NAMES) - missing
    nvml.fails.clear()
    assert set(probe.read()) == set(probe.answered)


def test_a_function_that_the_binding_lacks_is_not_supported():
    nvml = FakeNvml()
    del nvml._answers["nvmlDeviceGetTotalEnergyConsumption"]
    assert "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" not in GpuProbe(nvml, "GPU-1").answered


def test_older_drivers_use_the_old_name_of_the_event_reasons():
    probe = GpuProbe(FakeNvml("nvmlDeviceGetCurrentClocksEventReasons"), "GPU-1")
    assert probe.read()["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"] == 0x20


def test_a_field_that_nvml_marks_as_failed_is_no_value():
    nvml = FakeNvml()
    answer = nvml._answers["nvmlDeviceGetFieldValues"]

    def failed(fields):
        [field] = answer(fields)
        field.nvmlReturn = 3
        return [field]

    nvml._answers["nvmlDeviceGetFieldValues"] = failed
    assert "DCGM_FI_DEV_MEMORY_TEMP" not in GpuProbe(nvml, "GPU-1").answered


def test_a_failed_query_leaves_a_gap_and_is_repeated():
    nvml = FakeNvml()
    probe = GpuProbe(nvml, "GPU-1")
    nvml.fails.add("nvmlDeviceGetPowerUsage")
    assert set(probe.read()) == set(NAMES) - {"DCGM_FI_DEV_POWER_USAGE"}
    nvml.fails.clear()
    assert probe.read()["DCGM_FI_DEV_POWER_USAGE"] == 412.5


def test_the_last_xid_stays():
    nvml = FakeNvml()
    probe = GpuProbe(nvml, "GPU-1")
    assert probe.read()[XID_NAME] == 0
    nvml.xids += [31, 79]
    assert probe.read()[XID_NAME] == 79
    assert probe.read()[XID_NAME] == 79


def test_processes_are_counted_once_each_and_stale_samples_never():
    nvml = FakeNvml()
    probe = GpuProbe(nvml, "GPU-1")
    assert probe.processes() == {}
    nvml.used = [(100, 7, 60), (100, 8, 40)]
    assert probe.processes() == {7: 60, 8: 40}
    assert probe.processes() == {}
    nvml.used.append((200, 7, 20))
    assert probe.processes() == {7: 20}


class Noting:
    """Passes all calls on to the fake and records their names."""

    def __init__(self) -> None:
        self.fake, self.names = FakeNvml("nvmlDeviceGetCurrentClocksEventReasons"), set()

    def __getattr__(self, name):
        self.names.add(name)
        return getattr(self.fake, name)


@pytest.mark.skipif(not installed("pynvml"), reason="nvidia-ml-py is not installed")
def test_the_real_binding_has_every_function_and_constant_we_use():
    import pynvml

    noting = Noting()
    probe = GpuProbe(noting, "GPU-1")
    probe.read()
    probe.processes()
    noted = noting.names
    assert len(noted) > 30
    assert {name for name in noted if not hasattr(pynvml, name)} == set()
    constants = {name for name in noted if isinstance(getattr(FakeNvml, name, None), int)}
    assert len(constants) > 10
    assert {name: getattr(pynvml, name) for name in constants} == {
        name: getattr(FakeNvml, name) for name in constants
    }


def test_event_reasons_have_words():
    assert reasons_in_words(0x4 | 0x40) == "software power cap, hardware thermal slowdown"
    assert reasons_in_words(0) == "none"


def test_a_report_starts_with_the_names_then_has_one_round_per_period():
    lines: list[bytes] = []
    nvml = FakeNvml()
    nvml.used = [(100, 7, 60)]
    report([GpuProbe(nvml, "GPU-1")], lines.append, 0.01, rounds=3)
    first, *rounds = [orjson.loads(line) for line in lines]
    assert set(first["answered"]) == set(NAMES)
    assert [each["processes"] for each in rounds] == [[[7, 60.0]], [], []]
    assert all(later["time"] - earlier["time"] >= 0.009 for earlier, later in pairwise(rounds))


def watched(monkeypatch, tmp_path, *rounds: dict[str, object], since: float = 0.0, pieces: int = 1):
    """What a `GpuWatch` makes of a report that arrives in pieces."""
    lines = [{"gpu": 0, "answered": ["DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE"]}, *rounds]
    said = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    size = -(-len(said) // pieces)

    def fake_watch(uuids, writer, period):
        assert uuids == ["GPU-1"]
        for start in range(0, len(said), size):
            os.write(writer, said[start : start + size])
            time.sleep(0.01)

    monkeypatch.setattr(gpu_watch, "watch", fake_watch)
    job = TestbedJob(world_size=4, nodes=2, gpu_ranks=(3,))
    process_table, series = ProcessTable(tmp_path / "log"), Series()
    watch = GpuWatch(job, {3: GPU}, process_table, 0.2)
    until = time.monotonic() + 10
    while time.monotonic() < until and process_table.alive:
        watch.take(series, since)
        process_table.reap()
        time.sleep(0.005)
    watch.take(series, since)
    watch.close()
    return series.samples, watch.seen[0]


@pytest.mark.system
def test_samples_carry_the_node_and_the_gpus_number_as_an_exporter_labels_them(monkeypatch, tmp_path):
    values = {"DCGM_FI_DEV_SM_CLOCK": 1755.0, "DCGM_FI_DEV_POWER_USAGE": 400.0}
    one = {"gpu": 0, "time": 5.0, "values": values, "processes": []}
    samples, _ = watched(monkeypatch, tmp_path, one)
    assert [(each.time, each.node, each.rank, each.device, each.name, each.value) for each in samples] == [
        (5.0, "node-1", None, "1", "DCGM_FI_DEV_SM_CLOCK", 1755.0),
        (5.0, "node-1", None, "1", "DCGM_FI_DEV_POWER_USAGE", 400.0),
    ]


@pytest.mark.system
def test_samples_before_the_job_do_not_count(monkeypatch, tmp_path):
    rounds = [
        {"gpu": 0, "time": t, "values": {"DCGM_FI_DEV_SM_CLOCK": t}, "processes": []} for t in (1.0, 2.0, 3.0)
    ]
    samples, seen = watched(monkeypatch, tmp_path, *rounds, since=2.0)
    assert [each.value for each in samples] == [2.0, 3.0]
    assert seen.rounds == 2


@pytest.mark.system
def test_lines_may_arrive_in_pieces(monkeypatch, tmp_path):
    rounds = [
        {"gpu": 0, "time": float(t), "values": {"DCGM_FI_DEV_SM_CLOCK": 1.0}, "processes": []}
        for t in range(20)
    ]
    samples, _ = watched(monkeypatch, tmp_path, *rounds, pieces=13)
    assert [each.time for each in samples] == list(range(20))


@pytest.mark.system
def test_the_label_has_the_other_observations_of_the_gpu(monkeypatch, tmp_path):
    full = {"DCGM_FI_DEV_SM_CLOCK": 1.0, "DCGM_FI_DEV_POWER_USAGE": 1.0}
    rounds = [
        {"gpu": 0, "time": 1.0, "values": full, "processes": [[999_999_999, 40.0]]},
        {"gpu": 0, "time": 2.0, "values": {"DCGM_FI_DEV_SM_CLOCK": 1.0}, "processes": [[999_999_999, 60.0]]},
        {
            "gpu": 0,
            "time": 3.0,
            "values": full | {"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0x4},
            "processes": [[os.getpid(), 50.0]],
        },
    ]
    _, seen = watched(monkeypatch, tmp_path, *rounds)
    said = seen.as_dict()
    assert said["interrupted"] == ["DCGM_FI_DEV_POWER_USAGE"]
    assert "DCGM_FI_DEV_FB_USED" in said["unanswered"]
    assert said["clock_event_reasons"] == 0x4
    assert said["mean_sm_percent"] == {"other process": pytest.approx(50.0)}
