"""Separate work without a timer from waiting without a timer.

All ranks have equally long steps, so a rank with more untimed time than the others has shorter phases. There
are two explanations:

- The rank is faster than the others, and its untimed time is waiting.
- The rank does work without a timer (inputs, copies), and the others wait for it within a phase. This is so
  where the exchange is not timed.

In the second case the others' phases are longer in just these steps, and the rank's own are not. The others
are longer in the one phase that synchronises, while a slow rank is slow in forward and backward alike.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.robust import MAD_TO_SIGMA, nan_median
from rca.window.schema import OCCASIONAL_PHASES
from rca.window.times.own_work import UNTIMED, WORK_PHASES
from rca.window.times.phases import PhaseArrays

#: Phases in which ranks may wait for each other, in order.
SYNCHRONISING = ("forward_seconds", "backward_seconds", "optimizer_seconds")
#: Without timers of both, a rank that is faster in one of them shows no shorter phase.
BOTH_TIMED = {"forward_seconds", "backward_seconds"}
#: Least number of steps with a wait. Steps with this share of the median wait show which phase contains it.
MIN_WAITED_STEPS, CLEAR_WAIT = 6, 0.5
#: A wait is at least so many standard deviations of the untimed time: of many ranks, one always has most.
BEYOND_NOISE = 4.0
#: The first synchronising phase is longer by at least this share of the wait. A phase that is longer by less
#: than the second share does not contain it.
MIN_MATCH, MAX_MISMATCH = 0.55, 0.15
#: In the steps of a wait, the late rank's phases may be shorter or longer by these shares of it. More means
#: that the rank waits itself, or that the whole job is slower.
MAX_SHORTENED, MAX_LENGTHENED = 0.3, 0.6


def with_untimed_work(phases: PhaseArrays, apart: float) -> PhaseArrays:
    """The phases with the `UNTIMED` work of the few late ranks, and without the others' waiting.

    Parameters
    ----------
    phases : PhaseArrays
        Of a job without stages and without timers of the exchange.
    apart : float, seconds
        Shorter waits do not count.

    Returns
    -------
    PhaseArrays
        The same object if untimed work cannot be separated from waiting.
    """
    if not phases.seconds.keys() >= BOTH_TIMED:
        return phases
    beyond = _beyond_others(phases)
    known = np.isfinite(beyond)
    if not known.any():
        return phases
    usual = MAD_TO_SIGMA * float(np.median(np.abs(beyond[known])))
    untimed = _of_few(beyond, max(apart, BEYOND_NOISE * usual))
    wait = untimed.max(axis=0)
    cases = wait > 0
    if np.count_nonzero(cases) < MIN_WAITED_STEPS:
        return phases
    cases = wait >= CLEAR_WAIT * np.median(wait[cases])
    longer = _beyond_the_last(phases, untimed)
    met = _meet_in_one_phase(longer, wait, cases)
    if not (met and _others_are_longer(phases, untimed, wait, cases)):
        return phases
    cleared = _without_waits(phases, longer, np.where(wait > 0, wait - untimed, 0.0))
    # Untimed work of a rank without timers is unknown, not 0.
    return replace(phases, seconds={**phases.seconds, **cleared, UNTIMED: np.where(known, untimed, np.nan)})


def _beyond_others(phases: PhaseArrays) -> FloatArray:
    """Untimed seconds beyond the others' median, shape (n_ranks, n_steps); NaN where a timer is missing."""
    untimed = phases.phase("step_seconds")
    for name in WORK_PHASES:
        if name in phases.seconds:
            seconds = phases.seconds[name]
            untimed = untimed - (np.nan_to_num(seconds) if name in OCCASIONAL_PHASES else seconds)
    found: FloatArray = untimed - nan_median(untimed)
    return found


def _of_few(beyond: FloatArray, least: float) -> FloatArray:
    """The same if it exceeds `least` seconds on less than half of the ranks of a step; 0 elsewhere."""
    late = np.nan_to_num(beyond) > least
    few = 2 * late.sum(axis=0) < np.isfinite(beyond).sum(axis=0)
    found: FloatArray = np.where(late & few, beyond, 0.0)
    return found


def _beyond_the_last(phases: PhaseArrays, untimed: FloatArray) -> dict[str, FloatArray]:
    """Seconds of the synchronising phases, beyond those of the step's latest rank."""
    last, steps = untimed.argmax(axis=0), np.arange(untimed.shape[1])
    held = {name: phases.seconds[name] for name in SYNCHRONISING if name in phases.seconds}
    return {name: seconds - seconds[last, steps] for name, seconds in held.items()}


def _meet_in_one_phase(longer: dict[str, FloatArray], wait: FloatArray, cases: BoolArray) -> bool:
    """Whether the first phase in which the others are longer explains most of the wait."""
    for seconds in longer.values():
        made_up = nan_median(seconds)[cases] / wait[cases]
        share = float(nan_median(made_up[:, None])[0])
        if not share < MAX_MISMATCH:
            return share >= MIN_MATCH
    return False


def _others_are_longer(phases: PhaseArrays, untimed: FloatArray, wait: FloatArray, cases: BoolArray) -> bool:
    """Whether the others' phases are longer in the steps of a wait, and the late rank's not shorter.

    A difference in every step may as well be a faster rank, so steps without a wait are needed.
    """
    others = wait < CLEAR_WAIT * float(np.median(wait[cases]))
    if np.count_nonzero(others) < MIN_WAITED_STEPS:
        return False
    nothing = np.zeros(untimed.shape)
    spent = sum((phases.seconds[name] for name in SYNCHRONISING if name in phases.seconds), nothing)
    late = np.isin(np.arange(len(spent)), untimed.argmax(axis=0)[cases])
    # The late rank in the steps of a wait, and the same ranks in the other steps.
    worked = np.where(cases, nan_median(np.where(untimed > 0, spent, np.nan)), nan_median(spent[late]))
    change = _apart(worked, cases, others) / _apart(wait, cases, others)
    return -MAX_SHORTENED <= change <= MAX_LENGTHENED


def _apart(series: FloatArray, cases: BoolArray, others: BoolArray) -> float:
    """Median of the waited steps less that of the others."""
    inside, outside = (float(nan_median(series[part][:, None])[0]) for part in (cases, others))
    return inside - outside


def _without_waits(
    phases: PhaseArrays, longer: dict[str, FloatArray], left: FloatArray
) -> dict[str, FloatArray]:
    """The synchronising phases without their waiting; `left` is the waiting, taken off in order."""
    cleared = {}
    for name, seconds in longer.items():
        waited = np.clip(np.nan_to_num(seconds), 0.0, left)
        cleared[name] = phases.seconds[name] - waited
        left = left - waited
    return cleared
