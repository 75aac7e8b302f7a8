"""What StragglAR costs and saves: the published figures follow from the published inputs."""

import math

import numpy as np
import pytest

from rca.errors import InvalidInput
from rca.runtime.stragglar import cost
from rca.runtime.stragglar.cost import Link, predicted_saving
from tests.for_each import for_each

BANDWIDTH_ONLY = Link(0.0, 1.0)


def arrivals_of(persistence: float, delay: float, n_ranks: int = 8, n_steps: int = 400) -> np.ndarray:
    """Rank 2 is `delay` seconds late in that share of the steps; else another rank is."""
    draw = np.random.default_rng(3)
    arrivals = draw.uniform(0, 1e-4, (n_ranks, n_steps))
    late = np.where(draw.random(n_steps) < persistence, 2, draw.integers(3, n_ranks, n_steps))
    arrivals[late, np.arange(n_steps)] += delay * draw.uniform(0.8, 1.4, n_steps)
    return arrivals


@pytest.mark.parametrize(("n", "speedup"), [(8, 1.36), (16, 1.56)])
def test_the_published_speedup_over_a_ring(n: int, speedup: float) -> None:
    ring, rounds = cost.ring_seconds(n, 1.0, BANDWIDTH_ONLY), cost.rounds_seconds(n, 1.0, BANDWIDTH_ONLY)
    assert ring / rounds == pytest.approx(speedup, abs=0.005)


@pytest.mark.parametrize(("n", "share"), [(8, 0.46), (32, 0.17)])
def test_the_published_break_even_delay(n: int, share: float) -> None:
    whole = cost.reduce_scatter_seconds(n, 1.0, BANDWIDTH_ONLY)
    assert cost.break_even_delay(n, 1.0, BANDWIDTH_ONLY) / whole == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("break_even", [6e-3, 8e-3])
@pytest.mark.parametrize("persistence", [0.77, 0.95])
def test_the_published_end_to_end_gain_and_not_the_microbenchmark(
    break_even: float, persistence: float
) -> None:
    # The all-reduce's share of the step is not published with the gains; 0.19 is our assumption.
    size = break_even / cost.break_even_delay(8, 1.0, BANDWIDTH_ONLY)
    step = cost.ring_seconds(8, size, BANDWIDTH_ONLY) / 0.19
    found = predicted_saving(
        arrivals_of(persistence, 4 * break_even), size, BANDWIDTH_ONLY, step_seconds=step
    )
    assert found.share is not None
    assert 0.024 < found.share < 0.0475
    assert found.worth_it
    assert found.straggler == 2
    assert found.persistence == pytest.approx(persistence, abs=0.05)
    assert found.low < found.seconds < found.high


def test_the_ordinary_all_reduce_is_faster_below_a_size() -> None:
    """The crossover is at 2 MB: 1.5 ms more for each tensor, and 0.75 s/GB less."""
    costs = cost.GroupCosts(Link(2e-3, 1e-9), Link(5e-4, 1.75e-9))
    assert [costs.is_faster(size) for size in (1e3, 1.9e6, 2.1e6)] == [False, False, True]
    assert not cost.GroupCosts(costs.stragglar, costs.ordinary, agreement=1e-3).is_faster(2.1e6)


def test_a_delay_below_the_break_even_is_not_worth_it() -> None:
    found = predicted_saving(arrivals_of(0.95, 3e-3), 0.018, BANDWIDTH_ONLY)
    assert not found.worth_it
    assert found.seconds < 0
    assert "below the break-even" in found.reason


def test_a_straggler_that_changes_is_worth_it_in_the_eager_mode_only() -> None:
    arrivals = arrivals_of(0.2, 30e-3)
    static = predicted_saving(arrivals, 0.018, BANDWIDTH_ONLY)
    eager = predicted_saving(arrivals, 0.018, BANDWIDTH_ONLY, mode="eager", agreement=1e-4)
    assert not static.worth_it
    assert eager.worth_it
    assert eager.straggler is None


def test_a_likely_straggler_that_is_often_in_time_is_not_worth_it() -> None:
    found = predicted_saving(arrivals_of(0.55, 9e-3), 0.018, BANDWIDTH_ONLY)
    assert not found.worth_it
    assert "55%" in found.reason or "below" in found.reason


def test_a_rank_that_is_usually_in_time_has_no_negative_delay() -> None:
    found = predicted_saving(arrivals_of(0.3, 9e-3), 0.018, BANDWIDTH_ONLY)
    assert not found.worth_it
    assert "the expected rank is not last" in found.reason
    assert "-" not in found.reason


def test_three_ranks_are_never_worth_it() -> None:
    assert math.isinf(cost.break_even_delay(3, 1.0, BANDWIDTH_ONLY))
    found = predicted_saving(arrivals_of(1.0, 1.0, n_ranks=4)[:3], 1.0, BANDWIDTH_ONLY)
    assert "whatever the delay" in found.reason


def test_tiny_tensors_go_by_halving_and_doubling() -> None:
    link = Link(1e-5, 1e-10)
    assert cost.best_alternative_seconds(64, 8, link) == cost.halving_doubling_seconds(64, 8, link)
    assert math.isinf(cost.break_even_delay(64, 8, link))


def test_hidden_communication_saves_nothing() -> None:
    found = predicted_saving(arrivals_of(0.95, 30e-3), 0.018, BANDWIDTH_ONLY, exposed=0.0)
    assert found.seconds == 0
    assert not found.worth_it
    assert "hidden" in found.reason


def test_algorithms_off_a_power_of_two() -> None:
    link = Link(1.0, 0.0)
    assert cost.halving_doubling_seconds(8, 1, link) == 6
    assert cost.halving_doubling_seconds(9, 1, link) == 8
    assert cost.direct_seconds(9, 1, link) == 8
    assert cost.stragglar_seconds(5, 1, link, -1.0) == 9
    assert cost.stragglar_seconds(5, 1, link, 2.0) == 7


@for_each(
    ("arrivals", "options"),
    [
        (np.zeros((1, 50)), {}),
        (np.zeros((4, 2)), {}),
        (np.full((4, 50), np.nan), {}),
        (np.zeros((4, 50)), {"exposed": 2.0}),
        (np.zeros((4, 50)), {"agreement": -1.0}),
        (np.zeros((4, 50)), {"step_seconds": 0.0}),
    ],
)
def test_unusable_input_is_refused(arrivals: np.ndarray, options: dict[str, float]) -> None:
    with pytest.raises(InvalidInput) as refused:
        predicted_saving(arrivals, 1.0, BANDWIDTH_ONLY, **options)  # type: ignore[arg-type]
    assert refused.value.hint


@pytest.mark.parametrize(("alpha", "beta"), [(-1.0, 0.0), (0.0, math.nan), (math.inf, 0.0)])
def test_impossible_links_are_refused(alpha: float, beta: float) -> None:
    with pytest.raises(InvalidInput):
        Link(alpha, beta)
