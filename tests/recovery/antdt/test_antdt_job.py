"""A real job over gloo with a slow rank and a killed one, at a toy size; no time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
#: It starts thirteen processes, and a service.
pytestmark = [pytest.mark.long, pytest.mark.system]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    size = ["--seeds", "1", "--samples", "512", "--sample-seconds", "0.001", "--json"]
    command = [sys.executable, "-m", "benchmarks", "antdt", *size]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def test_a_killed_rank_loses_and_repeats_no_sample(found: dict[str, Any]) -> None:
    assert found["checkpoint_step"] < found["killed_step"]
    assert found["rolled_back_samples"] > 0
    assert (found["lost"], found["repeated"]) == (0, 0)


def test_the_bookkeeping_ends_with_every_sample(found: dict[str, Any]) -> None:
    assert found["finished"]
    assert found["booked_samples"] == found["expected_samples"] == 512


def test_unequal_batches_make_the_update_of_one_batch(found: dict[str, Any]) -> None:
    assert 0 < found["gradient_error"] < 1e-5


def test_both_modes_learn(found: dict[str, Any]) -> None:
    """A network that knows nothing has the loss log(4) = 1.39."""
    assert found["static_loss"]["mean"] < 1.0
    assert found["antdt_loss"]["mean"] < 1.0
