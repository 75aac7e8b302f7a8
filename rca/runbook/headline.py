"""The headline of a page: the verdict, who, how much, why."""

from __future__ import annotations

from collections.abc import Sequence

from rca.diagnosis.format_1 import NOTABLE_SLOWING
from rca.diagnosis.result import Cause, Diagnosis, Straggler, WindowSpan
from rca.probability import probability
from rca.runbook.numbers import ratio, seconds
from rca.runbook.phrases import Name, Phrase, all_ranks, joined, place_of
from rca.window.causes import UNKNOWN

_SHOWN_STRAGGLERS = 3
#: Least probability of a candidate for an open cause, and how many are shown.
MIN_CANDIDATE, _SHOWN_CANDIDATES = 0.2, 2
COST_UNKNOWN = "cost unknown"
#: A failure mode that is less likely than this is not called probable.
MIN_PROBABLE = 0.5


def headline(diagnosis: Diagnosis) -> Phrase:
    """Verdict and culprit in one line."""
    if diagnosis.abstained:
        return _abstained(diagnosis)
    if diagnosis.failure_mode == "healthy":
        return _healthy(diagnosis)
    if diagnosis.failure_mode == "fail_stop":
        return _fail_stop(diagnosis)
    return (
        "FAIL-SLOW: ",
        *_culprits(diagnosis.stragglers, diagnosis.window),
        f", {_cost(diagnosis)}",
        *_cause(diagnosis.causes),
    )


def _healthy(diagnosis: Diagnosis) -> Phrase:
    if "steps" in diagnosis.missing_signals:
        return ("HEALTHY as far as exporters show: no machine stands out; no step was timed",)
    past = diagnosis.slowdown.versus_own_past
    if past is not None and past >= NOTABLE_SLOWING:
        return (
            f"HEALTHY, but slower than before: steps are {ratio(past)} as long, "
            "on all ranks alike; no rank, node or stage is slower than the others",
        )
    return (f"HEALTHY: no rank, node or stage holds this job back, {_cost(diagnosis)}",)


def _fail_stop(diagnosis: Diagnosis) -> Phrase:
    """The ranks that stopped, then what slowed the job before."""
    stopped = [group for group in diagnosis.stragglers if group.straggler_type is None]
    reasons, slowed = [cause for cause in diagnosis.causes if cause.stops_the_job], _slowing(diagnosis)
    first = [group.first_step for group in stopped if group.first_step is not None]
    at = f" at step {min(first)}" if first else ""
    before = ("; it was slow before", *_cause(slowed), f", {_cost(diagnosis)}") if slowed else ()
    if not stopped:
        return (f"FAIL-STOP: the job stopped{at}", *_cause(reasons), *before)
    return ("FAIL-STOP: ", *_culprits(stopped, diagnosis.window), f" stopped{at}", *_cause(reasons), *before)


def _abstained(diagnosis: Diagnosis) -> Phrase:
    mode = diagnosis.failure_mode
    chances = diagnosis.failure_mode_probability.items()
    likeliest, odds = max(chances, key=lambda item: item[1], default=(mode, float("nan")))
    code = None if diagnosis.abstention_reason is None else diagnosis.abstention_reason.code
    over = code == "no_step_times" and diagnosis.until is not None
    if code == "machine_stands_out" or over:
        culprits = (*_culprits(diagnosis.stragglers, diagnosis.window), *_cause(diagnosis.causes))
        end = f"; over since {diagnosis.until:%H:%M:%S} UTC" if over else ""
        what = "fault" if mode == "healthy" else mode.replace("_", "-")
        return (f"SUSPECTED {what}: ", *culprits, f", {COST_UNKNOWN}{end}")
    if mode == "healthy" and odds < MIN_PROBABLE:
        return (f"NOT CERTAIN: nothing shows whether the job is healthy, {_cost(diagnosis)}",)
    if mode == "healthy" and likeliest != "healthy":
        suspected = likeliest.replace("_", "-")
        return (
            f"NOT CERTAIN: perhaps {suspected} ({probability(odds)}), not sure enough for an alarm",
            f", {_cost(diagnosis)}",
        )
    if mode == "healthy":
        return (f"NOT CERTAIN: probably healthy ({_mode_odds(diagnosis)}), {_cost(diagnosis)}",)
    suspected = mode.replace("_", "-")
    reason = diagnosis.abstention_reason
    strange = reason is not None and reason.code == "out_of_distribution"
    tail: Phrase = (
        "; the job is unlike those the model learned from"
        if strange
        else "; no cause is certain enough to be named",
    )
    if diagnosis.stragglers:
        tail = ("; suspects ", *_culprits(diagnosis.stragglers, diagnosis.window), *tail)
    cost = f", {_cost(diagnosis)}" if mode == "fail_slow" else ""
    return (f"NOT CERTAIN: probably {suspected} ({_mode_odds(diagnosis)}){cost}", *tail)


def _mode_odds(diagnosis: Diagnosis) -> str:
    return probability(diagnosis.failure_mode_probability.get(diagnosis.failure_mode, float("nan")))


def _culprits(groups: Sequence[Straggler], span: WindowSpan | None) -> Phrase:
    if not groups:
        return ("the whole job",) if span is None else all_ranks(span)
    shown = joined((place_of(group, span) for group in groups[:_SHOWN_STRAGGLERS]), " and ")
    rest = len(groups) - _SHOWN_STRAGGLERS
    return (*shown, f" and {rest} more") if rest > 0 else shown


def _slowing(diagnosis: Diagnosis) -> list[Cause]:
    return [cause for cause in diagnosis.causes if not cause.stops_the_job]


def _cost(diagnosis: Diagnosis) -> str:
    slowdown = diagnosis.slowdown
    past = slowdown.versus_own_past
    if slowdown.seconds_per_step is not None:
        times = ratio(slowdown.ratio)
        if _slow_steps_differ(diagnosis):
            times += f"; slow steps {ratio(past)}"
        return f"{seconds(slowdown.seconds_per_step, signed=True)} per step ({times})"
    slower = past is not None and past >= NOTABLE_SLOWING
    return f"steps {ratio(past)} as long as before, cost unknown" if slower else COST_UNKNOWN


def _slow_steps_differ(diagnosis: Diagnosis) -> bool:
    """Whether the mean over the window hides how slow the slow steps are."""
    past, mean = diagnosis.slowdown.versus_own_past, diagnosis.slowdown.ratio
    if diagnosis.failure_mode != "fail_slow" or past is None or mean is None:
        return False
    # The past of an earlier window is no part of this one.
    before = None if diagnosis.earlier is None else diagnosis.earlier.ratio
    return past != before and past >= NOTABLE_SLOWING * mean


def open_cause(causes: Sequence[Cause]) -> Phrase:
    """What an answer with an open cause says about it: its likely candidates, if it has some."""
    first, *others = causes
    likely = [each for each in others if set(each.ranks) & set(first.ranks)]
    shown = [each for each in likely if each.probability >= MIN_CANDIDATE][:_SHOWN_CANDIDATES]
    if not shown:
        return (f"no known cause explains it ({probability(first.probability)})",)
    named = ((Name(each.cause), f" ({probability(each.probability)})") for each in shown)
    return ("cause open, perhaps ", *joined(named, " or "))


def _cause(causes: Sequence[Cause]) -> Phrase:
    if not causes:
        return (", cause not known",)
    best = causes[0]
    if best.cause == UNKNOWN:
        return (", ", *open_cause(causes))
    more = f" and {len(causes) - 1} more" if len(causes) > 1 else ""
    return (", cause ", Name(best.cause), f" ({probability(best.probability)}){more}")
