"""Slowness that nothing in the catalogue explains is said to be that, at its price."""

from __future__ import annotations

import pytest
import simulated_jobs

import rca
from benchmarks.retold_incidents import INCIDENTS
from rca.classify.decision_table import CERTAIN_PLACE
from rca.diagnosis.abstention import is_certainly_unknown
from rca.diagnosis.baseline_window import _is_surer
from rca.diagnosis.causes import by_expected_cost, named_first, opened
from rca.diagnosis.planning import with_actions
from rca.diagnosis.result import Cause, Evidence, RecoveryFacts, Removal
from rca.lab.simulation import Fault, SimulationScenario, simulate
from rca.recovery.site import Site
from rca.runbook.headline import headline
from rca.window.causes import UNKNOWN

DEBUG_BUILD = Fault(
    cause=UNKNOWN, variant="compute", ranks=(5,), nodes=(0,), severity=0.8, first_step=20, last_step=79
)
STARVED = Fault(cause="data_loader_stall", ranks=(12,), nodes=(1,), severity=0.9, first_step=20, last_step=79)


def job(*faults: Fault) -> SimulationScenario:
    return simulated_jobs.job(*faults, seed=5)


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


def test_hardly_anything_stays_unexplained(diagnosis) -> None:
    assert 0.0 <= diagnosis.unexplained_seconds_per_step < 0.1 * diagnosis.slowdown.seconds_per_step


def test_only_actions_that_need_no_cause_are_left(diagnosis) -> None:
    """It stays a straggler without a known cause: the job can work around it, and no machine is taken out."""
    assert not diagnosis.abstained
    assert {each.action for each in diagnosis.actions} <= {
        "adjust_batch_sizes",
        "backup_workers",
        "grouped_synchronisation",
        "straggler_aware_all_reduce",
    }
    # None of them runs in this job: each needs other code, and so a restart.
    assert all(each.cost_seconds > 0 for each in diagnosis.actions)
    assert diagnosis.recommended is None or diagnosis.recommended.action == "none"
    assert diagnosis.next_check


@pytest.mark.parametrize(
    ("first", "chance", "answered"),
    [(UNKNOWN, 0.8, True), (UNKNOWN, 0.51, True), (UNKNOWN, 0.5, False), ("runtime_gc", 0.9, False)],
)
def test_it_may_be_the_answer_where_it_comes_first_and_is_likely(first, chance, answered) -> None:
    assert is_certainly_unknown([a_cause(first, 0.5, chance), a_cause("hang", 0.1, 0.3)]) == answered


def test_its_machine_stays_in_service(slowed, diagnosis) -> None:
    """A cause that is not named takes no machine out, also where `unknown` has a verdict."""
    heated = a_cause("gpu_throttling", 0.2, 0.38).model_copy(
        update={"evidence": [Evidence(signal="sm_clock_mhz", value=1.0, reference=2.0, unit="MHz", note="")]}
    )
    likely = Removal(cause=heated.cause, ranks=heated.ranks, seconds_per_step_saved=0.2, interval=(0.1, 0.3))
    facts = RecoveryFacts(removals=[likely])

    def weights(causes: list[Cause]) -> set[str]:
        beside = diagnosis.model_copy(update={"causes": causes, "recovery": facts})
        return {each.weight for each in with_actions(beside, slowed.window, site=Site()).actions}

    assert "heavy" in weights([heated, *diagnosis.causes])
    assert "heavy" not in weights([*diagnosis.causes, heated])


def test_the_next_check_is_of_ranks_that_no_signal_explains(diagnosis) -> None:
    assert diagnosis.next_check.startswith(("no known cause explains it", "no measured signal explains"))


def test_the_next_check_leaves_out_ranks_with_a_known_cause() -> None:
    check = rca.diagnose(simulate(job(DEBUG_BUILD, PAUSES)).window).next_check
    assert check.startswith(("no known cause explains it", "no measured signal explains rank 5;"))


def test_the_page_says_that_no_known_cause_explains_it(diagnosis) -> None:
    assert "no known cause explains it (" in "".join(map(str, headline(diagnosis)))


