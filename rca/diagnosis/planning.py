"""The plan for a diagnosis: its causes are the faults of a situation, the plan's options its actions."""

from __future__ import annotations

from dataclasses import replace

from rca.diagnosis.advice import signals_for
from rca.diagnosis.result import Action, Cause, Diagnosis
from rca.features.extract import FeatureSet, step_phases
from rca.recovery.option import Option
from rca.recovery.planner import REPLAYED, Plan
from rca.recovery.planner import plan as plan_for
from rca.recovery.remedies import REMEDY_OF
from rca.recovery.site import Site
from rca.recovery.situation import Fault, Situation, Suspect
from rca.telemetry.causes import CAUSES
from rca.telemetry.job import Job
from rca.telemetry.window import Window
from rca.whatif.phase_replay import PhaseReplay

#: Answers list this many actions besides the first remedies of their causes.
MOST_ALTERNATIVES = 4
#: A fault is over if it ended this share of the window's steps before its end.
QUIET_END = 0.1
#: Reasons of abstention that leave the first cause named.
_STILL_NAMED = frozenset({"no_step_times"})
_REPLAYED = frozenset(action.name for action in REPLAYED)


def plan(diagnosis: Diagnosis, window: Window | None = None, *, site: Site | None = None) -> Plan:
    """What to do about a diagnosis.

    Parameters
    ----------
    diagnosis : Diagnosis
    window : Window, optional
        The diagnosed window. Without it, actions that change the ranks' work keep the price of the diagnosis.
    site : Site, optional
        Costs and limits; defaults and the job's hints where it says nothing.

    Returns
    -------
    Plan
    """
    site = site or Site()
    if window is None:
        return plan_for(_situation(diagnosis, None, None, site), priced=_replayed(diagnosis))
    replay = None
    if diagnosis.failure_mode == "fail_slow" and window.steps.num_rows:
        replay = PhaseReplay.from_arrays(step_phases(window), window.job)
    situation = _situation(diagnosis, window.job, replay, site)
    return plan_for(replace(situation, over=is_over(diagnosis, window)))


def with_actions(diagnosis: Diagnosis, job: Job, *, over: bool, site: Site) -> Diagnosis:
    """The diagnosis with the plan's options as its actions: remedies of its causes first.

    Parameters
    ----------
    diagnosis : Diagnosis
        Its actions are remedies with their gain, and those of `with_replayed_actions`.
    job : Job
    over : bool
        Whether the stragglers were quiet in the last part of the window.
    site : Site
    """
    if diagnosis.failure_mode == "healthy" and not diagnosis.causes:
        return diagnosis
    situation = replace(_situation(diagnosis, job, None, site), over=over)
    options = plan_for(situation, priced=_replayed(diagnosis)).options
    order = {cause.cause: place for place, cause in reversed(list(enumerate(diagnosis.causes)))}
    remedies = [each for each in options if any(REMEDY_OF.get(name) == each.action for name in each.causes)]
    remedies.sort(key=lambda each: min(order[name] for name in each.causes))
    others = [each for each in options if each not in remedies]
    actions = [_action(each) for each in [*remedies, *others[:MOST_ALTERNATIVES]]]
    return diagnosis.model_copy(update={"actions": actions})


def with_replayed_actions(diagnosis: Diagnosis, features: FeatureSet, job: Job, site: Site) -> Diagnosis:
    """The diagnosis with further actions, which work around its stragglers, priced by replay."""
    if diagnosis.failure_mode != "fail_slow":
        return diagnosis
    replay = PhaseReplay.from_arrays(features.phases.without_first(features.work.warmup), job)
    situation = _situation(diagnosis, job, replay, site)
    found = [option for action in REPLAYED for option in action.options(situation)]
    added = [_action(each) for each in found if isinstance(each, Option)]
    return diagnosis.model_copy(update={"actions": [*diagnosis.actions, *added]})


def _situation(diagnosis: Diagnosis, job: Job | None, replay: PhaseReplay | None, site: Site) -> Situation:
    """The situation that a diagnosis describes; nothing of it is over."""
    topology = None if job is None else job.topology
    step_seconds = _step_seconds(diagnosis)
    reason = diagnosis.abstention_reason
    nodes = {node for each in diagnosis.stragglers for node in each.nodes}
    return Situation(
        mode=diagnosis.failure_mode,
        decided=reason is None or reason.code in _STILL_NAMED,
        faults=tuple(_fault(cause, diagnosis) for cause in diagnosis.causes if cause.cause in CAUSES),
        suspects=tuple(
            Suspect(tuple(each.ranks), tuple(each.nodes), each.probability) for each in diagnosis.stragglers
        ),
        step_seconds=step_seconds,
        lost=diagnosis.slowdown.seconds_per_step,
        lost_interval=diagnosis.slowdown.interval,
        steps_lost=diagnosis.quality.steps_used,
        over=False,
        job_nodes=len(topology.node_names) if topology is not None else len(nodes),
        global_batch=None if job is None else _global_batch(job),
        topology=topology,
        replay=replay,
        site=site if job is None else site.for_job(job, step_seconds),
    )


def _fault(cause: Cause, diagnosis: Diagnosis) -> Fault:
    """A cause with the saving of its removal, if the diagnosis found it worth acting on."""
    remedy = REMEDY_OF.get(cause.cause)
    known = [
        action
        for action in diagnosis.actions
        if action.action == remedy
        # Older answers do not say which cause an action removes.
        and (not action.causes or (action.ranks == cause.ranks and cause.cause in action.causes))
    ]
    saved = known[0].expected_seconds_per_step_saved if known else None
    return Fault(
        cause=cause.cause,
        ranks=tuple(cause.ranks),
        nodes=tuple(cause.nodes),
        probability=cause.probability,
        saved=saved,
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
    )


def _replayed(diagnosis: Diagnosis) -> list[Option]:
    """The options of a diagnosis that a replay of its window priced."""
    return [
        Option(
            action=each.action,
            weight=each.weight or "light",
            causes=each.causes,
            ranks=each.ranks,
            nodes=each.nodes,
            seconds_per_step_saved=each.expected_seconds_per_step_saved,
            interval=each.interval,
            basis=each.basis or "replay",
            chance=1.0 if each.chance is None else each.chance,
            one_off_seconds=each.cost_seconds or 0.0,
            break_even_steps=each.break_even_steps,
            risk=each.risk or "",
            instruction=each.runbook,
        )
        for each in diagnosis.actions
        if each.action in _REPLAYED
    ]


def _step_seconds(diagnosis: Diagnosis) -> float:
    """Mean step of the window, seconds; 0 where no loss was measured."""
    ratio, lost = diagnosis.slowdown.ratio, diagnosis.slowdown.seconds_per_step
    return lost * ratio / (ratio - 1.0) if ratio > 1.0 and lost > 0 else 0.0


def is_over(diagnosis: Diagnosis, window: Window) -> bool:
    """Whether every straggler was quiet in the last part of the window."""
    last_steps = [each.last_step for each in diagnosis.stragglers]
    if diagnosis.failure_mode != "fail_slow" or not last_steps or window.steps.num_rows == 0:
        return False
    steps = window.steps.column("step").to_numpy()
    first, last = int(steps.min()), int(steps.max())
    quiet_from = last - QUIET_END * (last - first + 1)
    return all(step is not None and step < quiet_from for step in last_steps)


def _global_batch(job: Job) -> float | None:
    value: object = job.hints.get("global_batch_size")
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        return None
    return float(value)
