"""Work that no timer saw, told from waiting: few spend time in no phase while the others wait within one.

Steps are equally long on all ranks, so who spends more time in no phase than the others has shorter phases,
too. Either he was quicker and waited for the others untimed; or he worked unseen, on inputs or copies without
a timer, and the others waited for him within a phase, as they do where nobody times the exchange. Then their
phases become longer whenever he does so, and his own do not; and they do so in the phase in which all meet,
while whoever is really slow is so in forward and backward alike.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.robust import MAD_TO_SIGMA, nan_median
from rca.telemetry.own_work import UNTIMED, WORK_PHASES
from rca.telemetry.phases import OCCASIONAL_PHASES, PhaseArrays

#: Phases in which ranks may meet, in order.
MEETING = ("forward_seconds", "backward_seconds", "optimizer_seconds")
#: Without timers of both, who is quicker in one has no shorter phase to show for it.
BOTH_TIMED = {"forward_seconds", "backward_seconds"}
#: Steps in which somebody is waited for, at least; those with this share of what is usual in them tell where.
MIN_CASES, PLAIN = 6, 0.5
#: A wait is so many times what time in no phase usually differs by: of many ranks one always has most.
BEYOND_NOISE = 4.0
#: Of the wait, the first phase in which they differ makes up for so much; less than `NOTHING` is none of it.
MADE_UP, NOTHING = 0.55, 0.15
#: By so much of a wait the phases of who is waited for may be shorter or longer in its steps than in others:
#: who waits himself is quicker there, and where everybody's are longer it is the job's.
SHORTER, LONGER = 0.3, 0.6


def with_untimed_work(phases: PhaseArrays, apart: float) -> PhaseArrays:
    """The phases with `UNTIMED` work of the few who are waited for, and without the others' waiting.

    Parameters
    ----------
    phases : PhaseArrays
        Of a job without stages and without timers of the exchange.
    apart : float, seconds
        Less than this is no wait.

    Returns
    -------
    PhaseArrays
        The same object where nothing tells untimed work from waiting.
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
    if np.count_nonzero(cases) < MIN_CASES:
        return phases
    cases = wait >= PLAIN * np.median(wait[cases])
    longer = _beyond_the_last(phases, untimed)
    met = _meet_in_one_phase(longer, wait, cases)
    if not (met and _others_are_longer(phases, untimed, wait, cases)):
        return phases
    cleared = _without_waits(phases, longer, np.where(wait > 0, wait - untimed, 0.0))
    # Who has no timers did nothing that is known, which is not nothing.
    return replace(phases, seconds={**phases.seconds, **cleared, UNTIMED: np.where(known, untimed, np.nan)})


def _beyond_others(phases: PhaseArrays) -> FloatArray:
    """Seconds in no phase beyond the others' median, shape (n_ranks, n_steps); NaN where not all is timed."""
    untimed = phases.phase("step_seconds")
    for name in WORK_PHASES:
        if name in phases.seconds:
            seconds = phases.seconds[name]
            untimed = untimed - (np.nan_to_num(seconds) if name in OCCASIONAL_PHASES else seconds)
    found: FloatArray = untimed - nan_median(untimed)
    return found


def _of_few(beyond: FloatArray, least: float) -> FloatArray:
    """The same of less than half of the ranks of a step, from `least` seconds on; 0 elsewhere."""
    late = np.nan_to_num(beyond) > least
    few = 2 * late.sum(axis=0) < np.isfinite(beyond).sum(axis=0)
    found: FloatArray = np.where(late & few, beyond, 0.0)
    return found


def _beyond_the_last(phases: PhaseArrays, untimed: FloatArray) -> dict[str, FloatArray]:
    """Seconds of the phases in which ranks may meet, beyond those of the rank that is waited for most."""
    last, steps = untimed.argmax(axis=0), np.arange(untimed.shape[1])
    held = {name: phases.seconds[name] for name in MEETING if name in phases.seconds}
    return {name: seconds - seconds[last, steps] for name, seconds in held.items()}


def _meet_in_one_phase(longer: dict[str, FloatArray], wait: FloatArray, cases: BoolArray) -> bool:
    """Whether the first phase in which the others are longer makes up for most of the wait."""
    for seconds in longer.values():
        made_up = nan_median(seconds)[cases] / wait[cases]
        share = float(nan_median(made_up[:, None])[0])
        if not share < NOTHING:
            return share >= MADE_UP
    return False


def _others_are_longer(phases: PhaseArrays, untimed: FloatArray, wait: FloatArray, cases: BoolArray) -> bool:
    """Whether the others' phases are longer in the steps of a wait, not those of who is waited for shorter.

    What is so in every step cannot be told from a rank that is quicker.
    """
    others = wait < PLAIN * float(np.median(wait[cases]))
    if np.count_nonzero(others) < MIN_CASES:
        return False
    nothing = np.zeros(untimed.shape)
    spent = sum((phases.seconds[name] for name in MEETING if name in phases.seconds), nothing)
    waited_for = np.isin(np.arange(len(spent)), untimed.argmax(axis=0)[cases])
    # Who is waited for, in the steps of a wait; elsewhere the same ranks.
    worked = np.where(cases, nan_median(np.where(untimed > 0, spent, np.nan)), nan_median(spent[waited_for]))
    moved = _apart(worked, cases, others) / _apart(wait, cases, others)
    return -SHORTER <= moved <= LONGER


def _apart(series: FloatArray, cases: BoolArray, others: BoolArray) -> float:
    """Median of some steps less that of others."""
    inside, outside = (float(nan_median(series[part][:, None])[0]) for part in (cases, others))
    return inside - outside


def _without_waits(
    phases: PhaseArrays, longer: dict[str, FloatArray], left: FloatArray
) -> dict[str, FloatArray]:
    """The phases in which ranks may meet, less what is `left` of the waiting as each of them comes."""
    cleared = {}
    for name, seconds in longer.items():
        waited = np.clip(np.nan_to_num(seconds), 0.0, left)
        cleared[name] = phases.seconds[name] - waited
        left = left - waited
    return cleared
