"""Work that no timer saw, told from waiting: few spend time in no phase while the others wait within one.

Steps are equally long on all ranks, so who spends more time in no phase than the others has shorter phases,
too. Either he was quicker and waited for the others untimed; or he worked unseen, on inputs or copies without
a timer, and the others waited for him within a phase, as they do where nobody times the exchange. Quicker
hardware is quicker in the backward as in the forward, and more so, because it is longer. Those who wait for
somebody are longer mostly in the forward, or in a later phase that they are seen to end together.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.robust import nan_max, nan_median
from rca.telemetry.own_work import UNTIMED, WORK_PHASES
from rca.telemetry.phases import OCCASIONAL_PHASES, PhaseArrays

#: Phases of a step in their order; in those from the forward on ranks may meet.
IN_ORDER = (
    "data_loading_seconds",
    "host_to_device_seconds",
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
)
MEETING = IN_ORDER[2:]
#: Without timers of both, who is quicker in one has no shorter phase to show for it.
BOTH_TIMED = {"forward_seconds", "backward_seconds"}
#: Steps in which somebody is waited for, at least; those with this share of what is usual in them tell where.
MIN_CASES, PLAIN = 6, 0.5
#: A wait is so many times what time in no phase usually differs by: of many ranks one always has most.
BEYOND_NOISE = 4.0
#: Of the wait, the first phase in which they differ makes up for so much; less than `NOTHING` is none of it.
MADE_UP, NOTHING = 0.55, 0.15
#: Ranks meet in a phase if they are this much closer at its end than where it began.
CLOSER = 0.5


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
    usual = 1.4826 * float(np.median(np.abs(beyond[known])))
    untimed = _of_few(beyond, max(apart, BEYOND_NOISE * usual))
    wait = nan_max(untimed)
    cases = wait > 0
    if np.count_nonzero(cases) < MIN_CASES:
        return phases
    cases = wait >= PLAIN * np.median(wait[cases])
    if not _meet_late(phases, untimed, cases):
        return phases
    seconds = _without_waits(phases, untimed)
    # Who has no timers did nothing that is known, which is not nothing.
    return replace(phases, seconds={**seconds, UNTIMED: np.where(known, untimed, np.nan)})


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


def _meet_late(phases: PhaseArrays, untimed: FloatArray, cases: BoolArray) -> bool:
    """Whether the others are longer mostly in the forward, or in a later phase that they end together."""
    wait = untimed.max(axis=0)
    for name in MEETING:
        if name in phases.seconds:
            made_up = nan_median(_longer(phases.seconds[name], untimed))[cases] / wait[cases]
            share = float(nan_median(made_up[:, None], axis=0)[0])
            if not share < NOTHING:
                return share >= MADE_UP and (name == MEETING[0] or _end_closer(phases, name, untimed))
    return False


def _end_closer(phases: PhaseArrays, meeting: str, untimed: FloatArray) -> bool:
    """Whether the ranks that wait are closer to each other at a phase's end than where it began.

    They began the step together, so what they did until then tells where they are, whatever their clocks say.
    """
    began = np.where(untimed > 0, np.nan, 0.0)
    for name in IN_ORDER[: IN_ORDER.index(meeting)]:
        if name in phases.seconds:
            began = began + phases.seconds[name]
    spread = _deviation(began)
    return spread > 0 and _deviation(began + phases.seconds[meeting]) <= CLOSER * spread


def _deviation(times: FloatArray) -> float:
    """How far ranks usually are from the median of their step, seconds; 0 if nothing is known."""
    apart = np.abs(times - nan_median(times))
    known = apart[np.isfinite(apart)]
    return float(np.mean(known)) if known.size else 0.0


def _longer(seconds: FloatArray, untimed: FloatArray) -> FloatArray:
    """Seconds of a phase beyond those of the rank that is waited for most, shape (n_ranks, n_steps)."""
    last = untimed.argmax(axis=0)
    found: FloatArray = seconds - seconds[last, np.arange(last.size)]
    return found


def _without_waits(phases: PhaseArrays, untimed: FloatArray) -> dict[str, FloatArray]:
    """All seconds, less those that ranks waited for whoever worked longest in no phase."""
    left = np.where(untimed.any(axis=0), nan_max(untimed) - untimed, 0.0)
    seconds = dict(phases.seconds)
    for name in MEETING:
        if name in seconds:
            waited = np.clip(np.nan_to_num(_longer(seconds[name], untimed)), 0.0, left)
            seconds[name] = seconds[name] - waited
            left = left - waited
    return seconds
