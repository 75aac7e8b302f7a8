"""Own work per rank and step: the part of a step that neither waits nor transfers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.robust import group_members, nan_median, nan_min, zero_if_nan
from rca.window.schema import OCCASIONAL_PHASES
from rca.window.times.phases import PhaseArrays

SERIAL_PHASES: tuple[str, ...] = (
    "data_loading_seconds",
    "optimizer_seconds",
    "checkpoint_seconds",
    "gc_seconds",
)
"""Phases a pipeline runs once per step, not once per microbatch."""
WORK_PHASES: tuple[str, ...] = (
    *SERIAL_PHASES,
    "host_to_device_seconds",
    "forward_seconds",
    "backward_seconds",
)
UNTIMED = "untimed_seconds"
"""Work that no timer covers, found by `rca.window.times.untimed_work`; no column of a window."""
#: Phases that every rank of a stage has, timed or not. Inputs may be one rank's work for all.
OF_EVERY_RANK = frozenset({"forward_seconds", "backward_seconds"})
#: A rank that times a phase in at most this share of its steps has no timer for it.
MIN_TIMED_STEPS = 0.1
#: If at most this share of a stage times another phase, the ranks without a timer do not have the phase.
MIN_TIMED_RANKS = 0.5


@dataclass(frozen=True)
class OwnWork:
    """Own work of every rank, and the transfer of the group.

    Attributes
    ----------
    own, serial : ndarray of shape (n_ranks, n_steps), seconds
        `serial` is the part of `own` that does not repeat per microbatch. A phase that a rank does not time
        counts as the median of its stage, in both.
    transfer : ndarray of shape (n_steps,), seconds, or None
        None where no communication was measured.
    split : bool
        Whether waiting and transfer were measured separately.
    informative : bool
        Whether `own` has any value.
    """

    own: FloatArray
    serial: FloatArray
    transfer: FloatArray | None
    split: bool
    informative: bool
    notes: tuple[str, ...]


def own_work(phases: PhaseArrays, stage: IntArray) -> OwnWork:
    """Own work per cell: the whole step less its communication, otherwise the sum of the measured phases.

    The whole step less its communication also contains work without a timer.

    Parameters
    ----------
    stage : ndarray of shape (n_ranks,), int
        Pipeline stage of each rank: a phase without a timer counts as the median of its stage.
    """
    step = phases.phase("step_seconds")
    wait = phases.phase("communication_wait_seconds")
    transferred = phases.phase("communication_transfer_seconds")
    both = phases.phase("communication_seconds")
    transferred = np.where(np.isnan(transferred), both - wait, transferred)
    split = np.isfinite(wait)
    communication = np.where(split, wait + zero_if_nan(transferred), both)
    own = step - communication
    summed, serial = _sums(phases, stage)
    if np.isfinite(step).any():
        # A step that began and did not end has no duration to compare.
        summed = np.where(np.isfinite(step), summed, np.nan)
    if phases.n_ranks == 1:
        own = np.where(np.isnan(own), step, own)
    own, notes = _fill(own, summed)
    transfer = _transfer(split, transferred, both)
    return OwnWork(
        np.maximum(own, 0.0), serial, transfer, bool(split.any()), bool(np.isfinite(own).any()), notes
    )


def _sums(phases: PhaseArrays, stage: IntArray) -> tuple[FloatArray, FloatArray]:
    """Sum of the measured work phases (NaN where none) and of the serial ones among them (0 where none)."""
    total = np.zeros(phases.present.shape)
    serial = np.zeros(phases.present.shape)
    known = np.zeros(phases.present.shape, dtype=bool)
    for name in (*WORK_PHASES, UNTIMED):
        values = phases.seconds.get(name)
        if values is None:
            continue
        known |= np.isfinite(values)
        if name in WORK_PHASES and name not in OCCASIONAL_PHASES:
            values = _as_others(name, values, phases.present, stage)
        values = zero_if_nan(values)
        total += values
        if name in SERIAL_PHASES:
            serial += values
    return np.where(known, total, np.nan), serial


def _as_others(name: str, seconds: FloatArray, present: BoolArray, stage: IntArray) -> FloatArray:
    """A phase with its stage's median on ranks that do not time it, so that sums are comparable."""
    measured = np.isfinite(seconds)
    timed = measured.sum(axis=1) > MIN_TIMED_STEPS * present.sum(axis=1)
    if timed.all() or not timed.any():
        return seconds
    filled = seconds.copy()
    for members in group_members(stage):
        share = float(timed[members].mean())
        if share > MIN_TIMED_RANKS or (name in OF_EVERY_RANK and share > 0):
            rows = members[~timed[members]]
            usual = nan_median(seconds[members[timed[members]]])
            filled[rows] = np.where(measured[rows], seconds[rows], usual)
    return filled


def _fill(own: FloatArray, summed: FloatArray) -> tuple[FloatArray, tuple[str, ...]]:
    """Fill cells without communication from summed phases, shifted to the level of cells with both."""
    lacking = np.isnan(own) & np.isfinite(summed)
    if not lacking.any():
        return own, ()
    residue = own - summed
    residue = residue[np.isfinite(residue)]
    level = float(np.median(residue)) if residue.size else 0.0
    note = (
        f"{int(lacking.sum())} rank-steps without measured communication: own work is the sum of their phases"
    )
    return np.where(lacking, summed + level, own), (note,)


def _transfer(split: BoolArray, transferred: FloatArray, both: FloatArray) -> FloatArray | None:
    """Transfer of the group per step: the median over members, which differ by noise only.

    If communication is not split, the minimum: the last rank to arrive does not wait, so its communication is
    all transfer.
    """
    if split.any():
        return zero_if_nan(nan_median(np.where(split, transferred, np.nan)))
    if np.isfinite(both).any():
        return zero_if_nan(nan_min(both))
    return None
