"""The captures that are kept: enough of them, small enough, split without leaks, and valid windows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rca.lab.testbed.matrix import expand, read_matrix
from rca.lab.testbed.pack import unpack
from rca.sources.labels import Collection, read_collection
from rca.window.causes import CAUSES

ROOT = Path(__file__).resolve().parents[2]
PACKED = ROOT / "data" / "testbed" / "captures"


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    folder = tmp_path_factory.mktemp("kept") / "captures"
    unpack(PACKED, folder)
    return read_collection(folder)


def test_there_are_enough_and_they_stay_small(captures: Collection) -> None:
    assert len(captures) >= 150
    assert sum(path.stat().st_size for path in PACKED.iterdir()) < 40e6
    assert len({entry.summary["world_size"] for entry in captures}) >= 4
    assert len({entry.summary["model"] for entry in captures}) >= 2


def test_parts_are_those_of_the_matrix_and_share_no_scenario(captures: Collection) -> None:
    planned = {
        each.scenario.name: each.part for each in expand(read_matrix(ROOT / "data/testbed/matrix.yaml"))
    }
    parts: dict[tuple[str, int], set[str]] = {}
    for entry in captures:
        assert planned[entry.id] == entry.summary["split"]
        unit = (str(entry.summary["group"]), int(entry.summary["world_size"]))
        parts.setdefault(unit, set()).add(str(entry.summary["split"]))
    assert all(len(found) == 1 for found in parts.values())


def test_every_cause_is_in_the_training_and_the_test_part(captures: Collection) -> None:
    seen = Counter(
        (cause.cause, entry.summary["split"]) for entry in captures for cause in entry.read_label().causes
    )
    causes = {cause for cause, _ in seen}
    assert causes <= set(CAUSES)
    assert len(causes) >= 14
    for cause in causes:
        assert seen[cause, "train"], cause
        assert seen[cause, "test"], cause


def test_labels_have_the_cpu_share_of_other_processes(captures: Collection) -> None:
    shares = [(entry.read_label().model_extra or {})["stranger_cpu_share"] for entry in captures]
    assert max(shares) <= 0.10
    assert sorted(shares)[len(shares) // 2] < 0.06


def test_a_sample_of_them_is_valid(captures: Collection) -> None:
    for entry in list(captures)[::17]:
        window = entry.read_window()
        assert window.job.world_size == entry.summary["world_size"]
        assert window.metrics.num_rows > 1000
