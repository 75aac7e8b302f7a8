"""What nothing explained in a window gives way where one of its parts explains just that, and is surer."""

from __future__ import annotations

import pytest
from simulated_jobs import WORKLOAD, job

import rca
from rca.diagnosis.merge_diagnoses import merge_diagnoses
from rca.diagnosis.result import Cause
from rca.lab.simulation import simulate
from rca.lab.simulation.scenario import Fault

HALF = {"share": 0.5, "measured": 3.0, "rank_steps": 1600.0}


@pytest.fixture(scope="module")
def throttled() -> rca.Diagnosis:
    """One GPU is throttled all along."""
    fault = Fault(cause="gpu_throttling", ranks=(3,), nodes=(0,), severity=0.8)
    return rca.diagnose(simulate(job(fault, seed=11, workload=WORKLOAD)).window)


def cause(model: rca.Diagnosis, name: str, ranks: list[int], probability: float, seconds: float) -> Cause:
    known = {"cause": name, "ranks": ranks, "probability": probability, "seconds_per_step": seconds}
    return model.causes[0].model_copy(update=known | {"interval": (0.5 * seconds, 2 * seconds)})


def whole(model: rca.Diagnosis, *causes: Cause) -> rca.Diagnosis:
    lost = sum(each.seconds_per_step for each in causes)
    slowdown = model.slowdown.model_copy(
        update={"seconds_per_step": lost, "interval": (0.5 * lost, 2 * lost)}
    )
    return model.model_copy(update={"causes": list(causes), "slowdown": slowdown})


def names(diagnosis: rca.Diagnosis) -> dict[str, float]:
    total = diagnosis.slowdown.seconds_per_step
    answer = {each.cause: each.seconds_per_step for each in diagnosis.causes}
    assert sum(answer.values()) + diagnosis.unexplained_seconds_per_step == pytest.approx(total)
    return answer


def test_an_unknown_of_the_same_ranks_gives_way_at_the_larger_price(throttled: rca.Diagnosis) -> None:
    loader = cause(throttled, "data_loader_stall", [12], 0.99, 0.4)
    unknown = cause(throttled, "unknown", [3], 0.7, 0.3)
    rival = cause(throttled, "gpu_contention", [3], 0.2, 0.01)
    found = merge_diagnoses(
        whole(throttled, loader, unknown, rival),
        throttled,
        [cause(throttled, "gpu_throttling", [3], 0.95, 0.5)],
        **HALF,
    )
    assert names(found) == {
        "data_loader_stall": pytest.approx(0.4),
        "gpu_throttling": pytest.approx(0.3),
    }
    assert found.slowdown.seconds_per_step == pytest.approx(0.71)


@pytest.mark.parametrize(
    ("ranks", "probability", "added"),
    [([3], 0.97, [3]), ([3], 0.7, [2, 3]), ([3], 0.7, list(range(16))), ([2, 3], 0.7, [3])],
    ids=["surer", "one of two", "one of all", "more ranks"],
)
def test_any_other_unknown_stays(
    throttled: rca.Diagnosis, ranks: list[int], probability: float, added: list[int]
) -> None:
    unknown = cause(throttled, "unknown", ranks, probability, 0.3)
    new = cause(throttled, "network_congestion", added, 0.92, 0.02)
    assert names(merge_diagnoses(whole(throttled, unknown), throttled, [new], **HALF)) == {
        "unknown": pytest.approx(0.3),
        "network_congestion": pytest.approx(0.01),
    }


def test_causes_cost_no_more_together_than_a_step_takes(throttled: rca.Diagnosis) -> None:
    """Nearly the whole step is lost already; what a part adds makes each of them smaller."""
    known = cause(throttled, "data_loader_stall", [12], 0.99, 2.5)
    new = cause(throttled, "gpu_throttling", [3], 0.95, 2.0)
    found = merge_diagnoses(whole(throttled, known), throttled, [new], **HALF)
    assert found.slowdown.seconds_per_step == pytest.approx(0.95 * 3.0)
    assert names(found) == {
        "data_loader_stall": pytest.approx(2.5 * 2.85 / 3.5),
        "gpu_throttling": pytest.approx(1.0 * 2.85 / 3.5),
    }
    assert found.unexplained_seconds_per_step == pytest.approx(0.0)
    assert sum(each.share for each in found.causes) == pytest.approx(1.0)
    for each in found.causes:
        assert each.interval[0] <= each.seconds_per_step <= each.interval[1]
