"""Healthy jobs for the alarm thresholds: of their own seeds, the same ones every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rca.features import WINDOW_FEATURES
from rca.simulation.sampling import sample_scenario
from rca.training.feature_cache import FeatureCache
from rca.training.innocents import innocent_seeds, innocent_windows
from rca.training.simulated import scenario_seeds


def test_nothing_was_done_to_them_and_no_corpus_holds_them() -> None:
    seeds = innocent_seeds(40, 7)
    assert seeds == innocent_seeds(60, 7)[:40]
    assert len(set(seeds)) == 40
    assert not set(seeds) & set(scenario_seeds(4000, 7))
    assert not any(sample_scenario(np.random.default_rng(seed)).faults for seed in seeds)


def test_a_kept_batch_is_the_batch_that_was_made(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path)
    told: list[tuple[int, int]] = []

    def asked() -> np.ndarray:
        return innocent_windows(
            6, 3, processes=1, cache=cache, progress=lambda done, total: told.append((done, total))
        )

    first, second = asked(), asked()
    assert first.shape == (6, len(WINDOW_FEATURES))
    np.testing.assert_array_equal(first, second)
    assert told == [(6, 6), (6, 6)]
