"""Work that no timer saw, told from waiting: few spend time in no phase while the others wait within one.

Steps are equally long on all ranks, so who spends more time in no phase than the others has shorter phases,
too. Either he was quicker and waited for the others untimed; or he worked unseen, on inputs or copies without
a timer, and the others waited for him within a phase, as they do where nobody times the exchange. Quicker
hardware is quicker in all that it computes. Who is waited for is not: the others are longer in the one phase
in which they meet him, and end it together with him.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.robust import nan_max, nan_median
from rca.telemetry.own_work import UNTIMED, WORK_PHASES
from rca.telemetry.phases import OCCASIONAL_PHASES, PhaseArrays

#: Phases in which ranks meet, in order.
MEETING = ("forward_seconds", "backward_seconds", "optimizer_seconds")
#: Without timers of all that is computed, who is quicker in it has no shorter phase to show for it.
COMPUTING = {"forward_seconds", "backward_seconds"}
#: Steps in which somebody is waited for, at least; those with this share of what is usual in them tell where.
MIN_CASES, PLAIN = 6, 0.5
#: Of the wait, the first phase in which they differ makes up for so much; less than `NOTHING` is none of it.
MADE_UP, NOTHING = 0.55, 0.15


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
    if not phases.seconds.keys() >= COMPUTING:
        return phases
    untimed = _beyond_others(phases, apart)
    wait = nan_max(untimed)
    cases = wait > 0
    if np.count_nonzero(cases) < MIN_CASES:
        return phases
    cases = wait >= PLAIN * np.median(wait[cases])
    if not _meet_late(phases, untimed, cases):
        return phases
    return replace(phases, seconds=_without_waits(phases, untimed))


def _beyond_others(phases: PhaseArrays, apart: float) -> FloatArray:
    """Seconds in no phase beyond the others' median, of less than half of the ranks; 0 elsewhere."""
    untimed = phases.phase("step_seconds")
    for name in WORK_PHASES:
        if name in phases.seconds:
            seconds = phases.seconds[name]
            untimed = untimed - (np.nan_to_num(seconds) if name in OCCASIONAL_PHASES else seconds)
    beyond = np.nan_to_num(untimed - nan_median(untimed))
    late = beyond > apart
    few = 2 * late.sum(axis=0) < np.isfinite(untimed).sum(axis=0)
    found: FloatArray = np.where(late & few, beyond, 0.0)
    return found


def _meet_late(phases: PhaseArrays, untimed: FloatArray, cases: BoolArray) -> bool:
    """Whether the others are longer in one phase, where whoever is quicker is so in all."""
    wait = nan_max(untimed)
    for name in MEETING:
        if name in phases.seconds:
            made_up = nan_median(_longer(phases.seconds[name], untimed))[cases] / wait[cases]
            share = float(nan_median(made_up[:, None], axis=0)[0])
            if not share < NOTHING:
                return share >= MADE_UP
    return False


def _longer(seconds: FloatArray, untimed: FloatArray) -> FloatArray:
    """Seconds of a phase beyond those of the rank that is waited for most, shape (n_ranks, n_steps)."""
    last = untimed.argmax(axis=0)
    found: FloatArray = seconds - seconds[last, np.arange(last.size)]
    return found


def _without_waits(phases: PhaseArrays, untimed: FloatArray) -> dict[str, FloatArray]:
    """All seconds, less those that ranks waited for whoever worked longest in no phase."""
    left = np.where(untimed.any(axis=0), nan_max(untimed) - untimed, 0.0)
    seconds = {**phases.seconds, UNTIMED: untimed}
    for name in MEETING:
        if name in seconds:
            waited = np.clip(np.nan_to_num(_longer(seconds[name], untimed)), 0.0, left)
            seconds[name] = seconds[name] - waited
            left = left - waited
    return seconds
