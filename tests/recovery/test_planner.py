"""The planner: every action is judged, guarded and ordered."""

from __future__ import annotations

import pytest

from rca.recovery.option import Option, Rejection
from rca.recovery.planner import ACTIONS, plan
from rca.recovery.remedies import REMEDY_OF
from rca.recovery.site import Site
from rca.recovery.situation import Situation, Suspect
from rca.telemetry.causes import CAUSES, STOP_CAUSES
from tests.recovery.situations import fault, job, situation, slow_rank

SLOW = sorted(set(CAUSES) - set(STOP_CAUSES))
SITUATIONS = {
    "slow": situation(),
    "healthy": situation(mode="healthy", faults=(), lost=0.0, lost_interval=(0.0, 0.0)),
    "stopped": situation(mode="fail_stop", faults=(fault("hang", saved=None, interval=None),), replay=None),
    "answer alone": situation(replay=None, topology=None),
    "pipeline": situation(job=job(pipeline=2)),
    "one rank": situation(job=job(1), forward=slow_rank(1, late={0: 2.0}), faults=(fault(ranks=(0,)),)),
    "unknown cost": situation(faults=(fault(saved=None, interval=None),)),
    "nothing known": situation(faults=(), suspects=(), decided=False),
}


@pytest.mark.parametrize("given", SITUATIONS.values(), ids=SITUATIONS)
@pytest.mark.parametrize("action", ACTIONS, ids=[action.name for action in ACTIONS])
def test_every_action_is_an_option_or_says_why_not(action, given: Situation) -> None:
    found = action.options(given)
    assert found
    for each in found:
        assert each.action == action.name
        if isinstance(each, Rejection):
            assert len(each.reason) > 10
            continue
        assert each.weight == action.weight
        assert each.instruction
        assert each.risk
        assert (each.seconds_per_step_saved is None) == (each.basis == "unknown")
        if each.seconds_per_step_saved is not None:
            low, high = each.interval
            assert low <= each.seconds_per_step_saved <= high
            assert each.seconds_per_step_saved <= given.step_seconds


@pytest.mark.parametrize("given", SITUATIONS.values(), ids=SITUATIONS)
def test_every_action_is_in_the_plan(given: Situation) -> None:
    found = plan(given)
    assert {each.action for each in (*found.options, *found.rejected)} == {each.name for each in ACTIONS}
    assert found.first in {"none", *(each.action for each in found.options)}
    assert found.why


@pytest.mark.parametrize("cause", SLOW)
def test_every_cause_has_its_remedy(cause: str) -> None:
    found = plan(situation(faults=(fault(cause),)))
    (remedy,) = [each for each in found.options if each.action == REMEDY_OF[cause]]
    assert remedy.seconds_per_step_saved == 0.05
    assert remedy.causes == [cause]


@pytest.mark.parametrize("changes", [{"decided": False}, {"faults": (fault(evident=False),)}])
def test_no_machine_is_taken_out_without_a_named_and_evident_cause(changes) -> None:
    found = plan(situation(**changes))
    assert "drain_node" not in {each.action for each in found.options}
    assert "drain_node" in {each.action for each in found.rejected}


def test_a_workload_cause_takes_no_machine_out() -> None:
    found = plan(situation(faults=(fault("runtime_gc"),), decided=False))
    assert all(each.weight == "light" for each in found.options)


def heavy(found) -> list[Option]:
    return [each for each in found.options if each.weight == "heavy"]


def test_a_restart_pays_off_after_its_cost() -> None:
    site = Site(restart_seconds=100.0, checkpoint_seconds=200.0)
    (drain,) = heavy(plan(situation(site=site)))
    assert drain.one_off_seconds == 200.0
    assert drain.break_even_steps == 4000
    assert drain.nodes == ["node-2"]


def test_hints_of_the_job_set_the_cost_of_a_restart() -> None:
    hints = {"restart_seconds": 60, "checkpoint_interval_steps": 1000}
    site = Site().for_job(job(hints=hints), 0.5)
    assert site.restart_cost == 60 + 250
    assert Site(restart_seconds=5).for_job(job(hints=hints), 0.5).restart_seconds == 5


@pytest.mark.parametrize("wrong", ["soon", True, -1, float("nan"), 1e99])
def test_wrong_hints_are_no_costs(wrong) -> None:
    assert Site().for_job(job(hints={"restart_seconds": wrong}), 0.5) == Site()


