"""The replay in plain numpy: the readable reference the kernels are held equal to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rca.whatif.graph import DependencyGraph
from rca.whatif.mix import Mix
from rca.whatif.program import Program

FloatArray = npt.NDArray[np.float64]
Work = npt.NDArray[np.floating]

LANES = 1 << 17
"""Values per operation and pass that keep the temporaries of a batch in cache."""


def replay_mix(program: Program, work: Work, ideal: FloatArray, mix: Mix) -> FloatArray:
    """Step times of a batch of scenarios without launch delays.

    Parameters
    ----------
    program : Program
    work : ndarray of shape (n_ops, n_data, n_steps), seconds
        Duration of local operations, transfer duration of grouped ones.
    ideal : ndarray of shape (n_ops,), seconds
    mix : Mix

    Returns
    -------
    ndarray of shape (n_scenarios, n_steps), seconds
        Latest final end; steps start at 0.
    """
    n_steps = work.shape[2]
    chunk = max(1, LANES // max(1, n_steps * mix.column.shape[1]))
    out = np.empty((mix.n_scenarios, n_steps))
    for first in range(0, mix.n_scenarios, chunk):
        part = slice(first, first + chunk)
        out[part] = _replay_part(program, work, ideal, mix, part)
    return out


def _replay_part(program: Program, work: Work, ideal: FloatArray, mix: Mix, part: slice) -> FloatArray:
    columns, classes = mix.column[part], mix.scenario_class[part]
    all_alike = bool((columns == columns[0]).all())
    columns = columns[:1] if all_alike else columns
    kept_anywhere = mix.keep.any(axis=(0, 2))
    kept_everywhere = mix.keep.all(axis=(0, 2))
    ends: dict[int, FloatArray] = {}
    shape = (classes.size, mix.column.shape[1], work.shape[2])
    total = np.full(shape, -np.inf)
    for unit in range(program.n_units):
        latest = _latest(program, unit, ends)
        if program.across[unit] and latest.shape[1] > 1:
            latest = latest.max(axis=1, keepdims=True)
        for index in range(program.member_start[unit], program.member_start[unit + 1]):
            op = int(program.member_op[index])
            own: FloatArray | float = ideal[op]
            if kept_anywhere[op]:
                own = work[op][columns].astype(np.float64)
                if not kept_everywhere[op]:
                    own = np.where(mix.keep[classes, op][:, :, None], own, ideal[op])
            end = latest + own
            if program.member_slot[index] >= 0:
                ends[int(program.member_slot[index])] = end
            if program.final[index]:
                np.maximum(total, end, out=total)
    return np.asarray(total.max(axis=1))


def _latest(program: Program, unit: int, ends: dict[int, FloatArray]) -> FloatArray:
    """Latest end the unit waits for; of shape (1, 1, 1) while all scenarios agree."""
    slots = program.dep_slot[program.dep_start[unit] : program.dep_start[unit + 1]]
    if not slots.size:
        return np.zeros((1, 1, 1))
    latest = ends[int(slots[0])]
    for slot in slots[1:]:
        latest = np.maximum(latest, ends[int(slot)])
    return latest


def end_times(
    graph: DependencyGraph, work: Work, delays: Work | None = None
) -> tuple[FloatArray, FloatArray]:
    """Start and end of every operation, with launch delays.

    Parameters
    ----------
    graph : DependencyGraph
    work, delays : ndarray of shape (n_ops, n_data, n_steps), seconds

    Returns
    -------
    start, end : ndarray of shape (n_ops, n_data, n_steps), seconds
        NaN for operations outside the model.
    """
    start = np.full(work.shape, np.nan)
    end = np.full(work.shape, np.nan)
    for members, across_data in graph.units():
        for op in members:
            before = graph.predecessors[op]
            ready = end[list(before)].max(axis=0) if before else np.zeros(work.shape[1:])
            start[op] = ready if delays is None else ready + delays[op]
        chosen = list(members)
        latest = start[chosen].max(axis=0)
        if across_data:
            latest = np.broadcast_to(latest.max(axis=0), latest.shape)
        end[chosen] = latest + work[chosen]
    return start, end
