"""Corrections, limits and guards that apply to every option of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf, isfinite

from rca.recovery.option import Option, Rejection
from rca.recovery.situation import Situation

#: Later break-even is never.
LATEST_STEPS = 10**12
#: An action of a slow job that saves less of its step is none. The loss may be of a pause that is over.
MIN_SAVED = 0.005


def priced(option: Option, situation: Situation) -> Option:
    """The option with its gain corrected by observed ones and limited to the loss, and its break-even."""
    saved, interval = option.seconds_per_step_saved, option.interval
    if saved is None or interval is None or not all(map(isfinite, (saved, *interval))):
        return option.model_copy(
            update={"seconds_per_step_saved": None, "interval": None, "basis": "unknown"}
        )
    factor = situation.site.corrections.get(option.action, 1.0)
    # All stragglers cost no more. Published formulas have limits of their own.
    most = inf if option.basis == "published" else situation.lost
    plain, saved = min(saved, most), min(saved * factor, most)
    low, high = interval[0] * factor, interval[1] * factor
    if option.basis != "published":
        high = min(high, max(situation.lost_interval[1], situation.lost))
    steps = option.one_off_seconds / saved if saved > 0 else LATEST_STEPS
    return option.model_copy(
        update={
            "seconds_per_step_saved": saved,
            "interval": (min(low, saved), max(high, saved)),
            "correction": saved / plain if plain > 0 else factor,
            "break_even_steps": ceil(steps) if option.weight == "heavy" and steps < LATEST_STEPS else None,
        }
    )


def refused(option: Option, situation: Situation, taken: Iterable[Option]) -> Rejection | None:
    """The guard that forbids an option beside those already taken; None if it may be taken.

    A share of the pool may be out of service. A job that is not elastic gives up as many nodes as there are
    spare ones. Half of a job's nodes must not leave at once, but a single one may. A heavy action has to save
    something before the job ends, and each action of a slow job `MIN_SAVED` of its step.
    """
    reason = _too_many_nodes(option, situation, taken) or _does_not_pay(option, situation)
    return None if reason is None else Rejection(action=option.action, reason=reason)


def _too_many_nodes(option: Option, situation: Situation, taken: Iterable[Option]) -> str | None:
    if not option.takes_out:
        return None
    out = set(option.nodes).union(*(each.nodes for each in taken if each.takes_out))
    spare = situation.site.nodes_to_spare
    if spare is not None and len(out) > spare:
        return f"takes {len(out)} nodes out of service; the pool may spare {spare}"
    replaced = situation.site.spare_nodes
    if replaced is not None and len(out) > replaced and not situation.site.elastic:
        return f"takes {len(out)} nodes from a job that is not elastic; the site has {replaced} spare ones"
    if len(out) > 1 and len(out) >= situation.site.most_of_job * situation.job_nodes:
        of = situation.job_nodes
        return f"{len(out)} of the job's {of} nodes would change at once: look for a common cause"
    return None


def _does_not_pay(option: Option, situation: Situation) -> str | None:
    saved, left = option.seconds_per_step_saved, situation.site.steps_left
    if situation.mode == "fail_stop" or saved is None:
        return None
    if 0 < saved < MIN_SAVED * situation.step_seconds:
        return f"it saves {saved / situation.step_seconds:.1%} of a step"
    if option.weight != "heavy":
        return None
    if saved <= 0 or option.break_even_steps is None:
        return "it saves nothing"
    if left is not None and option.break_even_steps > left:
        return f"pays off after {option.break_even_steps:,} steps; the job has {left:,} left"
    return None
