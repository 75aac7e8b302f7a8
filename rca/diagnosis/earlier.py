"""The job as it was before: what a fault that acts from the first step to the last can be compared with.

Ranks are compared with their peers, and a slow stretch with the steps beside it. What slows all ranks alike,
all along, has neither; seen alone such a window is a healthy job's. Beside an earlier window of the same job,
in which it ran as usual, the whole window is the slow stretch, and every phase and counter has its past.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rca.diagnosis.joining import doubts_only_causes
from rca.diagnosis.result import Diagnosis, EarlierWindow
from rca.features import FeatureSet
from rca.robust import nan_median
from rca.telemetry.earlier import after_earlier
from rca.telemetry.phases import PhaseArrays
from rca.telemetry.step_clock import StepClock
from rca.telemetry.window import Window

#: Usual steps have to take so many times as long as in the earlier window.
SLOWER = 1.05
#: Belief from which the comparison raises the alarm; whoever asks twice has to be surer.
SURE_ALARM = 0.97
#: Share of the slow stretch's steps that lie in the window itself, not in the earlier one.
IN_THE_WINDOW = 0.9
#: Whether the job is slow at all is not certain.
_UNDECIDED = "undecided_mode"
#: Doubts that a comparison may settle; the others are about how the window ends, or how short it is.
_OPEN = frozenset({_UNDECIDED, "too_few_ranks", "nobody_stands_out", "cause_not_certain"})

Ask = Callable[[Window, int], tuple[Diagnosis, FeatureSet]]


def with_earlier(
    alone: Diagnosis, window: Window, features: FeatureSet, earlier: Window, ask: Ask
) -> Diagnosis:
    """The diagnosis, with what a comparison with an earlier window of the job adds.

    Parameters
    ----------
    alone : Diagnosis
        Of the window alone.
    window : Window
    features : FeatureSet
        Of the window.
    earlier : Window
    ask : callable
        Diagnoses both as one window, with seconds as means over the steps from a number on.

    Returns
    -------
    Diagnosis
        The answer alone and how long steps took before; or, where the window in itself shows no change and
        the comparison does, the answer of the comparison.

    Raises
    ------
    InvalidInput
        If the windows cannot be compared.
    """
    first = int(features.work.steps[0]) if features.work.steps.size else None
    if features.work.warmup and first is not None:
        # A restarted job's first steps are no sign of a fault; between two windows they would look like one.
        clock = StepClock.of(window)
        window = clock.between(first, int(clock.steps[-1]) + 1)
    both = after_earlier(window, earlier)
    before = _compared(window, earlier, both)
    told = _with_past(alone, before)
    if first is None or not _is_open(alone, features) or not (before.ratio or 0.0) >= SLOWER:
        return told
    compared, seen = ask(both, first)
    if _says_more(compared, alone) and _is_in_the_window(seen, first):
        return _instead(told, compared, first)
    if _is_sound(told) and _is_sound(compared):
        return told.model_copy(update={"next_check": compared.next_check})
    return told


def _compared(window: Window, earlier: Window, both: Window) -> EarlierWindow:
    phases, now = PhaseArrays.from_window(both), PhaseArrays.from_window(window)
    job_step = nan_median(phases.phase("step_seconds"))
    n_before = phases.n_steps - now.n_steps
    then_usual, now_usual = (
        float(nan_median(part[:, None])[0]) for part in (job_step[:n_before], job_step[n_before:])
    )
    known = then_usual > 0 and np.isfinite(now_usual)
    return EarlierWindow(
        window_id=earlier.job.window_id,
        job_id=earlier.job.job_id,
        seconds_before=window.job.start - earlier.job.end,
        steps=n_before,
        step_seconds=then_usual if known else None,
        ratio=now_usual / then_usual if known else None,
    )


def _with_past(alone: Diagnosis, before: EarlierWindow) -> Diagnosis:
    """The answer with what was compared; the job's past where the window holds none of its own."""
    slowdown = alone.slowdown
    if slowdown.versus_own_past is None:
        slowdown = slowdown.model_copy(update={"versus_own_past": before.ratio})
    return alone.model_copy(update={"earlier": before, "slowdown": slowdown})


def _is_open(alone: Diagnosis, features: FeatureSet) -> bool:
    """Whether a comparison may say more: nothing changed within the window, or nobody is blamed for it."""
    reason = alone.abstention_reason
    if alone.failure_mode == "fail_stop" or (reason is not None and reason.code not in _OPEN):
        return False
    return alone.failure_mode == "healthy" or features.comparison.segment.whole


def _is_sound(told: Diagnosis) -> bool:
    return told.failure_mode == "healthy" and not told.abstained


def _says_more(compared: Diagnosis, alone: Diagnosis) -> bool:
    """Whether the comparison is sure of a fault, or doubts health of which the window alone is sure.

    Of a job that is slow by the window alone it says more about why, and at what cost.
    """
    reason = compared.abstention_reason
    if _is_sound(alone) and reason is not None and reason.code == _UNDECIDED:
        return True
    if compared.failure_mode != "fail_slow" or not doubts_only_causes(compared):
        return False
    alarmed = alone.failure_mode == "fail_slow" and doubts_only_causes(alone)
    likely = compared.failure_mode_probability["fail_slow"] >= SURE_ALARM
    return alarmed or (likely and not compared.quality.out_of_distribution)


def _is_in_the_window(seen: FeatureSet, first: int) -> bool:
    """Whether the slow stretch is the window's, and not one of the earlier window or of both."""
    segment, steps = seen.comparison.segment, seen.work.steps
    slow = steps[segment.mask(steps.size)]
    return not segment.whole and float((slow >= first).mean()) >= IN_THE_WINDOW


def _instead(told: Diagnosis, compared: Diagnosis, first: int) -> Diagnosis:
    """The comparison's answer for the window; what of the window was used and lacking stays as it was."""
    kept: dict[str, Any] = {name: getattr(told, name) for name in ("quality", "missing_signals")}
    stragglers = [
        each.model_copy(update={"first_step": max(each.first_step, first)})
        if each.first_step is not None
        else each
        for each in compared.stragglers
    ]
    before = None if told.earlier is None else told.earlier.model_copy(update={"decided": True})
    return compared.model_copy(update={**kept, "stragglers": stragglers, "earlier": before})
