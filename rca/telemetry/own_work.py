"""Own work per rank and step: the part of a step that neither waits nor transfers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.robust import nan_median, nan_min
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


@dataclass(frozen=True)
class OwnWork:
    """Own work and the group's transfer, as far as they are measured.

    Attributes
    ----------
    own, serial : ndarray of shape (n_ranks, n_steps), seconds
        `serial` is the measured part of `own` that does not repeat per microbatch.
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


def own_work(phases: PhaseArrays) -> OwnWork:
    """Best available own work per cell: whole step less communication, else the sum of measured phases.

    Taking the communication off the whole step keeps work nobody measured with the rank that did it.
    """
    step = phases.phase("step_seconds")
    wait = phases.phase("communication_wait_seconds")
    moved = phases.phase("communication_transfer_seconds")
    both = phases.phase("communication_seconds")
    moved = np.where(np.isnan(moved), both - wait, moved)
    split = np.isfinite(wait)
    communication = np.where(split, wait + np.nan_to_num(moved), both)
    own = step - communication
    summed, serial = _sums(phases)
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


def _sums(phases: PhaseArrays) -> tuple[FloatArray, FloatArray]:
    """Sum of the measured work phases (NaN where none) and of the serial ones among them (0 where none)."""
    total = np.zeros(phases.present.shape)
    serial = np.zeros(phases.present.shape)
    known = np.zeros(phases.present.shape, dtype=bool)
    for name in (*WORK_PHASES, UNTIMED):
        values = phases.seconds.get(name)
        if values is None:
            continue
        known |= np.isfinite(values)
        values = np.nan_to_num(_as_others(name, values))
        total += values
        if name in SERIAL_PHASES:
            serial += values
    return np.where(known, total, np.nan), serial


def _as_others(name: str, seconds: FloatArray) -> FloatArray:
    """A phase with the others' median on ranks that never timed it: sums are compared between ranks."""
    timed = np.isfinite(seconds).any(axis=1, keepdims=True)
    if timed.all() or not timed.any() or name in OCCASIONAL_PHASES:
        return seconds
    return np.where(timed, seconds, nan_median(seconds))


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
