"""The plan for a diagnosis: its causes are the faults of a situation, the plan's options its actions."""

from __future__ import annotations

from typing import Any

from rca.diagnosis.advice import signals_for
from rca.diagnosis.result import Action, Cause, Diagnosis, Recommendation, RecoveryFacts
from rca.features.extract import step_phases
from rca.recovery.option import Option
from rca.recovery.planner import REPLAYED, Plan
from rca.recovery.planner import plan as plan_for
from rca.recovery.remedies import REMEDY_OF
from rca.recovery.site import Site, positive_hint
from rca.recovery.situation import BlamedCause, Situation, SlowRanks
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window.causes import CAUSES
from rca.window.job import Job, Topology
from rca.window.window import Window

#: Answers list this many actions besides the first remedies of their causes.
MAX_ALTERNATIVES = 4
#: Largest global batch of a hint that is used.
MAX_SAMPLES = 1e8
#: A fault is over if it ended this share of the window's steps before its end.
QUIET_END = 0.1
#: Reasons of abstention that leave the first cause named.
_STILL_NAMED = frozenset({"no_step_times", "machine_stands_out"})


def plan(diagnosis: Diagnosis, window: Window | None = None, *, site: Site | None = None) -> Plan:
    """What to do about a diagnosis.

    Parameters
    ----------
    window : Window, optional
        The diagnosed window. Without it, actions that a replay prices keep the price of the diagnosis, which
        was made with the site of that time.
    site : Site, optional
        Costs and limits; defaults and the job's hints where it says nothing.

    Returns
    -------
    Plan
    """
    site = site or Site()
    if window is None or window.steps.num_rows == 0:
        return plan_for(_situation(diagnosis, site), replayed=_replayed(diagnosis))
    replay = PhaseReplay.from_arrays(step_phases(window), window.job)
    return plan_for(_situation(diagnosis, site, window.job.topology, replay))


def with_actions(diagnosis: Diagnosis, window: Window, *, site: Site) -> Diagnosis:
    """The diagnosis with the plan's options as its actions: remedies of its causes first.

    Parameters
    ----------
    diagnosis : Diagnosis
        With removals, and with the options of `with_replayed_actions`.
    """
    if diagnosis.recovery is None:
        return diagnosis
    if diagnosis.failure_mode == "healthy" and not diagnosis.causes:
        return diagnosis.model_copy(update={"recovery": None})
    job = window.job
    facts = diagnosis.recovery.model_copy(
        update={
            "job_nodes": len(job.topology.node_names),
            "over": _is_over(diagnosis, window),
            **_from_job(job, diagnosis),
        }
    )
    diagnosis = diagnosis.model_copy(update={"recovery": facts})
    planned = plan(diagnosis, site=site)
    options = planned.options
    order = {cause.cause: place for place, cause in reversed(list(enumerate(diagnosis.causes)))}
    remedies = [each for each in options if any(REMEDY_OF.get(name) == each.action for name in each.causes)]
    remedies.sort(key=lambda each: min(order[name] for name in each.causes))
    others = [each for each in options if each not in remedies]
    kept = [
        each for place, each in enumerate(others) if place < MAX_ALTERNATIVES or each.action == planned.first
    ]
    actions = [_action(each) for each in [*remedies, *kept]]
    recommended = Recommendation(action=planned.first, why=planned.why) if diagnosis.causes else None
    return diagnosis.model_copy(update={"actions": actions, "recommended": recommended})


def with_replayed_actions(diagnosis: Diagnosis, replay: PhaseReplay, job: Job, site: Site) -> Diagnosis:
    """The diagnosis with further options, which a replay of its window priced."""
    if diagnosis.failure_mode != "fail_slow" or diagnosis.recovery is None:
        return diagnosis
    facts = diagnosis.recovery.model_copy(update=_from_job(job, diagnosis))
    diagnosis = diagnosis.model_copy(update={"recovery": facts})
    situation = _situation(diagnosis, site, job.topology, replay)
    found = [option for action in REPLAYED for option in action.options(situation)]
    facts = facts.model_copy(update={"replayed": [each for each in found if isinstance(each, Option)]})
    return diagnosis.model_copy(update={"recovery": facts})