def test_the_pool_keeps_most_of_its_nodes() -> None:
    found = plan(situation(site=Site(pool_nodes=10, nodes_out=2)))
    assert not heavy(found)
    assert any("may spare 0" in each.reason for each in found.rejected)
    assert heavy(plan(situation(site=Site(pool_nodes=10, nodes_out=1))))


def test_half_of_a_job_does_not_change_at_once() -> None:
    found = plan(situation(faults=(fault(ranks=(3, 5)),)))
    assert any("2 of the job's 4 nodes" in each.reason for each in found.rejected)


def test_what_pays_off_after_the_end_of_the_job_is_left_out() -> None:
    found = plan(situation(site=Site(steps_left=1000)))
    assert any("the job has 1,000 left" in each.reason for each in found.rejected)
    assert heavy(plan(situation(site=Site(steps_left=50_000))))


def test_light_actions_come_first_and_heavy_ones_when_the_time_lost_equals_their_cost() -> None:
    early = plan(situation())
    assert early.options[0].weight == "light"
    assert early.first == early.options[0].action
    (drain,) = heavy(early)
    lighter = max(each.chance * each.seconds_per_step_saved for each in early.options if each is not drain)
    wait = (drain.one_off_seconds - 0.05 * 60) / (0.05 - lighter)
    assert drain.escalate_after_steps == pytest.approx(wait, abs=1)
    late = plan(situation(steps_lost=30_000))
    assert (late.first, heavy(late)[0].escalate_after_steps) == ("drain_node", 0)


def test_a_fault_that_is_over_needs_no_action() -> None:
    found = plan(situation(over=True, steps_lost=10**6))
    assert found.first == "none"
    assert "ended" in found.why


def test_a_stopped_job_is_restarted_at_once() -> None:
    found = plan(SITUATIONS["stopped"])
    assert found.first == "restart_from_checkpoint"


def test_observed_gains_correct_predictions() -> None:
    plain, corrected = plan(situation()), plan(situation(site=Site(corrections={"drain_node": 0.5})))
    assert heavy(corrected)[0].seconds_per_step_saved == heavy(plain)[0].seconds_per_step_saved / 2


def test_suspects_in_doubt_are_isolated_together() -> None:
    alternatives = tuple(Suspect((rank,), (f"node-{rank // 2}",), 0.3) for rank in (1, 3, 5))
    of = job(16)
    given = situation(job=of, forward=slow_rank(16), suspects=alternatives, decided=False)
    (found,) = heavy(plan(given))
    assert found.action == "isolate_suspects"
    assert found.nodes == ["node-0", "node-1", "node-2"]
    assert found.chance == pytest.approx(0.9)
    assert found.seconds_per_step_saved == pytest.approx(0.9 * 0.05)


def test_no_node_is_isolated_beyond_what_covers_the_fault() -> None:
    suspects = tuple(Suspect((rank,), (f"node-{rank // 2}",), p) for rank, p in ((5, 0.96), (1, 0.03)))
    given = situation(job=job(16), forward=slow_rank(16), suspects=suspects, decided=False)
    (found,) = heavy(plan(given))
    assert found.nodes == ["node-2"]


def test_a_slow_interface_among_several_is_avoided_without_a_restart() -> None:
    faults = (fault("nic_degradation"),)
    (found,) = [
        each
        for each in plan(situation(faults=faults, site=Site(nics_per_node=8))).options
        if each.action == "degraded_link_collectives"
    ]
    assert 0.94 * 0.05 <= found.seconds_per_step_saved <= 0.98 * 0.05
    for site in (Site(), Site(nics_per_node=1)):
        reasons = {each.action: each.reason for each in plan(situation(faults=faults, site=site)).rejected}
        assert "interface" in reasons["degraded_link_collectives"]


@pytest.mark.parametrize(
    ("values", "field"),
    [({"restart_seconds": -1}, "restart_seconds"), ({"most_of_pool": 2}, "most_of_pool"), ({"x": 1}, "x")],
)
def test_a_wrong_site_is_refused_by_name(values, field: str) -> None:
    from rca.errors import InvalidInput

    with pytest.raises(InvalidInput, match=field):
        Site.checked(values)
