"""The replay as a compiled kernel. Importing this module imports numba, which takes about a second.

The inner loops run over steps (lanes). If an end is equal in all steps, one number is kept (*flat*). A
scenario in which most operations are ideal therefore costs little.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rca.arrays import BoolArray, FloatArray, Seconds32
from rca.errors import MissingExtra

try:
    from numba import njit
except ImportError as error:
    raise MissingExtra("compiled replays need numba", hint="pip install 'straggler-rca[compiled]'") from error

LANES_PER_BLOCK = 256
"""The ends of one block fit into the first-level cache."""


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _latest_end(
    dep_slot: npt.NDArray[np.int32],
    dep_from: int,
    dep_to: int,
    col_from: int,
    col_to: int,
    n_columns: int,
    is_flat: BoolArray,
    flat: FloatArray,
    ends: FloatArray,
    latest: int,
    n: int,
) -> tuple[float, int]:
    """Latest end of dependencies: ``(number, -1)`` if equal in all lanes, else ``(-inf, row of ends)``."""
    floor = -np.inf if dep_to > dep_from else 0.0
    source = -1
    for dep in range(dep_from, dep_to):
        for col in range(col_from, col_to):
            row = dep_slot[dep] * n_columns + col
            if is_flat[row]:
                floor = max(floor, flat[row])
            elif source < 0:
                source = row
            else:
                for lane in range(n):
                    end, other = ends[row, lane], ends[source, lane]
                    ends[latest, lane] = end if end > other else other
                source = latest
    if source >= 0 and floor > -np.inf:
        for lane in range(n):
            end = ends[source, lane]
            ends[latest, lane] = end if end > floor else floor
        source = latest
    return floor, source


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _meet(ends: FloatArray, source: int, latest: int, fold: int, n_steps: int) -> None:
    """Write the latest end over the folded data ranks of row `source` into row `latest`."""
    for step in range(n_steps):
        ends[latest, step] = ends[source, step]
    for part in range(1, fold):
        at = part * n_steps
        for step in range(n_steps):
            end, other = ends[source, at + step], ends[latest, step]
            ends[latest, step] = end if end > other else other
    for part in range(1, fold):
        at = part * n_steps
        for step in range(n_steps):
            ends[latest, at + step] = ends[latest, step]


@njit(cache=True, nogil=True, error_model="numpy")
def replay_range(  # noqa: C901  (one fused loop: function calls inside would dominate its time)
    dep_start: npt.NDArray[np.int32],
    dep_slot: npt.NDArray[np.int32],
    member_start: npt.NDArray[np.int32],
    member_op: npt.NDArray[np.int32],
    member_slot: npt.NDArray[np.int32],
    final: BoolArray,
    across: BoolArray,
    n_slots: int,
    work: Seconds32,
    ideal: FloatArray,
    keep: BoolArray,
    row: npt.NDArray[np.int32],
    fold: int,
    first: int,
    last: int,
    out: FloatArray,
) -> None:
    """Evaluate scenarios ``first .. last - 1`` into ``out[first:last]``.

    Parameters
    ----------
    dep_start, dep_slot, member_start, member_op, member_slot, final, across, n_slots
        As in `rca.whatif.graph.graph.Program`.
    work, ideal, keep, row, fold
        As in `rca.whatif.graph.replay.ScenarioBatch`.
    out : ndarray of shape (n_scenarios, n_lanes / fold), seconds
    """
    n_lanes = work.shape[2]
    n_columns = row.shape[1]
    # Folded data ranks synchronise inside a column, so a block holds all of them.
    lanes = n_lanes if fold > 1 else min(LANES_PER_BLOCK, n_lanes)
    n_steps = n_lanes // fold
    # One row of lanes per slot and column, one for the latest end of the dependencies, one as scratch.
    latest = n_slots * n_columns
    scratch = latest + 1
    ends = np.empty((latest + 2, lanes))
    is_flat = np.empty(latest, np.bool_)
    flat = np.empty(latest)
    total = np.empty(lanes)
    for scenario in range(first, last):
        for base in range(0, n_lanes, lanes):
            n = min(lanes, n_lanes - base)
            flat_total = -np.inf
            total[:n] = -np.inf
            for unit in range(across.size):
                together = across[unit]
                for group in range(1 if together else n_columns):
                    col_from = 0 if together else group
                    col_to = n_columns if together else group + 1
                    floor, source = _latest_end(
                        dep_slot, dep_start[unit], dep_start[unit + 1],
                        col_from, col_to, n_columns, is_flat, flat, ends, latest, n,
                    )  # fmt: skip
                    if together and fold > 1 and source >= 0:
                        _meet(ends, source, latest, fold, n_steps)
                        source = latest
                    for member in range(member_start[unit], member_start[unit + 1]):
                        op = member_op[member]
                        slot = member_slot[member]
                        for col in range(col_from, col_to):
                            kept = keep[scenario, op, col]
                            here = slot * n_columns + col
                            if source < 0 and not kept:
                                end = floor + ideal[op]
                                if slot >= 0:
                                    is_flat[here] = True
                                    flat[here] = end
                                if final[member]:
                                    flat_total = max(flat_total, end)
                                continue
                            if slot < 0:
                                here = scratch
                            else:
                                is_flat[here] = False
                            if kept:
                                held = row[scenario, col]
                                if source < 0:
                                    for lane in range(n):
                                        ends[here, lane] = floor + np.float64(work[op, held, base + lane])
                                else:
                                    for lane in range(n):
                                        ends[here, lane] = ends[source, lane] + np.float64(
                                            work[op, held, base + lane]
                                        )
                            else:
                                constant = ideal[op]
                                for lane in range(n):
                                    ends[here, lane] = ends[source, lane] + constant
                            if final[member]:
                                for lane in range(n):
                                    end = ends[here, lane]
                                    total[lane] = end if end > total[lane] else total[lane]
            for lane in range(n):
                total[lane] = max(total[lane], flat_total)
            if fold == 1:
                for lane in range(n):
                    out[scenario, base + lane] = total[lane]
            else:
                for step in range(n_steps):
                    out[scenario, step] = total[step]
                for lane in range(n_steps, n):
                    out[scenario, lane % n_steps] = max(out[scenario, lane % n_steps], total[lane])
