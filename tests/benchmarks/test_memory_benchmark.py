"""The estimate of a window's memory is above what a process of the pool takes for it, and not far above."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.measure import MIB
from benchmarks.memory import MemoryUse, of_request
from benchmarks.window_shapes import SHAPES, SPARSE, largest

LIMIT = 150 * MIB
#: Largest ratio of the estimate to what was taken.
MAX_TIMES = 4.0
#: Pages that come and go with the rest of the process.
NOISE = 12 * MIB


def measured(name: str, folder: Path) -> list[MemoryUse]:
    requests = SPARSE[name]() if name in SPARSE else largest(SHAPES[name], LIMIT)
    return [of_request(name, request, folder, LIMIT) for request in requests]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize(
    "name",
    [
        "ranks x 100 steps, all columns",
        "20 metrics of every rank",
        "samples in order of time",
        "one long series",
        "with an earlier window",
        "operations",
    ],
)
def test_the_estimate_is_between_one_and_four_times_what_is_taken(name: str, tmp_path: Path) -> None:
    for found in measured(name, tmp_path):
        assert found.accepted
        taken = found.peak - found.idle
        assert taken <= found.estimate + NOISE, f"{found.route}: {taken / MIB:.0f} MiB"
        assert found.estimate <= MAX_TIMES * taken, f"{found.route}: {taken / MIB:.0f} MiB"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.system
def test_a_refused_window_takes_little_beyond_its_body(tmp_path: Path) -> None:
    for found in measured("4 of 1,000,000 ranks", tmp_path):
        assert found.outcome in {"invalid-window", "too-large"}
        assert found.peak - found.idle < 4 * found.body + NOISE
