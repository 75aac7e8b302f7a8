"""Plans offer what the job can do, and what needs code and a restart has its price."""

from __future__ import annotations

import pytest

from rca.recovery.option import Option
from rca.recovery.planner import Plan, plan
from rca.recovery.site import Site
from tests.for_each import for_each
from tests.recovery.situations import fault, job, situation, slow_rank

LEAVE_WORKERS_OUT = ("grouped_synchronisation", "straggler_aware_all_reduce")
ONE_SLOW = {5: 1.6}


def found(site: Site, **changes: object) -> Plan:
    return plan(situation(site=site, forward=slow_rank(late=ONE_SLOW), **changes))


def names(of: Plan) -> set[str]:
    return {each.action for each in of.options}


def option(of: Plan, action: str) -> Option:
    return next(each for each in of.options if each.action == action)


def test_sharded_parameters_rule_out_updates_without_some_workers() -> None:
    assert set(LEAVE_WORKERS_OUT) <= names(found(Site()))
    sharded = found(Site(parameters="sharded"))
    assert not set(LEAVE_WORKERS_OUT) & names(sharded)
    reasons = [each.reason for each in sharded.rejected if each.action in LEAVE_WORKERS_OUT]
    assert all("parameters are sharded" in reason for reason in reasons)
    assert "adjust_batch_sizes" in names(sharded)


def test_tensor_parallel_ranks_cannot_leave_their_worker() -> None:
    assert not set(LEAVE_WORKERS_OUT) & names(found(Site(tensor_parallel=2)))


def test_an_action_whose_library_is_absent_costs_a_restart() -> None:
    present, absent = found(Site(libraries=("antdt",))), found(Site(libraries=()))
    assert option(present, "adjust_batch_sizes").weight == "light"
    assert option(present, "adjust_batch_sizes").one_off_seconds == 0.0
    needs = option(absent, "adjust_batch_sizes")
    assert (needs.weight, needs.one_off_seconds) == ("heavy", Site().restart_cost)
    assert "needs code in the training loop and a restart" in needs.risk
    assert option(present, "grouped_synchronisation").weight == "heavy"
    assert absent.first == "none"


def test_hints_of_the_job_name_its_capabilities() -> None:
    hints = {"parameters": "sharded", "libraries": ["star", "unknown"]}
    of_job = Site.of_job(job(hints=hints), 0.5)
    assert (of_job.parameters, of_job.libraries) == ("sharded", ("star",))
    assert Site(parameters="replicated").filled(of_job).parameters == "replicated"


@for_each("wrong", [1, "some", None, ["sharded"]])
def test_wrong_hints_are_no_capabilities(wrong: object) -> None:
    of_job = Site.of_job(job(hints={"parameters": wrong}), 0.5)
    assert of_job.parameters is None


@pytest.mark.parametrize(
    ("cause", "first"), [("cpu_contention", "evict_other_process"), ("runtime_gc", "plan_garbage_collection")]
)
def test_the_owner_of_the_cause_acts_first(cause: str, first: str) -> None:
    made = plan(situation(faults=(fault(cause),), site=Site(steps_left=100_000)))
    assert made.options[0].action == first


def test_what_surely_pays_comes_before_what_may_not() -> None:
    drain = {"faults": (fault(),), "forward": slow_rank()}
    soon = plan(situation(site=Site(steps_left=50_000), **drain))
    late = plan(situation(site=Site(steps_left=31_000), **drain))
    assert soon.options[0].action == "drain_node"
    assert late.options[0].action != "drain_node"
    assert "drain_node" in names(late)


def test_the_lower_end_of_a_gain_decides_its_place() -> None:
    wide = fault("data_loader_stall", interval=(0.0, 0.06))
    narrow = fault("runtime_gc", saved=0.03, interval=(0.02, 0.04))
    made = plan(situation(faults=(wide, narrow)))
    ordered = [each.action for each in made.options]
    assert ordered.index("plan_garbage_collection") < ordered.index("add_loader_workers")
