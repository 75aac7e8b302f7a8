"""Batch sizes, accumulation steps and gradient weights: optimal, and exact."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.errors import InvalidInput
from rca.runtime.antdt import (
    Decision,
    Hardware,
    accumulated,
    accumulation,
    balanced,
    equal,
    loss_scale,
    step_seconds,
)
from tests.for_each import for_each

speeds = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=4)


def brute_force(speed, fixed, low, high, total: int) -> float:
    """Seconds of the best of all sizes."""
    ranges = [range(a, b + 1) for a, b in zip(low, high, strict=True)]
    possible = [sizes for sizes in itertools.product(*ranges) if sum(sizes) == total]
    return min(step_seconds(np.array(sizes), speed, fixed) for sizes in possible)


@settings(max_examples=60)
@given(speed=speeds, data=st.data())
def test_no_other_sizes_have_a_shorter_step(speed: list[float], data: st.DataObject) -> None:
    n = len(speed)
    low = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    high = low + np.array(data.draw(st.lists(st.integers(0, 6), min_size=n, max_size=n)))
    fixed = np.array(data.draw(st.lists(st.floats(0, 2), min_size=n, max_size=n)))
    total = data.draw(st.integers(int(low.sum()), int(high.sum())))
    if total == 0:
        return
    sizes = balanced(np.array(speed), total, fixed=fixed, least=low, most=high)
    assert sizes.sum() == total
    assert (low <= sizes).all()
    assert (sizes <= high).all()
    found = step_seconds(sizes, np.array(speed), fixed)
    assert found == pytest.approx(brute_force(np.array(speed), fixed, low, high, total), rel=1e-12)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), total=st.integers(5_000, 10_000_000))
def test_large_batches_end_within_one_sample_of_the_ideal(seed: int, total: int) -> None:
    speed = np.random.default_rng(seed).uniform(1, 50, 1000)
    sizes = balanced(speed, total)
    assert sizes.sum() == total
    # No worker can end later than the ideal time of divisible samples plus one sample of its own.
    ideal = (total - sizes.size) / speed.sum()
    assert step_seconds(sizes, speed) <= ideal + 1 / speed.min() + 1e-9


def test_equal_speeds_give_equal_sizes() -> None:
    assert sorted(balanced(np.full(3, 7.0), 11).tolist()) == sorted(equal(3, 11).tolist()) == [3, 4, 4]


@for_each(
    ("speed", "limits", "message"),
    [
        ([1.0, 0.0], {}, "the speed of worker 1 is 0.0"),
        ([1.0, float("nan")], {}, "the speed of worker 1 is nan"),
        ([], {}, "there is no worker"),
        ([1.0, 1.0], {"most": 4}, "take 2 to 8 samples, the batch has 10"),
        ([1.0, 1.0], {"least": 6}, "take 12 to 20 samples, the batch has 10"),
        ([1.0, 1.0], {"least": 3, "most": 2}, "worker 0 takes at least 3 and at most 2"),
        ([1.0, 1.0], {"fixed": np.zeros(3)}, "2 workers have 3 fixed times"),
    ],
)
def test_impossible_limits_are_refused(speed, limits, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        balanced(np.array(speed), 10, **limits)


def test_the_nearest_batch_size_is_named() -> None:
    with pytest.raises(InvalidInput) as error:
        balanced(np.ones(2), 10, most=4)
    assert error.value.hint == "the nearest batch size is 8"


hardware = st.builds(
    Hardware,
    speed=st.floats(0.5, 20),
    most=st.integers(2, 5),
    fixed=st.floats(0, 2),
    least=st.integers(1, 2),
)


@settings(max_examples=60)
@given(workers=st.lists(hardware, min_size=1, max_size=3), total=st.integers(1, 24))
def test_no_other_accumulation_has_a_shorter_step(workers: list[Hardware], total: int) -> None:
    choices = [
        [(size, steps) for size in range(worker.least, worker.most + 1) for steps in range(1, 4)]
        for worker in workers
    ]
    possible: dict[int, float] = {}
    for choice in itertools.product(*choices):
        samples = sum(size * steps for size, steps in choice)
        taken = max(s * w.seconds(b) for w, (b, s) in zip(workers, choice, strict=True))
        possible[samples] = min(possible.get(samples, np.inf), taken)
    if total not in possible:
        with pytest.raises(InvalidInput) as error:
            accumulated(workers, total, most_steps=3)
        nearest = min(abs(each - total) for each in possible)
        named = int(error.value.hint.rpartition(" ")[2].replace(",", ""))
        assert named in possible
        assert abs(named - total) == nearest
        return
    found = accumulated(workers, total, most_steps=3)
    assert found.samples.sum() == total
    assert found.seconds == pytest.approx(possible[total], rel=1e-12)
    for worker, size, steps in zip(workers, found.sizes, found.steps, strict=True):
        assert worker.least <= size <= worker.most
        assert 1 <= steps <= 3
    each = zip(workers, found.sizes, found.steps, strict=True)
    assert max(s * w.seconds(b) for w, b, s in each) == pytest.approx(found.seconds)


def test_mixed_devices_end_together() -> None:
    fast, slow = Hardware(speed=400, most=32, fixed=0.01), Hardware(speed=100, most=16, fixed=0.01)
    found = accumulated([fast] * 4 + [slow] * 4, 1024)
    assert found.samples.sum() == 1024
    assert found.sizes.max() <= 32
    taken = found.steps * np.where(np.arange(8) < 4, 0.01 + found.sizes / 400, 0.01 + found.sizes / 100)
    equally = 4 * 0.01 + 128 / 100
    assert taken.max() < 0.55 * equally


def test_many_workers_share_a_large_batch() -> None:
    workers = [Hardware(400, 64, 0.01)] * 24 + [Hardware(150, 24, 0.01)] * 8
    found = accumulated(workers, 4096)
    assert found.samples.sum() == 4096
    # The ideal of divisible samples and passes, and one pass of rounding.
    ideal = 4096 / (24 * 64 / workers[0].seconds(64) + 8 * 24 / workers[-1].seconds(24))
    assert ideal <= found.seconds <= ideal + workers[-1].seconds(24)


def test_hundreds_of_different_workers_take_a_fraction_of_a_second() -> None:
    """All ranks wait for it: 13 s when it tried all bounds with a transform for each worker."""
    speeds = np.random.default_rng(1).uniform(100, 400, 256)
    workers = [Hardware(float(f"{speed:.3g}"), 64, 0.01) for speed in speeds]
    began = time.process_time()
    found = accumulated(workers, 8192)
    assert time.process_time() - began < 3
    assert found.samples.sum() == 8192
    # The samples that all workers can do in this time, if samples were divisible.
    counts = np.arange(1, 65)
    able = np.array(
        [np.clip((found.seconds - counts * 0.01) * w.speed, 0, counts * 64).max() for w in workers]
    )
    assert 8192 <= able.sum() <= 8192 * 1.05


@settings(max_examples=40)
@given(
    counts=st.lists(st.sets(st.integers(0, 60), min_size=1, max_size=40), min_size=1, max_size=4),
    most_shifts=st.sampled_from([0, 3, 2000]),
)
def test_sums_of_sets_are_those_of_all_combinations(counts: list[set[int]], most_shifts: int) -> None:
    able = [np.array(sorted(each)) for each in counts]
    expected = {0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulation, "_MAX_SHIFTS", most_shifts)
        found = accumulation._sums(able, 100)
    for each, bits in zip(counts, found[1:], strict=True):
        expected = {a + b for a in expected for b in each if a + b <= 100}
        assert {k for k in range(101) if bits >> k & 1} == expected
        assert bits < 1 << 101


@pytest.mark.parametrize(
    ("workers", "total", "message"),
    [
        ([], 4, "there is no worker"),
        ([Hardware(1, 4)], 0, "1 to 1,048,576 samples, not 0"),
        ([Hardware(0, 4)], 4, "worker 0 has speed 0"),
        ([Hardware(1, 4, least=5)], 4, "micro-batches of 5 to 4 samples"),
    ],
)
def test_bad_hardware_is_refused(workers, total: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        accumulated(workers, total)


@settings(max_examples=40)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_the_weighted_average_is_the_gradient_of_one_batch(counts: list[int], seed: int) -> None:
    if not sum(counts):
        return
    rng = np.random.default_rng(seed)
    x, y, theta = rng.normal(size=(sum(counts), 3)), rng.normal(size=sum(counts)), rng.normal(size=3)

    def mean_gradient(rows: slice) -> np.ndarray:
        """Of the squared error of a linear model."""
        if rows.start == rows.stop:
            return np.zeros(3)
        return 2 * x[rows].T @ (x[rows] @ theta - y[rows]) / (rows.stop - rows.start)

    bounds = np.concatenate([[0], np.cumsum(counts)])
    own = [mean_gradient(slice(a, b)) for a, b in itertools.pairwise(bounds.tolist())]
    scales = [loss_scale(count, len(counts), sum(counts)) for count in counts]
    averaged = np.mean(np.array(scales)[:, None] * np.array(own), axis=0)
    np.testing.assert_allclose(averaged, mean_gradient(slice(0, sum(counts))), atol=1e-12)


def test_equal_weights_are_biased_where_sizes_differ() -> None:
    """The check above can fail: without weights it does."""
    x = np.array([1.0, 1.0, 1.0, 5.0])
    assert np.mean([x[:3].mean(), x[3:].mean()]) != pytest.approx(x.mean())
    scaled = [loss_scale(3, 2, 4) * x[:3].mean(), loss_scale(1, 2, 4) * x[3:].mean()]
    assert np.mean(scaled) == pytest.approx(x.mean())


def test_passes_of_a_step_sum_to_the_weight_of_the_worker() -> None:
    decision = Decision.of([4, 6], [3, 1])
    assert decision.samples == (12, 6)
    assert 3 * loss_scale(4, 2, decision.total) == pytest.approx(loss_scale(12, 2, decision.total))


def test_a_decision_survives_its_text() -> None:
    decision = Decision(3, 40, (4, 6), (3, 1))
    assert Decision.from_json(decision.to_json()) == decision


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 1, "from_step": 0, "sizes": [1], "steps": []}']
)
def test_text_that_is_no_decision_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        Decision.from_json(text)
