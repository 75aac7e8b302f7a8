"""Own work per rank and step: the part of a step that neither waits nor transfers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.robust import group_members, nan_median, nan_min
from rca.telemetry.phases import OCCASIONAL_PHASES, PhaseArrays

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
"""Work that no timer saw, found by `rca.telemetry.untimed_work`; no column of a window."""
#: What every rank of a stage does, timed or not; inputs may be one rank's work for all.
EVERYBODY_DOES = frozenset({"forward_seconds", "backward_seconds"})
#: Who times a phase in less than this share of his steps does not time it. Of a phase that not everybody
#: does, more than this share of a stage times it, or whoever has no timer does not do it.
SELDOM, MOST = 0.1, 0.5


@dataclass(frozen=True)
class OwnWork:
    """Own work and the group's transfer, as far as they are measured.

    Attributes
    ----------
    own, serial : ndarray of shape (n_ranks, n_steps), seconds
        `serial` is the part of `own` that does not repeat per microbatch, as far as it was timed by the rank
        or, as in `own`, by the others of its stage.
    transfer : ndarray of shape (n_steps,), seconds, or None
        None where no communication was measured.
    split : bool
        Whether waiting was told apart from transferring.
    informative : bool
        Whether `own` tells ranks apart at all.
    """

    own: FloatArray
    serial: FloatArray
    transfer: FloatArray | None
    split: bool
    informative: bool
    notes: tuple[str, ...]


def own_work(phases: PhaseArrays, stage: IntArray) -> OwnWork:
    """Best available own work per cell: whole step less communication, else the sum of measured phases.

    Taking the communication off the whole step keeps work nobody measured with the rank that did it.

    Parameters
    ----------
    phases : PhaseArrays
    stage : ndarray of shape (n_ranks,), int
        Pipeline stage of each rank: a phase without a timer takes as long as in the rank's own stage.
    """
    step = phases.phase("step_seconds")
    wait = phases.phase("communication_wait_seconds")
    moved = phases.phase("communication_transfer_seconds")
    both = phases.phase("communication_seconds")
    moved = np.where(np.isnan(moved), both - wait, moved)
    split = np.isfinite(wait)
    communication = np.where(split, wait + np.nan_to_num(moved), both)
    own = step - communication
    summed, serial = _sums(phases, stage)
    if np.isfinite(step).any():
        # A step somebody began and never finished has no length to compare.
        summed = np.where(np.isfinite(step), summed, np.nan)
    if phases.n_ranks == 1:
        own = np.where(np.isnan(own), step, own)
    own, notes = _fill(own, summed)
    transfer = _transfer(split, moved, both)
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
        values = np.nan_to_num(values)
        total += values
        if name in SERIAL_PHASES:
            serial += values
    return np.where(known, total, np.nan), serial


def _as_others(name: str, seconds: FloatArray, present: BoolArray, stage: IntArray) -> FloatArray:
    """A phase with its stage's median on ranks that do not time it: sums are compared between ranks."""
    measured = np.isfinite(seconds)
    timed = measured.sum(axis=1) > SELDOM * present.sum(axis=1)
    if timed.all() or not timed.any():
        return seconds
    filled = seconds.copy()
    for members in group_members(stage):
        share = float(timed[members].mean())
        if share > MOST or (name in EVERYBODY_DOES and share > 0):
            rows = members[~timed[members]]
            usual = nan_median(seconds[members[timed[members]]])
            filled[rows] = np.where(measured[rows], seconds[rows], usual)
    return filled


def _fill(own: FloatArray, summed: FloatArray) -> tuple[FloatArray, tuple[str, ...]]:
    """Fill cells without communication from summed phases, on the level of the cells that have both."""
    lacking = np.isnan(own) & np.isfinite(summed)
    if not lacking.any():
        return own, ()
    residue = own - summed
    residue = residue[np.isfinite(residue)]
    level = float(np.median(residue)) if residue.size else 0.0
    note = f"{int(lacking.sum())} rank-steps without measured communication: own work summed from phases"
    return np.where(lacking, summed + level, own), (note,)


def _transfer(split: BoolArray, moved: FloatArray, both: FloatArray) -> FloatArray | None:
    """Transfer of the group per step: members agree on it up to noise, so the median, else the minimum.

    In unsplit communication the last rank to arrive waits for nobody: its share is all transfer.
    """
    if split.any():
        return np.nan_to_num(nan_median(np.where(split, moved, np.nan)))
    if np.isfinite(both).any():
        return np.nan_to_num(nan_min(both))
    return None
