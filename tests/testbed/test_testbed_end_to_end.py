"""One real capture: two ranks, twelve steps. Needs PyTorch, which the lock file leaves out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from testbed_records import scenario_of

import rca
from rca.lab.testbed.probe import installed
from rca.lab.testbed.sweep import exclusive, sweep
from rca.sources.labels import read_label
from rca.window.catalogue import resolve

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the testbed is Linux"),
    pytest.mark.skipif(not installed("torch"), reason="PyTorch is not installed"),
]


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    from rca.lab.testbed.capture import capture_to

    slow = {"kind": "device_clock", "scope": "rank", "ranks": [1], "first_step": 7, "severity": 3}
    scenario = scenario_of(slow, name="two-ranks", job={"world_size": 2, "nodes": 2, "steps": 12})
    path = tmp_path_factory.mktemp("testbed") / "window"
    capture_to(scenario, path)
    return path


def test_the_window_has_every_step_of_every_rank(captured):
    window = rca.read_window(captured)
    assert window.steps.num_rows == 24
    waited = window.steps.column("communication_wait_seconds").to_numpy().reshape(2, 12)
    assert waited[0, 8:].sum() > waited[1, 8:].sum()


def test_every_captured_metric_is_understood(captured):
    window = rca.read_window(captured)
    names = set(window.metrics.column("name").unique().to_pylist())
    assert len(names) > 20
    assert {name for name in names if resolve(name) is None} == set()


def test_the_label_has_the_injected_fault(captured):
    label = read_label(captured)
    assert label.failure_mode == "fail_slow"
    assert [(cause.cause, cause.ranks) for cause in label.causes] == [("gpu_throttling", (1,))]


def test_it_can_be_diagnosed(captured):
    assert rca.diagnose(rca.read_window(captured)).failure_mode in ("healthy", "fail_slow")


def test_nothing_is_left_behind(captured):
    with exclusive():
        assert sweep() == []
    assert list(Path("/sys/class/net").glob("rcatb*")) == []
