"""A job without the lateness of some ranks is the job in which they were never late."""

from __future__ import annotations

import numpy as np
import pytest

from rca.classify.counterfactual import Counterfactual
from rca.features import RANK_FEATURES, WINDOW_FEATURES, FeatureSet, extract
from rca.lab.simulation import Fault, simulate
from tests.diagnosis.simulated_jobs import job

NOISE = 1e-5
EVIDENCE = ("versus_peers", "versus_past", "versus_nominal")
HOT = Fault(cause="gpu_throttling", ranks=(3,), first_step=10, last_step=90, severity=0.9)
HOST = Fault(cause="cpu_contention", ranks=(12,), first_step=60, last_step=80, severity=0.5)


def counterfactual(window, *ranks: int) -> FeatureSet:
    return Counterfactual.of(extract(window), ranks).features_without_lateness(window)


def answer(features: FeatureSet, name: str) -> np.ndarray:
    return features.rank[:, RANK_FEATURES.index(name)]


@pytest.mark.parametrize("steps", [slice(None), slice(20, 50)], ids=["all along", "for a while"])
def test_it_is_the_job_without_them(make_window, steps: slice) -> None:
    both = make_window(8, 60, late={2: 0.05, 5: 0.03}, steps=steps, noise=NOISE)
    one = extract(make_window(8, 60, late={5: 0.03}, steps=steps, noise=NOISE))
    left = counterfactual(both, 2)
    near = {"atol": 20 * NOISE}
    np.testing.assert_allclose(left.work.step, one.work.step, **near)
    np.testing.assert_allclose(left.work.own, one.work.own, **near)
    np.testing.assert_allclose(left.work.wait, one.work.wait, **near)
    np.testing.assert_allclose(left.work.transfer, one.work.transfer, **near)
    for name, seconds in one.work.phases.items():
        np.testing.assert_allclose(left.work.phases[name], seconds, **near, err_msg=name)
    assert left.comparison.segment.mask(60).tolist() == one.comparison.segment.mask(60).tolist()
    for name in ("own_time_excess", "gain_rank", "wait_deficit", "forward_excess", "late_share"):
        np.testing.assert_allclose(answer(left, name), answer(one, name), atol=2e-3, err_msg=name)
    top = WINDOW_FEATURES.index("top_gain_rank")
    assert left.window[top] == pytest.approx(one.window[top], abs=2e-3)


def test_what_was_measured_stays_as_it_was() -> None:
    window = simulate(job(HOT, seed=3)).window
    features = extract(window)
    held = [features.work.own, features.work.step, features.work.wait, *features.work.phases.values()]
    held += [getattr(features.evidence, name) for name in EVIDENCE] + [features.rank, features.window]
    before = [each.copy() for each in held]
    Counterfactual.of(features, [3]).features_without_lateness(window)
    for each, was in zip(held, before, strict=True):
        np.testing.assert_array_equal(each, was)


def test_only_lateness_is_taken_out(make_window) -> None:
    """Who is quicker than the others in some steps stays so."""
    late = np.where(np.arange(60) < 30, -0.01, 0.05)
    left = counterfactual(make_window(8, 60, late={2: late}, noise=NOISE), 2)
    beside = left.work.own[2] - np.median(left.work.own, axis=0)
    np.testing.assert_allclose(beside[:30], -0.01, atol=20 * NOISE)
    np.testing.assert_allclose(beside[30:], 0.0, atol=20 * NOISE)


def test_waiting_is_never_negative(make_window) -> None:
    assert (counterfactual(make_window(3, 60, late={2: 0.02}, noise=2e-3), 2).work.wait >= 0).all()


def test_phases_lose_what_the_rank_was_late_by_and_no_more(make_window) -> None:
    """Longer in two phases and shorter in a third: late by less than the two are longer."""
    window = make_window(
        8,
        60,
        late={2: 1.0},
        phase={"forward_seconds": 0.05, "optimizer_seconds": 0.02, "backward_seconds": -0.03},
        noise=NOISE,
    )
    features, left = extract(window), counterfactual(window, 2)
    taken = {name: features.work.phases[name][2] - seconds[2] for name, seconds in left.work.phases.items()}
    np.testing.assert_allclose(sum(taken.values()), 0.04, atol=20 * NOISE)
    assert all((seconds >= 0).all() for seconds in taken.values())


def test_lateness_in_several_phases_is_taken_out_of_each(make_window) -> None:
    spread = {"data_loading_seconds": 0.75, "backward_seconds": 0.25}
    left = counterfactual(make_window(8, 60, late={2: 0.04}, phase=spread, noise=NOISE), 2)
    for name, seconds in left.work.phases.items():
        np.testing.assert_allclose(seconds[2], np.median(seconds, axis=0), atol=20 * NOISE, err_msg=name)


@pytest.mark.parametrize(
    ("late", "ranks", "slow"),
    [
        ({2: 0.05}, [2], False),
        ({2: 0.05, 5: 0.03}, [2, 5], False),
        ({2: 0.05, 5: 0.03}, [2], True),
        ({2: 0.05, 5: 0.0005}, [2], False),
    ],
)
def test_a_job_is_classified_again_only_if_lateness_remains(make_window, late, ranks, slow: bool) -> None:
    features = extract(make_window(8, 60, late=late, noise=NOISE))
    assert Counterfactual.of(features, ranks).is_still_slow() is slow


def test_steps_of_everybody_that_vary_leave_it_slow(make_window) -> None:
    transfer = np.full(60, 0.04)
    transfer[::3] = 0.09
    assert Counterfactual.of(
        extract(make_window(8, 60, late={2: 0.05}, transfer=transfer)), [2]
    ).is_still_slow()


def test_steps_that_vary_by_who_is_mended_do_not(make_window) -> None:
    now_and_then = np.where(np.arange(60) % 3 == 0, 0.2, 0.0)
    features = extract(make_window(8, 60, late={2: now_and_then}, noise=NOISE))
    assert not Counterfactual.of(features, [2]).is_still_slow()


def test_a_heavier_stage_leaves_it_slow(make_window) -> None:
    job = {"data": 4, "pipeline": 2}
    late = dict.fromkeys((4, 5, 6, 7), 0.02) | {1: 0.05}
    assert Counterfactual.of(extract(make_window(8, 60, late=late, parallelism=job)), [1]).is_still_slow()


def test_machines_of_mended_ranks_say_nothing() -> None:
    window = simulate(job(HOT, HOST, seed=3)).window
    features, left = extract(window), counterfactual(window, 3)
    assert np.nanmax(features.evidence.versus_peers[3]) > 1
    for name in EVIDENCE:
        assert np.isnan(getattr(left.evidence, name)[3]).all(), name
    for name in ("versus_peers", "versus_past"):
        assert np.isfinite(getattr(left.evidence, name)[4]).any(), name


def test_exporters_are_asked_about_the_steps_in_which_the_mended_job_is_slow() -> None:
    window = simulate(job(HOT, HOST, seed=3)).window
    features, left = extract(window), counterfactual(window, 3)
    assert features.comparison.segment.first < 20
    assert left.comparison.segment.first == pytest.approx(60, abs=3)
    assert answer(left, "cpu_wait_vs_past")[12] > answer(features, "cpu_wait_vs_past")[12] + 0.5
    assert left.signals is not features.signals
