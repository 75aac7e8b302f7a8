"""Places whose signals stand out although no timer shows them late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import BoolArray
from rca.diagnosis.cause_table import CAUSE_TABLE, showing
from rca.diagnosis.explanations import places_of
from rca.diagnosis.interval_evidence import NAMES, NOMINAL, WindowSignals
from rca.diagnosis.lateness import Lateness, excess_by_phase
from rca.diagnosis.timeline import Timeline
from rca.robust import nan_median, robust_spread, zero_if_nan

#: Units from which a place is loud, and beyond a healthy machine, from which all machines are.
LOUD, ALL_LOUD = 1.5, 4.0
#: A slow port costs what transfer exceeds this share of the step, and is shown from the other share on.
USUAL_TRANSFER, LONG_TRANSFER = 0.25, 0.32
#: Least share of a step in which devices work, and least share of its peers' clock that a slow device lacks.
DEVICE_SHARE, MIN_CLOCK_LOSS = 0.5, 0.08
#: z of a port whose job spends much of its steps in transfer.
PORT_Z = 10.0
#: Resources that exceed a nominal value in healthy jobs as well.
USUALLY_BEYOND = frozenset({"collector", "device_memory"})


def loud_places(line: Timeline, signals: WindowSignals, found: Sequence[Lateness]) -> list[Lateness]:
    """Places that stand out in a signal that decides on a cause, and machines that all do.

    Parameters
    ----------
    found : list of Lateness
        Of the same timeline; their ranks are no places again.
    """
    if not np.isfinite(line.usual) or line.n_steps < 2:
        return []
    taken = {rank for each in found if not each.of_all for rank in each.ranks}
    masks = [each.steps for each in found if each.kind == "pace"] or [line.everywhere()]
    places: dict[tuple[int, ...], Lateness] = {}
    for steps in masks:
        evidence = signals.over(steps)
        for cause, row in CAUSE_TABLE.items():
            if not showing(cause) or "ranks" not in row.forms:
                continue
            for ranks in places_of(cause, row, evidence, line)[:-1]:
                units = max(float(evidence.of(ranks)[0][NAMES.index(name)]) for name in showing(cause))
                if units < LOUD or taken & set(ranks):
                    continue
                ports = row.phases.get("transfer", 0.0) > 0.5 and line.localises
                place = _port(line, ranks, steps) if ports else _place(line, signals, ranks, steps, units)
                if ranks not in places or place.z > places[ranks].z:
                    places[ranks] = place
    return [*places.values(), *_all_machines(line, signals)]


def _place(
    line: Timeline, signals: WindowSignals, ranks: tuple[int, ...], steps: BoolArray, units: float
) -> Lateness:
    """A place with what lateness its ranks have.

    Without timers it is the change of the job's pace, or what a slower clock costs at least.
    """
    if not line.localises:
        pace = DEVICE_SHARE * line.usual * _missing_clock(signals, list(ranks))
        if not steps.all():
            inside, outside = (np.nanmedian(line.work.job_step[part]) for part in (steps, ~steps))
            pace = max(float(inside - outside), pace, 0.0) * float(steps.mean())
        return Lateness("place", ranks, steps, pace, units)
    rows = list(ranks)
    usual = nan_median(line.comparison.excess[:, steps], axis=1)
    middle = float(nan_median(usual))
    spread = robust_spread(usual - middle) + 1e-9
    seconds = max(float(np.nan_to_num(nan_median(usual[rows]))), 0.0)
    phases = excess_by_phase(line, np.array(rows), steps) if seconds > 0 else {}
    return Lateness("place", ranks, steps, seconds, seconds / spread, phases)


def _missing_clock(signals: WindowSignals, ranks: list[int]) -> float:
    """Share of the peers' clock that some devices lack; 0 where it is unknown."""
    clock = signals.values.get("sm_clock_mhz")
    if clock is None or len(ranks) == clock.shape[0]:
        return 0.0
    usual = nan_median(clock, axis=1)
    peers = float(nan_median(np.delete(usual, ranks)))
    here = float(nan_median(usual[ranks]))
    lost = 1.0 - here / peers if peers > 0 and np.isfinite(here) else 0.0
    return lost if lost >= MIN_CLOCK_LOSS else 0.0


def _port(line: Timeline, ranks: tuple[int, ...], steps: BoolArray) -> Lateness:
    """A loud port matters if the job spends much of its steps in transfer."""
    share = 0.0
    # The bubbles of a pipeline count as transfer.
    if np.isfinite(line.work.transfer).any() and line.topology.n_stages == 1:
        share = line.relative(float(np.nanmedian(line.work.transfer)))
    seconds = max(share - USUAL_TRANSFER, 0.0) * line.usual
    z = PORT_Z if share > LONG_TRANSFER else 0.0
    return Lateness("place", ranks, steps, seconds, z, {"transfer": 1.0})


def _all_machines(line: Timeline, signals: WindowSignals) -> list[Lateness]:
    """All machines far beyond what a healthy one shows, in all steps."""
    nominal = signals.over(line.everywhere()).nominal
    usual = np.where(np.isfinite(nominal).mean(axis=0) > 0.5, zero_if_nan(nan_median(nominal)), 0.0)
    most = max((float(usual[NAMES.index(name)]) for name in NOMINAL - USUALLY_BEYOND), default=0.0)
    if most <= ALL_LOUD:
        return []
    return [Lateness("bound", line.everybody, line.everywhere(), 0.0, most)]
