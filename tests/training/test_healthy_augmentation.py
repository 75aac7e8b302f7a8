"""Healthy jobs for the alarm thresholds: of their own seeds, the same ones every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rca.features import WINDOW_FEATURES
from rca.lab.simulation import sample_scenario
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.healthy_augmentation import healthy_seeds, healthy_windows
from rca.lab.training.simulated import scenario_seeds
from rca.workers import HERE


def test_scenarios_are_the_same_ones_every_time_and_in_no_corpus() -> None:
    seeds = healthy_seeds(4000, 7)
    assert seeds[:40] == healthy_seeds(40, 7) != healthy_seeds(40, 8)
    assert len(set(seeds)) == 4000
    assert not set(seeds) & set(scenario_seeds(4000, 7))


def test_nothing_is_done_to_the_jobs() -> None:
    drawn = [sample_scenario(np.random.default_rng(seed), cause="healthy") for seed in healthy_seeds(20, 7)]
    assert not any(scenario.faults for scenario in drawn)


def test_a_kept_batch_is_the_batch_that_was_made(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def asked() -> np.ndarray:
        return healthy_windows(
            6,
            3,
            workers=HERE,
            cache=FeatureCache(tmp_path),
            progress=lambda done, total: told.append((done, total)),
        )

    first, second = asked(), asked()
    assert first.shape == (6, len(WINDOW_FEATURES))
    np.testing.assert_array_equal(first, second)
    assert told == [(done, 6) for done in range(7)] * 2
