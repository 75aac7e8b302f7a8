"""What healthy jobs of others do that simulated ones never do is found, and only that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.support import Healthy, beyond, beyond_of, healthy_windows, main, table
from rca.features import RANK_FEATURES, WINDOW_FEATURES

N = len(WINDOW_FEATURES)
RNG = np.random.default_rng(0)
SIMULATED = RNG.uniform(0.0, 1.0, (1000, N))


def test_a_feature_outside_the_range_is_named_with_what_was_seen() -> None:
    real = np.full((20, N), 0.5)
    real[:3, 7], real[5, 2] = (1.5, 2.0, 2.5), -1.0
    found = beyond(WINDOW_FEATURES, SIMULATED, real)
    assert [each.feature for each in found] == [WINDOW_FEATURES[2], WINDOW_FEATURES[7]]
    assert sorted(found[1].outside) == [1.5, 2.0, 2.5]
    assert found[1].share == 0.15
    assert 0.9 < found[1].high < 1.0
    assert table(found, 20).row_count == 2


def test_neither_unknown_values_nor_a_shared_bound_are_outside() -> None:
    simulated = SIMULATED.copy()
    simulated[:, 0] = 0.0
    real = np.full((5, N), np.nan)
    real[:, 0] = 0.0
    assert beyond(WINDOW_FEATURES, simulated, real) == []


def test_what_no_simulated_job_knows_is_outside() -> None:
    simulated = SIMULATED.copy()
    simulated[:, 1] = np.nan
    (found,) = beyond(WINDOW_FEATURES, simulated, np.full((5, N), 0.5))
    assert found.feature == WINDOW_FEATURES[1]
    assert "never known" in list(table([found], 5).columns[2].cells)


def test_what_one_rank_shows_counts_by_ranks_and_its_windows_own_once() -> None:
    usual = RNG.uniform(0.0, 1.0, (1000, len(RANK_FEATURES)))
    ranks = np.full((40, len(RANK_FEATURES)), 0.5)
    shared, own = RANK_FEATURES.index("lateness"), RANK_FEATURES.index("transfer_excess")
    ranks[:10, own] = ranks[:, shared] = 9.0
    windows = np.full((4, N), 0.5)
    windows[3, WINDOW_FEATURES.index("lateness")] = 9.0
    found = beyond_of(Healthy(SIMULATED, usual), Healthy(windows, ranks))
    assert [(each.feature, each.share) for each in found] == [("lateness", 0.25), ("transfer_excess", 0.25)]


def test_healthy_windows_of_a_collection_are_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = Path(__file__).parents[2] / "data" / "windows"
    assert 0 < len(healthy_windows([folder]).window) < 8
    assert main([str(folder), "--windows", "20", "--processes", "1", "--dialect", "cpu_testbed"]) == 0
    assert "outside the range" in capsys.readouterr().out
    assert main([str(tmp_path)]) == 2
