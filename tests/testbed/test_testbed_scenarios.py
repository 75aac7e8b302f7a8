from __future__ import annotations

from pathlib import Path

import pytest
from testbed_records import EVERYTHING, scenario_of

from rca.errors import InvalidInput, SourceError
from rca.lab.testbed import BENIGN, FAULTS, read_scenario
from rca.lab.testbed.capture import refuse_impossible
from rca.window.causes import CAUSES, SPECS
from tests.for_each import for_each

EXAMPLES = sorted((Path(__file__).parents[2] / "data/testbed/examples").glob("*.yaml"))


@for_each("kind", FAULTS)
def test_every_fault_names_a_cause_of_the_catalogue_and_its_type(kind):
    spec = FAULTS[kind]
    assert {spec.cause, *spec.alike} <= set(SPECS)
    of_catalogue = SPECS[spec.cause].type
    own = {"fail_stop": None, "unknown": spec.type_of_unknown}
    assert spec.straggler_type == own.get(of_catalogue, of_catalogue)
    assert spec.stops_the_job == (of_catalogue == "fail_stop")


def test_slow_copies_over_a_healthy_link_are_no_fault_of_the_link():
    assert FAULTS["pinned_copies"].cause == "gpu_contention"
    assert (FAULTS["pageable_copies"].cause, FAULTS["pageable_copies"].straggler_type) == ("unknown", "host")


@for_each("kind", [kind for kind, spec in FAULTS.items() if not spec.stops_the_job])
def test_severities_differ_and_are_ordered(kind):
    levels = FAULTS[kind].levels
    assert list(levels) in (sorted(levels), sorted(levels, reverse=True))
    assert len(set(levels)) == 3


def test_every_cause_but_those_that_need_hardware_can_be_injected():
    anywhere = {spec.cause for spec in FAULTS.values() if spec.device != "gpu"}
    hardware = {"gpu_contention", "gpu_memory_errors", "nvlink_degradation"}
    not_yet = {"allocator_retries", "communication_misconfiguration", "recompilation"}
    assert set(CAUSES) - anywhere == hardware | not_yet
    with_gpu = {spec.cause for spec in FAULTS.values() if spec.device == "gpu"}
    assert with_gpu - anywhere == {"gpu_contention", "unknown"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_scenarios(path):
    assert read_scenario(path).faults


def test_affected_ranks_follow_from_the_scope():
    scenario = scenario_of(
        {"kind": "nic_rate", "scope": "node", "nodes": [1], "first_step": 9},
        {"kind": "cpu_hogs", "scope": "rank", "ranks": [3], "first_step": 9},
        {"kind": "full_last_stage", "scope": "stage", "first_step": 9},
        {"kind": "checkpoint_stall", "scope": "job", "first_step": 9},
        job={"pipeline": 2},
    )
    assert [fault.affected_ranks(scenario.job) for fault in scenario.faults] == [
        [2, 3],
        [3],
        [2, 3],
        [0, 1, 2, 3],
    ]


@for_each(
    ("fault", "message"),
    [
        ({"kind": "solar_flare", "scope": "rank", "ranks": [0], "first_step": 9}, "unknown fault"),
        ({"kind": "nic_rate", "scope": "rank", "ranks": [0], "first_step": 9}, "has the scopes node"),
        ({"kind": "cpu_hogs", "scope": "rank", "first_step": 9}, "names its ranks"),
        ({"kind": "cpu_hogs", "scope": "node", "nodes": [0], "ranks": [1], "first_step": 9}, "no ranks"),
        ({"kind": "cpu_hogs", "scope": "rank", "ranks": [4], "first_step": 9}, "outside 0..3"),
        ({"kind": "cpu_hogs", "scope": "node", "nodes": [2], "first_step": 9}, "outside 0..1"),
        ({"kind": "cpu_hogs", "scope": "rank", "ranks": [0], "first_step": 40}, "beyond the last"),
        (
            {"kind": "cpu_hogs", "scope": "rank", "ranks": [0], "first_step": 9, "last_step": 8},
            "before first",
        ),
        ({"kind": "sequence_lengths", "scope": "job", "first_step": 9}, "needs the transformer"),
        ({"kind": "full_last_stage", "scope": "stage", "first_step": 9}, "needs a job with pipeline"),
    ],
)
def test_an_impossible_fault_is_refused(fault, message):
    with pytest.raises(ValueError, match=message):
        scenario_of(fault)


def test_a_job_stops_only_once():
    stop = {"kind": "killed_rank", "scope": "rank", "ranks": [0], "first_step": 9}
    with pytest.raises(ValueError, match="stops only once"):
        scenario_of(stop, stop)


def test_invalid_and_missing_files_are_different_errors(tmp_path):
    with pytest.raises(SourceError):
        read_scenario(tmp_path / "absent.yaml")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: x\njob: {world_size: 1}\n")
    with pytest.raises(InvalidInput, match=r"job\.world_size"):
        read_scenario(wrong)
    wrong.write_text("name: [unclosed")
    with pytest.raises(InvalidInput, match="not YAML"):
        read_scenario(wrong)


def test_faults_that_the_machine_does_not_permit_are_refused():
    from dataclasses import replace

    scenario = scenario_of({"kind": "nic_delay", "scope": "node", "nodes": [1], "first_step": 9})
    refuse_impossible(scenario, EVERYTHING)
    with pytest.raises(InvalidInput, match="nic_delay needs namespaces, relay"):
        refuse_impossible(scenario, replace(EVERYTHING, namespaces=False, relay=False))


def test_many_ranks_get_longer_kernels():
    assert scenario_of(job={"world_size": 4}).job.scale == 1
    assert scenario_of(job={"world_size": 12, "nodes": 4}).job.scale == 2


def test_every_harmless_event_is_possible():
    assert scenario_of(benign=list(BENIGN)).benign == tuple(BENIGN)
