"""What several places surely suffer from is one cause with one price, however far they are apart."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_jobs import WORKLOAD, job

import rca
from rca.causal.attribution import Removal
from rca.diagnosis.pooling import SURE, PricedCause, one_fault_each
from rca.simulation import Fault, simulate

PLACES = (3, 12)


def throttled(rank: int) -> Fault:
    return Fault(
        cause="gpu_throttling", variant="thermal", ranks=(rank,), nodes=(), first_step=30, severity=0.6
    )


def priced(cause: str, ranks: tuple[int, ...], belief: float, suspect: int) -> PricedCause:
    own = np.full((len(ranks), 10), 0.1 * (suspect + 1))
    return PricedCause(
        Removal(cause, ranks, own, np.zeros(10), None), (suspect,), belief, {"forward": 0.1}, 1.0, ""
    )


def test_two_hot_devices_on_two_nodes_are_one_cause_with_what_both_cost() -> None:
    diagnosis = rca.diagnose(simulate(job(*map(throttled, PLACES), seed=7, workload=WORKLOAD)).window)
    first, *rest = diagnosis.causes
    assert (first.cause, first.ranks) == ("gpu_throttling", list(PLACES))
    assert len(first.nodes) == 2
    assert first.share > 0.8
    assert not any(cause.cause == first.cause for cause in rest)
    # Who straggles is still told place by place, each with what the common cause says of it.
    assert sorted(tuple(each.ranks) for each in diagnosis.stragglers) == [(3,), (12,)]
    assert {each.straggler_type for each in diagnosis.stragglers} == {"compute"}
    drain = [action for action in diagnosis.actions if action.expected_seconds_per_step_saved]
    assert len(drain) == 1


def test_the_common_belief_is_the_weakest() -> None:
    (one,) = one_fault_each([priced("gpu_throttling", (3,), 0.9, 0), priced("gpu_throttling", (12,), 0.6, 1)])
    assert (one.removal.ranks, one.suspects, one.belief) == (PLACES, (0, 1), 0.6)
    np.testing.assert_array_equal(one.removal.own[:, 0], [0.1, 0.2])


@pytest.mark.parametrize(
    "second",
    [
        ("gpu_throttling", (12,), SURE - 0.01, 1),
        ("gpu_contention", (12,), 0.9, 1),
        ("gpu_throttling", (3, 12), 0.9, 1),
    ],
    ids=["doubtful", "another cause", "a rank of both"],
)
def test_what_is_not_surely_the_same_elsewhere_stays_apart(
    second: tuple[str, tuple[int, ...], float, int],
) -> None:
    causes = [priced("gpu_throttling", (3,), 0.9, 0), priced(*second)]
    assert one_fault_each(causes) == causes


def test_nothing_explains_two_ranks_for_two_reasons() -> None:
    causes = [priced("unknown", (rank,), 0.9, place) for place, rank in enumerate(PLACES)]
    assert one_fault_each(causes) == causes
