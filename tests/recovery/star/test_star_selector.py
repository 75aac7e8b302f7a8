"""The learned choice of the mode."""

from __future__ import annotations

import numpy as np
import pytest

from rca.errors import InvalidInput
from rca.runtime.star.modes import candidates, synchronous
from rca.runtime.star.price import UpdateProgress
from rca.runtime.star.selector import FEATURES, Selector, features


def steps(n_slow: int, factor: float = 4.0, n: int = 8) -> np.ndarray:
    found = np.random.default_rng(0).normal(0.1, 0.003, (n, 16))
    found[n - n_slow :] *= factor
    return found


@pytest.fixture(scope="module")
def selector() -> Selector:
    return Selector.shipped()


def test_a_straggler_is_not_waited_for(selector: Selector) -> None:
    chosen = selector.choose(steps(1), 32, 2000.0)
    assert chosen.kind != "synchronous"
    assert 7 not in chosen.groups[0]


def test_workers_of_like_speed_stay_together_where_samples_are_plenty(selector: Selector) -> None:
    chosen = selector.choose(steps(0), 32, 10.0)
    assert chosen.order >= 4


def test_the_expected_time_of_synchronous_training_is_that_of_itself(selector: Selector) -> None:
    progress = UpdateProgress(np.array([0.1] * 7 + [0.4]), 32, 500.0)
    modes = candidates(progress)
    times = selector.times(features(steps(1), progress, modes, 0.0))
    assert times[0] == pytest.approx(1.0, abs=0.2)
    assert times.min() < 0.6


def test_candidates_are_different_and_begin_with_synchronous_training() -> None:
    progress = UpdateProgress(np.array([0.1, 0.1, 0.1, 0.4]), 32, 500.0)
    modes = candidates(progress)
    assert modes[0] == synchronous(progress)
    assert len({(mode.kind == "x-order", mode.groups) for mode in modes}) == len(modes)
    assert features(steps(1, n=4), progress, modes, 0.001).shape == (len(modes), len(FEATURES))
    assert np.isfinite(features(steps(1, n=4), progress, modes, 0.001)).all()


def test_a_model_with_other_features_is_refused() -> None:
    import lightgbm

    rng = np.random.default_rng(0)
    data = lightgbm.Dataset(rng.normal(size=(50, 3)), rng.normal(size=50))
    model = lightgbm.train({"verbose": -1, "num_threads": 1}, data, 2)
    with pytest.raises(InvalidInput, match="3 features"):
        Selector(model.model_to_string())