def test_a_named_cause_gives_way_to_none(diagnosis) -> None:
    named = diagnosis.model_copy(update={"causes": [a_cause("gpu_throttling", 0.2, 0.85)]})
    assert not _is_surer(diagnosis, named)
    assert _is_surer(named, diagnosis)


PAUSES = Fault(cause="runtime_gc", ranks=(12,), nodes=(1,), severity=0.8, first_step=20, last_step=79)


def test_beside_a_known_cause_each_has_its_price() -> None:
    answer = rca.diagnose(simulate(job(DEBUG_BUILD, PAUSES)).window)
    found = {cause.cause: cause for cause in answer.causes}
    assert (found[UNKNOWN].ranks, found["runtime_gc"].ranks) == ([5], [12])
    assert found[UNKNOWN].seconds_per_step > found["runtime_gc"].seconds_per_step > 0


def test_it_comes_before_a_known_cause_of_a_small_part() -> None:
    answer = rca.diagnose(simulate(job(DEBUG_BUILD, PAUSES)).window)
    assert answer.unexplained_seconds_per_step < 0.1 * answer.slowdown.seconds_per_step
    assert not answer.abstained
    assert [(each.cause, each.ranks) for each in answer.causes[:2]] == [(UNKNOWN, [5]), ("runtime_gc", [12])]


def test_a_known_cause_leaves_no_room_for_it() -> None:
    known = rca.diagnose(simulate(job(STARVED)).window)
    assert UNKNOWN not in {cause.cause for cause in known.causes}


def test_a_known_cause_of_other_steps_stands_beside_it() -> None:
    """Two stretches: what nothing explains in the later one leaves the earlier one's cause to be named."""
    later = DEBUG_BUILD.model_copy(update={"first_step": 52, "last_step": 99})
    earlier = PAUSES.model_copy(update={"severity": 0.9, "first_step": 8, "last_step": 44})
    answer = rca.diagnose(simulate(job(later, earlier)).window)
    assert [cause.cause for cause in answer.causes[:2]] == [UNKNOWN, "runtime_gc"]
    assert answer.causes[0].seconds_per_step > answer.causes[1].seconds_per_step
    assert not answer.abstained
    assert {tuple(one.ranks) for one in answer.stragglers} == {(5,), (12,)}


def a_cause(name: str, seconds: float, probability: float) -> Cause:
    return Cause(
        cause=name, ranks=[1], nodes=[], probability=probability, seconds_per_step=seconds,
        interval=(0.0, seconds), share=0.5, owner="either", evidence=[],
    )  # fmt: skip


def test_an_open_cause_comes_before_its_candidates() -> None:
    known = [a_cause("gpu_throttling", 0.5, 0.56), a_cause("gpu_contention", 0.2, 0.39)]
    unknown, *others = opened(known, [1], ["node-0"])
    assert others == known
    assert (unknown.cause, unknown.ranks, unknown.seconds_per_step) == (UNKNOWN, [1], None)
    assert unknown.probability == pytest.approx(0.05)


def test_certain_ranks_are_the_answer_although_their_cause_is_open() -> None:
    """Without any signal several causes lengthen the same phases."""
    found = rca.diagnose(INCIDENTS["left-over-process"].retell("poor", 0).window)
    assert (found.verdict, len(found.stragglers)) == ("fail_slow", 1)
    assert found.stragglers[0].probability >= CERTAIN_PLACE
    assert found.causes[0].cause == UNKNOWN


def test_only_an_answer_that_names_nothing_begins_with_it() -> None:
    both = [a_cause("nic_degradation", 0.1, 0.9), a_cause(UNKNOWN, 0.5, 0.9), a_cause("runtime_gc", 0.2, 0.1)]
    assert [one.cause for one in by_expected_cost(both)] == [UNKNOWN, "nic_degradation", "runtime_gc"]
    assert [one.cause for one in named_first(by_expected_cost(both))] == [
        "nic_degradation",
        UNKNOWN,
        "runtime_gc",
    ]


def test_of_causes_without_a_price_the_likeliest_comes_first() -> None:
    unpriced = [a_cause("gpu_throttling", 0.0, 0.05), a_cause(UNKNOWN, 0.0, 0.8)]
    assert [one.cause for one in by_expected_cost(unpriced)] == [UNKNOWN, "gpu_throttling"]
