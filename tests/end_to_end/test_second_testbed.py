"""Real captures of a harness that none of us has written: nothing is learned from them."""

from __future__ import annotations

from pathlib import Path

import pytest

import rca
from rca.lab.testbed.pack import unpack
from rca.sources.labels import read_label

PACKED = Path(__file__).parents[2] / "data" / "testbed" / "second"


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("second") / "captures"
    unpack(PACKED, folder)
    return folder


@pytest.mark.parametrize("name", ["nic_rate-1", "nic_rate-2b"])
def test_a_lone_port_is_named_and_not_the_fabric(captures: Path, name: str) -> None:
    """Every rank of a small ring looks suspicious; only one node has a long queue."""
    found, label = rca.diagnose(rca.read_window(captures / name)), read_label(captures / name)
    assert (found.causes[0].cause, tuple(found.causes[0].ranks)) == ("nic_degradation", label.causes[0].ranks)


@pytest.mark.parametrize("name", ["healthy-ckpt-1", "healthy-plain-9"])
def test_a_shaped_port_that_meets_its_limit_now_and_then_is_no_fault(captures: Path, name: str) -> None:
    assert rca.diagnose(rca.read_window(captures / name)).failure_mode == "healthy"
