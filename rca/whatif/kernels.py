"""The replay as a compiled kernel. Importing this imports numba (about a second): do it lazily.

Steps are the lanes of every inner loop. An end all steps agree on is kept as one number (*flat*), so a
scenario that leaves most operations ideal costs only what differs.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

LANES = 128
"""Steps per block: the ends alive in one block stay in the first-level cache."""


@njit(cache=True, nogil=True, error_model="numpy")
def replay_range(
    dep_start: npt.NDArray[np.int32],
    dep_slot: npt.NDArray[np.int32],
    member_start: npt.NDArray[np.int32],
    member_op: npt.NDArray[np.int32],
    member_slot: npt.NDArray[np.int32],
    final: npt.NDArray[np.bool_],
    across: npt.NDArray[np.bool_],
    n_slots: int,
    work: npt.NDArray[np.float32],
    ideal: npt.NDArray[np.float64],
    keep: npt.NDArray[np.bool_],
    scenario_class: npt.NDArray[np.int32],
    column: npt.NDArray[np.int32],
    first: int,
    last: int,
    out: npt.NDArray[np.float64],
) -> None:
    """Evaluate scenarios ``first .. last - 1`` into ``out[first:last]``.

    Parameters
    ----------
    dep_start, dep_slot, member_start, member_op, member_slot, final, across, n_slots
        As in `rca.whatif.program.Program`.
    work : ndarray of shape (n_ops, n_data, n_steps), float32, seconds
    ideal : ndarray of shape (n_ops,), seconds
    keep : ndarray of shape (n_classes, n_ops, C), bool
    scenario_class : ndarray of shape (n_scenarios,)
    column : ndarray of shape (n_scenarios, C)
    out : ndarray of shape (n_scenarios, n_steps), seconds
    """
    n_steps = work.shape[2]
    n_columns = column.shape[1]
    lanes = min(LANES, n_steps)
    ends = np.empty((n_slots, n_columns, lanes))
    is_flat = np.empty((n_slots, n_columns), np.bool_)
    flat = np.empty((n_slots, n_columns))
    latest = np.empty(lanes)
    total = np.empty(lanes)
    scratch = np.empty(lanes)
    for scenario in range(first, last):
        kind = scenario_class[scenario]
        for base in range(0, n_steps, lanes):
            n = min(lanes, n_steps - base)
            flat_total = -np.inf
            total[:n] = -np.inf
            for unit in range(across.size):
                dep_from, dep_to = dep_start[unit], dep_start[unit + 1]
                together = across[unit]
                for group in range(1 if together else n_columns):
                    col_from = 0 if together else group
                    col_to = n_columns if together else group + 1
                    # Latest end waited for: one number for the flat ones, lanes for the others.
                    floor = -np.inf if dep_to > dep_from else 0.0
                    n_lanes = 0
                    for dep in range(dep_from, dep_to):
                        slot = dep_slot[dep]
                        for col in range(col_from, col_to):
                            if is_flat[slot, col]:
                                floor = max(floor, flat[slot, col])
                            elif n_lanes == 0:
                                n_lanes = 1
                                for lane in range(n):
                                    latest[lane] = ends[slot, col, lane]
                            else:
                                n_lanes += 1
                                for lane in range(n):
                                    end = ends[slot, col, lane]
                                    latest[lane] = end if end > latest[lane] else latest[lane]
                    if n_lanes > 0 and floor > -np.inf:
                        for lane in range(n):
                            latest[lane] = floor if floor > latest[lane] else latest[lane]
                    for member in range(member_start[unit], member_start[unit + 1]):
                        op = member_op[member]
                        slot = member_slot[member]
                        for col in range(col_from, col_to):
                            kept = keep[kind, op, col]
                            if n_lanes == 0 and not kept:
                                end = floor + ideal[op]
                                if slot >= 0:
                                    is_flat[slot, col] = True
                                    flat[slot, col] = end
                                if final[member]:
                                    flat_total = max(flat_total, end)
                                continue
                            row = column[scenario, col]
                            if slot >= 0:
                                is_flat[slot, col] = False
                            if n_lanes == 0:
                                for lane in range(n):
                                    scratch[lane] = floor + np.float64(work[op, row, base + lane])
                            elif kept:
                                for lane in range(n):
                                    scratch[lane] = latest[lane] + np.float64(work[op, row, base + lane])
                            else:
                                constant = ideal[op]
                                for lane in range(n):
                                    scratch[lane] = latest[lane] + constant
                            if slot >= 0:
                                for lane in range(n):
                                    ends[slot, col, lane] = scratch[lane]
                            if final[member]:
                                for lane in range(n):
                                    end = scratch[lane]
                                    total[lane] = end if end > total[lane] else total[lane]
            for lane in range(n):
                out[scenario, base + lane] = max(total[lane], flat_total)
