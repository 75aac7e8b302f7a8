"""How far each rank's clock is off, seen from collectives that end for all members at once.

Nodes' clocks differ by milliseconds to seconds, so times of different nodes must not be compared
before this offset is taken away.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rca.arrays import FloatArray
from rca.telemetry.phases import PhaseArrays

# What a rank does on its own after the last collective of a step.
TAIL_PHASES = ("optimizer_seconds", "checkpoint_seconds")


def clock_offsets(phase_arrays: PhaseArrays, groups: npt.ArrayLike | None = None) -> FloatArray:
    """Estimate each rank's clock offset from the common end of the steps' collectives.

    Per step, the end of a rank's last collective on its own clock is compared with the median of its
    group; the median over steps is the offset, so a few late steps do not move it.

    Parameters
    ----------
    phase_arrays : PhaseArrays
    groups : array-like of shape (n_ranks,), int, optional
        Ranks whose collectives end together, such as pipeline stages; by default all do.

    Returns
    -------
    ndarray of shape (n_ranks,), seconds
        Positive for a clock that is ahead; subtract it from the rank's times. NaN for a rank that
        finished no step beside another one.
    """
    end = phase_arrays.start_time + phase_arrays.phase("step_seconds")
    for name in TAIL_PHASES:
        end = end - np.nan_to_num(phase_arrays.phase(name))
    known = np.isfinite(end)
    # Unix seconds leave few digits for milliseconds; differences from one origin keep them.
    end = end - (end[known].min() if known.any() else 0.0)
    group = np.zeros(phase_arrays.n_ranks, dtype=np.int64) if groups is None else np.asarray(groups)
    offsets = np.full(phase_arrays.n_ranks, np.nan)
    for one in np.unique(group):
        members = np.flatnonzero(group == one)
        offsets[members] = _offsets_of_group(end[members])
    return offsets


def _offsets_of_group(end: FloatArray) -> FloatArray:
    """Median over steps of the distance from the group's median; shape (n_members,)."""
    shared = np.isfinite(end).sum(axis=0) >= min(2, end.shape[0])
    offsets = np.full(end.shape[0], np.nan)
    if not shared.any():
        return offsets
    late = end[:, shared] - np.nanmedian(end[:, shared], axis=0)
    compared = np.isfinite(late).any(axis=1)
    offsets[compared] = np.nanmedian(late[compared], axis=1)
    return offsets