def _replayed(diagnosis: Diagnosis) -> list[Option]:
    """The replayed options, about the causes of the answer: these may have changed after the replay."""
    if diagnosis.recovery is None:
        return []
    return [
        each.model_copy(
            update={
                "causes": sorted({one.cause for one in diagnosis.causes if set(one.ranks) & set(each.ranks)})
            }
        )
        for each in diagnosis.recovery.replayed
    ]


def _is_decided(diagnosis: Diagnosis) -> bool:
    """Whether the job is certainly healthy, or its first cause is named; `unknown` names none."""
    reason = diagnosis.abstention_reason
    settled = reason is None or reason.code in _STILL_NAMED
    return settled and not diagnosis.cause_is_unknown


def _situation(
    diagnosis: Diagnosis, site: Site, topology: Topology | None = None, replay: PhaseReplay | None = None
) -> Situation:
    """The situation that a diagnosis describes."""
    # Answers of older versions have no facts: then no cause is acted on.
    facts = diagnosis.recovery or RecoveryFacts(removals=[])
    return Situation(
        mode=diagnosis.failure_mode,
        decided=_is_decided(diagnosis),
        faults=tuple(_fault(cause, facts) for cause in diagnosis.causes if cause.cause in CAUSES),
        suspects=tuple(
            SlowRanks(tuple(each.ranks), tuple(each.nodes), each.probability) for each in diagnosis.stragglers
        ),
        step_seconds=_step_seconds(diagnosis),
        lost=diagnosis.slowdown.seconds_per_step or 0.0,
        lost_interval=diagnosis.slowdown.interval or (0.0, 0.0),
        steps_lost=diagnosis.quality.steps_used,
        over=facts.over,
        job_nodes=facts.job_nodes,
        global_batch=facts.global_batch,
        topology=topology,
        replay=replay,
        site=site.filled(facts.hints),
        lost_is_known=diagnosis.slowdown.seconds_per_step is not None,
    )


def _from_job(job: Job, diagnosis: Diagnosis) -> dict[str, Any]:
    """The recovery facts that a job gives as hints."""
    return {
        "hints": Site.of_job(job, _step_seconds(diagnosis)),
        "global_batch": positive_hint(job, "global_batch_size", most=MAX_SAMPLES),
    }


def _fault(cause: Cause, facts: RecoveryFacts) -> BlamedCause:
    """A cause with the saving of its removal, if the diagnosis found it worth acting on."""
    known = [each for each in facts.removals if (each.cause, each.ranks) == (cause.cause, cause.ranks)]
    return BlamedCause(
        cause=cause.cause,
        ranks=tuple(cause.ranks),
        nodes=tuple(cause.nodes),
        probability=cause.probability,
        saved=known[0].seconds_per_step_saved if known else None,
        interval=known[0].interval if known else None,
        actionable=bool(known),
        evident=bool(signals_for(cause)),
    )


def _action(option: Option) -> Action:
    return Action(
        action=option.action,
        expected_seconds_per_step_saved=option.seconds_per_step_saved,
        interval=option.interval,
        cost_seconds=option.one_off_seconds,
        break_even_steps=option.break_even_steps,
        runbook=option.instruction,
        weight=option.weight,
        causes=option.causes,
        ranks=option.ranks,
        nodes=option.nodes,
        chance=option.chance,
        basis=option.basis,
        risk=option.risk,
        escalate_after_steps=option.escalate_after_steps,
        correction=None if option.correction == 1.0 else option.correction,
    )


def _step_seconds(diagnosis: Diagnosis) -> float:
    """Mean step of the window, seconds; 0 where no loss was measured."""
    ratio, lost = diagnosis.slowdown.ratio or 1.0, diagnosis.slowdown.seconds_per_step or 0.0
    return lost * ratio / (ratio - 1.0) if ratio > 1.0 and lost > 0 else 0.0


def _is_over(diagnosis: Diagnosis, window: Window) -> bool:
    """Whether every straggler was quiet in the last part of the window."""
    last_steps = [each.last_step for each in diagnosis.stragglers]
    if diagnosis.failure_mode != "fail_slow" or not last_steps or window.steps.num_rows == 0:
        return False
    steps = window.steps.column("step").to_numpy()
    first, last = int(steps.min()), int(steps.max())
    quiet_from = last - QUIET_END * (last - first + 1)
    return all(step is not None and step < quiet_from for step in last_steps)
