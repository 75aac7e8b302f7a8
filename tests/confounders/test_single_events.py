"""One long step is no straggler, however long it is and wherever it falls."""

from __future__ import annotations

import numpy as np
import pytest

import rca
from rca.classify.classifier import Classifier
from rca.classify.preconditions import single_events
from rca.diagnosis.bundle import baseline
from rca.features import FeatureSet, extract
from tests.for_each import for_each

#: A usual step of `make_window`, seconds.
STEP = 0.113
PHASES = ("data_loading_seconds", "host_to_device_seconds", "forward_seconds", "backward_seconds")


@for_each("phase", PHASES)
@for_each("length", [2, 5, 20, 50])
@for_each(("n_steps", "at"), [(60, 30), (60, 59), (200, 77)])
def test_one_long_step_of_one_rank_is_healthy(make_window, phase, length, n_steps, at) -> None:
    window = make_window(n_steps=n_steps, late={5: length * STEP}, steps=slice(at, at + 1), phase=phase)
    diagnosis = rca.diagnose(window)
    assert diagnosis.failure_mode == "healthy"
    assert diagnosis.causes == []
    if diagnosis.abstained and diagnosis.abstention_reason.code == "single_event":
        assert f"step {at} " in diagnosis.abstention_reason.sentence
        assert "rank 5" in diagnosis.next_check


@pytest.mark.parametrize("length", [5, 50])
def test_several_ranks_hit_at_once_are_one_event(make_window, length) -> None:
    late = dict.fromkeys((1, 4, 6), length * STEP)
    diagnosis = rca.diagnose(make_window(n_steps=60, late=late, steps=slice(30, 31)))
    assert diagnosis.failure_mode == "healthy"
    assert diagnosis.abstention_reason is None or diagnosis.abstention_reason.code == "single_event"


def test_three_slow_steps_in_a_row_are_no_single_event(make_window) -> None:
    assert single_events(extract(make_window(n_steps=200, late={5: 1.0}, steps=slice(50, 53)))) is None
    found = single_events(extract(make_window(n_steps=200, late={5: 1.0}, steps=slice(50, 52))))
    assert np.flatnonzero(found).tolist() == [50, 51]


def test_a_checkpoint_every_so_often_is_a_habit(make_window) -> None:
    often = slice(20, None, 100)
    answer = make_window(
        n_steps=200, late=dict.fromkeys(range(8), 2.0), steps=often, phase="checkpoint_seconds"
    )
    assert single_events(extract(answer)) is None
    assert single_events(extract(make_window(n_steps=200, late={5: 2.0}, steps=often))) is not None


def test_a_straggler_stays_one_beside_a_single_long_step(make_window) -> None:
    # The long step is the straggler's own, on top of ten that are late.
    window = make_window(n_steps=60, late={5: 0.1}, steps=slice(30, None))
    assert rca.diagnose(window).failure_mode == "fail_slow"


@pytest.mark.parametrize(
    ("whole", "left", "mode", "blamed"),
    [
        (0.99, 0.2, "healthy", True),
        (0.99, 0.6, "fail_slow", False),
        (0.6, 0.6, "healthy", False),
    ],
    ids=["healthy", "likelier slow", "no alarm to take back"],
)
def test_long_steps_are_all_that_stood_out_only_if_the_rest_is_likely_healthy(
    make_window, monkeypatch, whole, left, mode, blamed
) -> None:
    """The rest may be below every alarm and yet be likelier faulty than healthy: then an alarm stays."""
    suspicions = iter([whole, left])

    def answer(_classifier: Classifier, _features: FeatureSet) -> dict[str, float]:
        slow = next(suspicions)
        return {"healthy": 1.0 - slow, "fail_slow": slow, "fail_stop": 0.0}

    monkeypatch.setattr(Classifier, "_mode_probability", answer)
    features = extract(make_window(n_steps=200, late={5: 1.0}, steps=slice(50, 52)))
    found = baseline().classifier.classify(features)
    assert (found.mode, found.decided) == (mode, mode == "fail_slow")
    assert found.events == ((50, 51) if blamed else ())


def test_an_alarm_stays_if_the_rest_is_likeliest_to_have_stopped(make_window, monkeypatch) -> None:
    answer = iter(
        [
            {"healthy": 0.01, "fail_slow": 0.99, "fail_stop": 0.0},
            {"healthy": 0.3, "fail_slow": 0.1, "fail_stop": 0.6},
        ]
    )
    monkeypatch.setattr(Classifier, "_mode_probability", lambda _classifier, _features: next(answer))
    features = extract(make_window(n_steps=200, late={5: 1.0}, steps=slice(50, 52)))
    assert baseline().classifier.classify(features).mode == "fail_slow"
