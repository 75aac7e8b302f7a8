"""What healthy jobs of others do that simulated ones never do is found, and only that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.support import RANKS_OWN, Healthy, beyond, beyond_of, healthy_windows, main, table
from rca.features import WINDOW_FEATURES

N = len(WINDOW_FEATURES)
RNG = np.random.default_rng(0)
SIMULATED = RNG.uniform(0.0, 1.0, (1000, N))


def test_a_feature_outside_the_range_is_named_with_what_was_seen() -> None:
    real = np.full((20, N), 0.5)
    real[:3, 7], real[5, 2] = (1.5, 2.0, 2.5), -1.0
    found = beyond(WINDOW_FEATURES, (SIMULATED, SIMULATED), (real, real))
    assert [each.feature for each in found] == [WINDOW_FEATURES[2], WINDOW_FEATURES[7]]
    assert sorted(found[1].outside) == [1.5, 2.0, 2.5]
    assert found[1].n == 20
    assert 0.9 < found[1].high < 1.0
    assert table(found, 20).row_count == 2


def test_neither_unknown_values_nor_a_shared_bound_are_outside() -> None:
    simulated = SIMULATED.copy()
    simulated[:, 0] = 0.0
    real = np.full((5, N), np.nan)
    real[:, 0] = 0.0
    assert beyond(WINDOW_FEATURES, (simulated, simulated), (real, real)) == []


def test_what_no_simulated_job_knows_is_outside() -> None:
    simulated = SIMULATED.copy()
    simulated[:, 1] = np.nan
    real = np.full((5, N), 0.5)
    (found,) = beyond(WINDOW_FEATURES, (simulated, simulated), (real, real))
    assert found.feature == WINDOW_FEATURES[1]
    assert "never known" in list(table([found], 5).columns[2].cells)


def test_of_ranks_the_ends_count_and_most_windows_come_first() -> None:
    shape = (1000, len(RANKS_OWN))
    usual = Healthy(SIMULATED, RNG.uniform(0.0, 0.2, shape), RNG.uniform(0.8, 1.0, shape))
    least, most = np.full((4, len(RANKS_OWN)), 0.1), np.full((4, len(RANKS_OWN)), 0.9)
    most[:3, RANKS_OWN.index("transfer_excess")] = 9.0
    least[:2, RANKS_OWN.index("wait_deficit")] = -9.0
    windows = np.full((4, N), 0.5)
    windows[3, WINDOW_FEATURES.index("lateness")] = 9.0
    found = beyond_of(usual, Healthy(windows, least, most))
    counted = [(each.feature, each.outside.tolist()) for each in found]
    assert counted == [
        ("transfer_excess", [9.0, 9.0, 9.0]),
        ("wait_deficit", [-9.0, -9.0]),
        ("lateness", [9.0]),
    ]


def test_healthy_windows_of_a_collection_are_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = Path(__file__).parents[2] / "data" / "windows"
    assert 0 < len(healthy_windows([folder]).window) < 8
    assert len(healthy_windows([folder], "no such part").window) == 0
    assert main([str(folder), "--windows", "20", "--processes", "1", "--dialect", "cpu_testbed"]) == 0
    assert "outside the range" in capsys.readouterr().out
    assert main([str(tmp_path)]) == 2
