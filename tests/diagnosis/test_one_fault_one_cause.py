"""What several places surely suffer from is one cause with one price, however far they are apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_jobs import WORKLOAD, job

import rca
from rca.causal.attribution import Attribution, RemovedCause
from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Suspect
from rca.classify.components import Component
from rca.classify.decision_table import CERTAIN_SAME_CAUSE
from rca.diagnosis.cause_pooling import PricedCause, one_fault_each
from rca.diagnosis.pipeline import _is_on
from rca.diagnosis.pricing import Pricing
from rca.lab.simulation import Fault, simulate

PLACES = (3, 12)
BUSY = BusyEvidence(np.zeros((16, 0)), np.zeros((16, 0)))


def throttled(rank: int) -> Fault:
    return Fault(
        cause="gpu_throttling", variant="thermal", ranks=(rank,), nodes=(), first_step=30, severity=0.6
    )


def priced(cause: str, ranks: tuple[int, ...], belief: float, suspect: int) -> PricedCause:
    own = np.full((len(ranks), 10), 0.1 * (suspect + 1))
    return PricedCause(
        RemovedCause(cause, ranks, own, np.zeros(10), None), (suspect,), belief, {"forward": 0.1}, 1.0
    )


def test_two_hot_devices_on_two_nodes_are_one_cause_with_what_both_cost() -> None:
    diagnosis = rca.diagnose(simulate(job(*map(throttled, PLACES), seed=7, workload=WORKLOAD)).window)
    first, *rest = diagnosis.causes
    assert (first.cause, first.ranks) == ("gpu_throttling", list(PLACES))
    assert len(first.nodes) == 2
    assert first.share > 0.8
    assert not any(cause.cause == first.cause for cause in rest)
    # Who straggles is still told place by place.
    assert sorted(tuple(each.ranks) for each in diagnosis.stragglers) == [(3,), (12,)]
    assert {each.pattern for each in diagnosis.stragglers} == {"persistent"}
    # Two of four nodes at once: a person decides.
    assert "drain_node" not in {each.action for each in diagnosis.actions}


def test_the_common_belief_is_the_weakest() -> None:
    (one,) = one_fault_each(
        [priced("gpu_throttling", (3,), 0.95, 0), priced("gpu_throttling", (12,), 0.85, 1)]
    )
    assert (one.removal.ranks, one.suspects, one.belief) == (PLACES, (0, 1), 0.85)
    np.testing.assert_array_equal(one.removal.own[:, 0], [0.1, 0.2])


@pytest.mark.parametrize(
    "second",
    [
        ("gpu_throttling", (12,), CERTAIN_SAME_CAUSE - 0.01, 1),
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


def test_a_cause_belongs_to_every_straggler_it_was_priced_for() -> None:
    answer = rca.diagnose(simulate(job(*map(throttled, PLACES), seed=7, workload=WORKLOAD)).window).causes[0]
    nothing = Attribution(np.zeros(1), np.zeros(1), np.zeros((1, 2)), 0.0, 0.0, (0.0, 0.0))
    pricing = Pricing(
        [replace(priced("gpu_throttling", PLACES, 0.9, 0), suspects=(0, 1))], nothing, 0.0, BUSY
    )
    suspect = Suspect(Component("rank", (12,), 0.9), {}, {})
    assert [_is_on(place, suspect, answer, pricing) for place in range(3)] == [True, True, False]
    same = answer.model_copy(update={"ranks": [12]})
    assert _is_on(2, suspect, same, pricing)
