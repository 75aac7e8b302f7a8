"""Gradient noise scale on quadratic losses whose gradient and noise are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rca.errors import InvalidInput
from rca.runtime.star.noise import noise_scale, signal_and_noise
from tests.for_each import for_each

#: Loss of sample x: half the squared distance to it. The gradient of a sample is `at - x`.
AT, DEVIATIONS = np.array([1.0, -0.5, 2.0]), np.array([2.0, 1.0, 3.0])
SIGNAL, NOISE = float((AT**2).sum()), float((DEVIATIONS**2).sum())
SMALL, N_RANKS = 8, 4


def steps(n_steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mean squared length of the ranks' gradients, and that of the averaged gradient, of each step."""
    draw = np.random.default_rng(seed)
    samples = draw.normal(size=(n_steps, N_RANKS, SMALL, AT.size)) * DEVIATIONS
    ranks = (AT - samples).mean(axis=2)
    return (ranks**2).sum(axis=2).mean(axis=1), (ranks.mean(axis=1) ** 2).sum(axis=1)


def test_both_estimates_are_unbiased_over_all_possible_batches() -> None:
    gradients = np.array([[1.0, 2.0], [-3.0, 0.5], [0.0, 4.0]])
    true = gradients.mean(axis=0)
    spread = ((gradients - true) ** 2).sum(axis=1).mean()
    found = []
    for batch in itertools.product(gradients, repeat=4):
        small, large = np.mean(batch[:2], axis=0), np.mean(batch, axis=0)
        found.append(signal_and_noise((small**2).sum(), (large**2).sum(), 2, 4))
    signal, noise = np.mean(found, axis=0)
    assert signal == pytest.approx((true**2).sum(), rel=1e-12)
    assert noise == pytest.approx(spread, rel=1e-12)


def test_a_quadratic_has_its_known_noise_scale() -> None:
    found = noise_scale(*steps(4000), SMALL, SMALL * N_RANKS)
    assert found.signal == pytest.approx(SIGNAL, rel=0.03)
    assert found.noise == pytest.approx(NOISE, rel=0.03)
    assert found.samples == pytest.approx(NOISE / SIGNAL, rel=0.05)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    found = [noise_scale(*steps(80, seed), SMALL, SMALL * N_RANKS) for seed in range(100)]
    covered = sum(each.low <= NOISE / SIGNAL <= each.high for each in found)
    assert 80 <= covered <= 98


def test_a_gradient_that_is_only_noise_has_no_scale() -> None:
    found = noise_scale(np.array([4.0, 4.2, 3.9]), np.array([1.0, 1.1, 0.9]), 1, 4)
    assert found.samples is None
    assert found.high == np.inf


@for_each(
    ("small", "large", "sizes", "message"),
    [
        ([1.0, 1.0], [1.0, 1.0], (4, 4), "no noise scale"),
        ([1.0, 1.0], [1.0, 1.0], (0, 4), "no noise scale"),
        ([1.0, np.nan], [1.0, 1.0], (1, 4), "not finite"),
        ([1.0, 1.0], [1.0, -1.0], (1, 4), "negative"),
        ([1.0], [1.0], (1, 4), "two steps"),
    ],
)
def test_bad_input_is_refused(
    small: list[float], large: list[float], sizes: tuple[int, int], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        noise_scale(np.array(small), np.array(large), *sizes)
