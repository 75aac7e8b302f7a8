"""A cause is named only when its evidence covers most of the loss; else the deciding signal is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rca
from rca.diagnosis.abstention import deciding_resource, objection
from rca.diagnosis.advice import next_check
from rca.diagnosis.bundle import baseline
from rca.diagnosis.pipeline import analyse


@pytest.fixture(scope="module")
def stalled(make_window) -> rca.Window:
    return make_window(late={5: 0.05}, phase="data_loading_seconds")


def test_a_cause_that_covers_the_loss_is_named(stalled) -> None:
    pricing = analyse(stalled, baseline()).pricing
    diagnosis = rca.diagnose(stalled)
    assert pricing.causes[0].coverage > 0.8
    assert objection(diagnosis.causes, pricing, 0.4) is None
    assert diagnosis.actions


def test_a_probable_cause_that_covers_little_of_the_loss_is_not_named(stalled) -> None:
    """The same answer, if most of the time had been lost in phases that no likely cause lengthens."""
    pricing = analyse(stalled, baseline()).pricing
    found = rca.diagnose(stalled).causes
    thin = replace(pricing, causes=[replace(each, coverage=0.3) for each in pricing.causes])
    less = [each.model_copy(update={"probability": 0.7 * each.probability}) for each in found]
    assert objection(less, thin, 0.0) is not None
    assert objection(found, pricing, 0.0) is None


def test_nobody_named_is_not_named(stalled) -> None:
    pricing = analyse(stalled, baseline()).pricing
    assert objection([], pricing, 0.0) is not None


def test_the_signal_that_splits_the_candidates_settles_the_question() -> None:
    beliefs = {"gpu_throttling": 0.45, "cpu_contention": 0.4}
    assert deciding_resource(beliefs, ["nic", "cpu_wait"]) == "cpu_wait"
    assert deciding_resource(beliefs, ["nic", "storage"]) is None
    assert deciding_resource({"gpu_throttling": 0.9}, ["gpu_clock"]) is None


def test_a_signal_that_moves_with_both_settles_nothing() -> None:
    assert deciding_resource({"nic_degradation": 0.5, "network_congestion": 0.5}, ["nic", "tcp"]) is None
    assert (
        deciding_resource({"nic_degradation": 0.5, "network_congestion": 0.5}, ["nic", "fabric"]) == "fabric"
    )


def test_an_undecided_answer_asks_for_the_deciding_metric(stalled) -> None:
    cause = rca.diagnose(stalled).causes[0]
    candidates = [
        cause.model_copy(update={"cause": name, "probability": chance})
        for name, chance in (("gpu_throttling", 0.4), ("cpu_contention", 0.35))
    ]
    wanted = next_check("fail_slow", True, candidates, ["gpu_clock", "cpu_wait"], named=False)
    assert "gpu_throttling or cpu_contention" in wanted
    assert "DCGM_FI_DEV_SM_CLOCK" in wanted
