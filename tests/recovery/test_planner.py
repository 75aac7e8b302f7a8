"""The planner: every action is judged, guarded and ordered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rca
from rca.errors import InvalidInput, SourceError
from rca.recovery.option import Option, Rejection
from rca.recovery.planner import ACTIONS, plan
from rca.recovery.remedies import REMEDY_OF
from rca.recovery.site import Site
from rca.recovery.situation import Situation
from rca.window.causes import CAUSES, STOP_CAUSES
from tests.for_each import for_each
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


@for_each("given", SITUATIONS.values(), ids=SITUATIONS)
@for_each("action", ACTIONS, ids=[action.name for action in ACTIONS])
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


@for_each("given", SITUATIONS.values(), ids=SITUATIONS)
def test_every_action_is_in_the_plan(given: Situation) -> None:
    found = plan(given)
    assert {each.action for each in (*found.options, *found.rejected)} == {each.name for each in ACTIONS}
    assert found.first in {"none", *(each.action for each in found.options)}
    assert found.why


@for_each("cause", SLOW)
def test_every_cause_has_its_remedy(cause: str) -> None:
    found = plan(situation(faults=(fault(cause),)))
    (remedy,) = [each for each in found.options if each.action == REMEDY_OF[cause]]
    # Moved layers keep their work, so their gain is replayed; this job has no pipeline.
    assert remedy.seconds_per_step_saved == (None if cause == "stage_imbalance" else 0.05)
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
    of_job = Site.of_job(job(hints=hints), 0.5)
    assert Site().filled(of_job).restart_cost == 60 + 250
    assert Site(restart_seconds=5).filled(of_job).restart_cost == 5 + 250


@for_each("wrong", ["soon", True, -1, float("nan"), 1e99])
def test_wrong_hints_are_no_costs(wrong) -> None:
    assert Site.of_job(job(hints={"restart_seconds": wrong}), 0.5) == Site()


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
    wait = (drain.one_off_seconds - 0.95 * 0.05 * 60) / (0.05 - lighter)
    assert drain.escalate_after_steps == pytest.approx(wait, abs=1)
    late = plan(situation(steps_lost=32_000))
    assert (late.first, heavy(late)[0].escalate_after_steps) == ("drain_node", 0)


def test_a_fault_that_is_over_needs_no_action() -> None:
    found = plan(situation(over=True, steps_lost=10**6))
    assert found.first == "none"
    assert "ended" in found.why


def test_a_stopped_job_is_restarted_at_once() -> None:
    found = plan(SITUATIONS["stopped"])
    assert found.first == "restart_from_checkpoint"


def test_a_restart_ends_a_stop_of_some_ranks_whichever_its_cause_is() -> None:
    """It is not sure whether rank 5 crashed or hangs, but it is sure that it stopped."""
    unpriced = {"saved": None, "interval": None}
    faults = (
        fault("process_crash", ranks=(5,), probability=0.65, **unpriced),
        fault("hang", ranks=(5,), probability=0.3, actionable=False, **unpriced),
        fault("hang", ranks=(2,), probability=0.05, **unpriced),
    )
    found = plan(situation(mode="fail_stop", faults=faults))
    restarts = [each for each in found.options if each.action == "restart_from_checkpoint"]
    assert [(each.ranks, each.causes) for each in restarts] == [
        ([5], ["hang", "process_crash"]),
        ([2], ["hang"]),
    ]
    assert [each.chance for each in restarts] == pytest.approx([0.95, 0.05])


def test_of_two_ranks_that_may_have_stopped_the_likelier_comes_first() -> None:
    chances = {2: 0.05, 5: 0.9}
    faults = [fault("hang", (rank,), probability=p, saved=None, interval=None) for rank, p in chances.items()]
    found = plan(situation(mode="fail_stop", faults=tuple(faults)))
    assert [each.ranks for each in found.options if each.action == found.first] == [[5], [2]]


def test_observed_gains_correct_predictions() -> None:
    plain, corrected = plan(situation()), plan(situation(site=Site(corrections={"drain_node": 0.5})))
    assert heavy(corrected)[0].seconds_per_step_saved == heavy(plain)[0].seconds_per_step_saved / 2


def in_doubt(*chances: float, **changes):
    """A job of eight nodes whose suspects are on a node each."""
    faults = tuple(fault(ranks=(2 * place + 1,), probability=p) for place, p in enumerate(chances))
    given = {"job": job(16), "forward": slow_rank(16), "faults": faults, "decided": False}
    return plan(situation(**(given | changes)))


def test_suspects_in_doubt_are_isolated_together() -> None:
    (found,) = heavy(in_doubt(0.3, 0.3, 0.3))
    assert found.action == "isolate_suspects"
    assert found.nodes == ["node-0", "node-1", "node-2"]
    assert found.chance == pytest.approx(0.9)
    assert found.seconds_per_step_saved == pytest.approx(0.05)


def test_no_node_is_isolated_beyond_what_covers_the_fault() -> None:
    (found,) = heavy(in_doubt(0.6, 0.36, 0.15))
    assert found.nodes == ["node-0", "node-1", "node-2"]
    assert found.chance == pytest.approx(1.0)
    (found,) = heavy(in_doubt(0.6, 0.36, 0.02))
    assert found.nodes == ["node-0", "node-1"]


@for_each(
    ("chances", "changes", "why"),
    [
        ([0.05] * 7, {}, "fewer than two nodes"),
        ([0.2, 0.2], {}, "only"),
        ([0.5, 0.5], {"decided": True}, "clear"),
        ([0.5, 0.5], {"faults": tuple(fault("runtime_gc", (r,)) for r in (1, 3))}, "fewer than two nodes"),
        ([0.5, 0.5], {"faults": tuple(fault(ranks=(r,), evident=False) for r in (1, 3))}, "fewer than two"),
    ],
    ids=["unlikely", "little together", "clear", "workload", "not evident"],
)
def test_nodes_are_not_isolated_on_weak_evidence(chances, changes, why: str) -> None:
    found = in_doubt(*chances, **changes)
    assert "isolate_suspects" not in {each.action for each in found.options}
    assert why in next(each.reason for each in found.rejected if each.action == "isolate_suspects")


def test_guards_count_all_nodes_that_would_leave() -> None:
    faults = tuple(fault(ranks=(rank,)) for rank in (1, 3, 5))
    found = plan(situation(faults=faults, site=Site(pool_nodes=4)))
    assert len(heavy(found)) == 1
    assert len([each for each in found.rejected if "pool may spare 1" in each.reason]) == 2


def test_guards_concern_nodes_that_leave_only() -> None:
    found = plan(situation(faults=(fault("stage_imbalance", (2, 3, 4, 5)),), site=Site(pool_nodes=4)))
    assert [each.action for each in heavy(found)] == ["rebalance_stages"]


def test_a_heavy_action_is_due_by_the_loss_that_it_ends() -> None:
    """The free action ends nearly all of the loss; the restart ends a hundredth."""
    faults = (
        fault("cpu_contention", (1,), saved=0.049),
        fault(ranks=(5,), saved=0.0005, interval=(0, 0.001)),
    )
    found = plan(situation(faults=faults, steps_lost=10**6))
    assert found.first == "evict_other_process"
    none = plan(situation(faults=(fault(saved=0.0, interval=(0.0, 0.0)),), steps_lost=10**6))
    assert "it saves nothing" in {each.reason for each in none.rejected}


def test_asking_others_delays_no_action() -> None:
    found = plan(situation(faults=(fault("network_congestion", tuple(range(8))),), steps_lost=10**6))
    assert {each.action: each.escalate_after_steps for each in heavy(found)} == {"reroute": 0}


def test_loss_of_earlier_windows_counts() -> None:
    assert plan(situation(site=Site(seconds_lost=2000.0))).first == "drain_node"


def test_no_saving_exceeds_the_loss() -> None:
    found = plan(situation(site=Site(corrections={"drain_node": 2.0})))
    (drain,) = heavy(found)
    assert drain.seconds_per_step_saved == 0.05
    assert drain.interval[1] <= 0.06


def test_a_cause_that_is_not_acted_on_is_named() -> None:
    found = plan(situation(faults=(fault(actionable=False),)))
    assert "gpu_throttling: too unlikely" in next(
        each.reason for each in found.rejected if each.action == "drain_node"
    )


def test_a_slow_interface_among_several_is_avoided_without_a_restart() -> None:
    faults = (fault("nic_degradation"),)
    (found,) = [
        each
        for each in plan(situation(faults=faults, site=Site(nics_per_node=8), transfer=0.1)).options
        if each.action == "degraded_link_collectives"
    ]
    # A fault-free ring takes 0.05 s, and 2 to 6 % longer without the interface.
    assert found.seconds_per_step_saved == pytest.approx(0.05 - 0.04 * 0.05)
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


def test_slowness_before_a_stop_is_not_the_first_thing_to_mend() -> None:
    slow = fault("sequence_length_imbalance")
    both = plan(situation(mode="fail_stop", faults=(fault("hang", saved=None, interval=None), slow)))
    assert both.first == "restart_from_checkpoint"
    assert both.options[0].action == "rebalance_sequences"
    alone = plan(situation(mode="fail_stop", faults=(slow,)))
    assert (alone.first, alone.why.split(";")[0]) == ("none", "no action applies to the stop")


@pytest.mark.system
@pytest.mark.parametrize("size", [1e15, 1e300, 9e18])
def test_a_hint_of_an_impossible_batch_is_not_used(make_window: Any, size: float) -> None:
    window = make_window(late={5: 0.05})
    job = window.job.model_copy(update={"hints": {"global_batch_size": size}})
    diagnosis = rca.diagnose(replace(window, job=job))
    assert diagnosis.recovery is not None
    assert diagnosis.recovery.global_batch is None


@pytest.mark.parametrize("text", ["restart_seconds: 2026-13-45", "seconds_lost: 1.0e+307"])
def test_a_site_with_impossible_values_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "site.yaml").write_text(text)
    with pytest.raises((InvalidInput, SourceError)):
        Site.read(tmp_path / "site.yaml")


def test_an_action_that_saves_hardly_any_of_a_step_is_refused() -> None:
    step = situation().step_seconds
    little = 0.002 * step
    given = situation(
        lost=step, lost_interval=(0.9 * step, step), faults=(fault(saved=little, interval=(0.0, little)),)
    )
    found = plan(given)
    assert all((each.seconds_per_step_saved or step) >= 0.005 * step for each in found.options)
    assert any(each.reason == "it saves 0.2% of a step" for each in found.rejected)
