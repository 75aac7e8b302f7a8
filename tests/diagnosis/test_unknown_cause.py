"""Slowness that nothing in the catalogue explains is said to be that, at its price."""

from __future__ import annotations

import pytest

import rca
from rca.simulation import Benign, Fault, Scenario, Telemetry, Workload, simulate
from rca.simulation.exporters import EXPORTERS
from rca.telemetry.causes import UNKNOWN
from rca.telemetry.job import Parallelism

DEBUG_BUILD = Fault(
    cause=UNKNOWN, variant="compute", ranks=(5,), nodes=(0,), severity=0.8, first_step=20, last_step=79
)
STARVED = Fault(cause="data_loader_stall", ranks=(12,), nodes=(1,), severity=0.9, first_step=20, last_step=79)


def job(*faults: Fault) -> Scenario:
    return Scenario(
        seed=5,
        dialect="mixed",
        parallelism=Parallelism(data=16),
        ranks_per_node=8,
        n_steps=100,
        workload=Workload(
            forward_seconds=0.25, backward_seconds=0.5, transfer_seconds=0.1, gradient_bytes=4e9
        ),
        faults=faults,
        benign=Benign(warmup_steps=0),
        telemetry=Telemetry(exporters=tuple(EXPORTERS), interval_seconds=2.0),
    )


@pytest.fixture(scope="module")
def slowed():
    return simulate(job(DEBUG_BUILD))


@pytest.fixture(scope="module")
def diagnosis(slowed) -> rca.Diagnosis:
    return rca.diagnose(slowed.window)


def test_it_is_named_on_its_ranks(diagnosis) -> None:
    first = diagnosis.causes[0]
    assert (diagnosis.failure_mode, first.cause, first.ranks) == ("fail_slow", UNKNOWN, [5])
    assert first.probability > 0.7
    assert first.owner == "either"
    assert {item.signal for item in first.evidence} >= {"forward_seconds", "backward_seconds"}


def test_it_costs_what_it_costs(diagnosis, slowed) -> None:
    true = slowed.label["causes"][0]["seconds_per_step"]
    assert diagnosis.causes[0].seconds_per_step == pytest.approx(true, rel=0.1)
    low, high = diagnosis.causes[0].interval
    assert low <= true <= high


def test_shares_add_up(diagnosis) -> None:
    told = sum(cause.seconds_per_step for cause in diagnosis.causes) + diagnosis.unexplained_seconds_per_step
    assert told == pytest.approx(diagnosis.slowdown.seconds_per_step)


def test_nothing_is_known_that_could_be_done(diagnosis) -> None:
    """It stays a straggler without a cause that anybody could act on."""
    assert diagnosis.abstained
    assert diagnosis.abstention_reason.code == "cause_not_certain"
    assert diagnosis.actions == []
    assert diagnosis.next_check


def test_beliefs_about_one_straggler_stay_below_one(diagnosis) -> None:
    assert sum(cause.probability for cause in diagnosis.causes if cause.ranks == [5]) <= 1.0


def test_beside_a_known_cause_each_has_its_price() -> None:
    pauses = Fault(cause="runtime_gc", ranks=(12,), nodes=(1,), severity=0.8, first_step=20, last_step=79)
    found = {cause.cause: cause for cause in rca.diagnose(simulate(job(DEBUG_BUILD, pauses)).window).causes}
    assert (found[UNKNOWN].ranks, found["runtime_gc"].ranks) == ([5], [12])
    assert found[UNKNOWN].seconds_per_step > found["runtime_gc"].seconds_per_step > 0


def test_a_known_cause_leaves_no_room_for_it() -> None:
    known = rca.diagnose(simulate(job(STARVED)).window)
    assert UNKNOWN not in {cause.cause for cause in known.causes}
