"""What is done to GPU ranks, and what is written about them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from testbed_records import GEMMS, acted_of, gpu_scenario, record_of, rows_of, scenario_of

from rca.lab.testbed.gpus import Gpu
from rca.lab.testbed.injection import injector
from rca.lab.testbed.labels import label_of
from rca.lab.testbed.ranks.neighbour import Control, GpuWork, set_gpu_load
from rca.lab.testbed.ranks.shared import DevicePace, Knob, RankMemory, job_pace
from rca.lab.testbed.sampling.gpu_watch import GpuObservation
from rca.lab.testbed.sampling.nvml import NAMES
from rca.lab.testbed.window import window_of


def gpu_bed(n_ranks: int = 4):
    """A bed with only the parts that the injectors of GPU faults use."""
    controls = [np.zeros(len(Control)) for _ in range(3)]
    shared = [RankMemory(2, 1) for _ in range(n_ranks)]
    bed = SimpleNamespace(
        job=gpu_scenario().job,
        neighbours={1: controls},
        ranks=[SimpleNamespace(shared=each) for each in shared],
    )
    return bed, controls, shared


@pytest.mark.parametrize(
    ("kind", "severity", "work", "shares"),
    [
        ("gpu_gemms", 1, GpuWork.GEMMS, [0.4, 0, 0]),
        ("gpu_gemms", 3, GpuWork.GEMMS, [1, 1, 0]),
        ("gpu_memory_traffic", 2, GpuWork.MEMORY_TRAFFIC, [1, 0, 0]),
        ("pinned_copies", 3, GpuWork.PINNED_COPIES, [1, 1, 1]),
    ],
)
def test_foreign_work_starts_and_stops_on_the_affected_gpu(kind, severity, work, shares):
    bed, controls, _ = gpu_bed()
    fault = gpu_scenario(GEMMS | {"kind": kind, "severity": severity}).faults[0]
    held = injector(bed, fault)
    held.start()
    assert [each[Control.SHARE] for each in controls] == shares
    assert {each[Control.WORK] for each in controls} == {work}
    held.stop()
    assert {each[Control.WORK] for each in controls} == {GpuWork.NOTHING}


def test_a_load_is_spread_over_the_neighbours():
    controls = [np.zeros(len(Control)) for _ in range(3)]
    set_gpu_load(controls, GpuWork.GEMMS, 1.5)
    assert [each[Control.SHARE] for each in controls] == [1.0, 0.5, 0.0]


def test_pageable_copies_set_a_knob_of_the_affected_rank_only():
    bed, _, shared = gpu_bed()
    held = injector(bed, gpu_scenario(GEMMS | {"kind": "pageable_copies", "severity": 2}).faults[0])
    held.start()
    assert [each.knobs[Knob.PAGEABLE_SHARE] for each in shared] == [0, 0.6, 0, 0]
    held.stop()
    assert [each.knobs[Knob.PAGEABLE_SHARE] for each in shared] == [0, 0, 0, 0]


def gpu_record(scenario, **seen: object):
    seconds = np.full(40, 0.1)
    seconds[15:31] = 0.15
    pace = job_pace()
    pace[DevicePace.REPEATS], pace[DevicePace.COPIED_BYTES] = 1200, 200e6
    record = record_of(rows_of(seconds, 4), [acted_of(scenario, i) for i in range(len(scenario.faults))])
    gpu = Gpu(0, "GPU-1", "NVIDIA Imaginary", "570.00")
    held = GpuObservation(1, gpu, answered=list(NAMES), rounds=10, **seen)
    held.samples.update(dict.fromkeys(NAMES, 10))
    record.gpus.append(held)
    return SimpleNamespace(record=record, seen=held, pace=pace)


def test_the_label_says_what_was_real():
    scenario = gpu_scenario(GEMMS)
    made = gpu_record(scenario, reasons=0x4, sm_percent={"host of rank 1": 600.0, "gpu_neighbour": 300.0})
    made.seen.samples["DCGM_FI_DEV_POWER_USAGE"] = 4
    label = label_of(scenario, replace(made.record, pace=made.pace))
    assert [(cause.cause, cause.ranks) for cause in label.causes] == [("gpu_contention", (1,))]
    for said in (
        "rank 1 computes on a NVIDIA Imaginary (driver 570.00)",
        "clock event reasons: software power cap",
        "sometimes without values: DCGM_FI_DEV_POWER_USAGE",
        "DCGM did not run",
        "batch 1200 times per step and copies 200 MB",
        "the other ranks' devices are CPU processes",
        "gpu_gemms, severity 2 (1 processes' worth of matrix products)",
    ):
        assert said in label.notes
    assert label.model_extra is not None
    [gpu] = label.model_extra["gpus"]
    assert gpu["mean_sm_percent"] == {"gpu_neighbour": 30.0, "host of rank 1": 60.0}
    assert label.model_extra["gpu_pace"]["repeats"] == 1200


def test_notes_of_a_job_with_only_gpus_name_no_stand_ins():
    scenario = gpu_scenario(gpu_ranks=[0, 1, 2, 3])
    assert "Stand-ins" not in label_of(scenario, gpu_record(scenario).record).notes


def test_notes_of_a_job_without_gpus_name_none():
    label = label_of(scenario_of(), record_of(rows_of(np.full(40, 0.1), 4)))
    assert "GPU" not in label.notes
    assert not {"gpus", "gpu_pace"} & set(label.model_extra or {})


def test_only_gpu_ranks_have_a_gpu_in_a_job_with_gpus():
    record = record_of(rows_of(np.full(40, 0.1), 4))
    placed = window_of(gpu_scenario(nodes=2), record).job.ranks
    assert placed is not None
    assert [place.gpu for place in placed] == [None, 1, None, None]
    stand_ins = window_of(scenario_of(), record).job.ranks
    assert stand_ins is not None
    assert [place.gpu for place in stand_ins] == [0, 1, 0, 1]
