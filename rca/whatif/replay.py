"""The replay in plain numpy: the readable reference the kernels are held equal to."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.whatif.graph import DependencyGraph
from rca.whatif.mix import Mix, Work
from rca.whatif.program import Program

LANES = 1 << 17
"""Values per operation and pass that keep the temporaries of a batch in cache."""


def replay_mix(program: Program, mix: Mix) -> FloatArray:
    """Step times of a batch of scenarios without launch delays.

    Returns
    -------
    ndarray of shape (n_scenarios, n_steps), seconds
        Latest final end; steps start at 0.
    """
    chunk = max(1, LANES // max(1, mix.work.shape[2] * mix.row.shape[1]))
    out = np.empty((mix.n_scenarios, mix.n_steps))
    for first in range(0, mix.n_scenarios, chunk):
        part = slice(first, first + chunk)
        out[part] = _replay_part(program, mix, part)
    return out


def _replay_part(program: Program, mix: Mix, part: slice) -> FloatArray:
    row, keep = mix.row[part], mix.keep[part]
    row = row[:1] if (row == row[0]).all() else row
    kept_anywhere = np.asarray(keep.any(axis=(0, 2)))
    kept_everywhere = np.asarray(keep.all(axis=(0, 2)))
    ends: dict[int, FloatArray] = {}
    total = np.full((keep.shape[0], keep.shape[2], mix.work.shape[2]), -np.inf)
    for unit in range(program.n_units):
        latest = _latest(program, unit, ends)
        if program.across[unit]:
            latest = _across_data(latest, mix.fold)
        for index in range(program.member_start[unit], program.member_start[unit + 1]):
            op = int(program.member_op[index])
            own: FloatArray | float = mix.ideal[op]
            if kept_anywhere[op]:
                own = mix.work[op][row].astype(np.float64)
                if not kept_everywhere[op]:
                    own = np.where(keep[:, op, :, None], own, mix.ideal[op])
            end = latest + own
            if program.member_slot[index] >= 0:
                ends[int(program.member_slot[index])] = end
            if program.final[index]:
                np.maximum(total, end, out=total)
    by_rank = total.reshape(total.shape[0], -1, mix.n_steps)
    return np.asarray(by_rank.max(axis=1))


def _across_data(latest: FloatArray, fold: int) -> FloatArray:
    """Take the latest over all columns and over the data ranks folded into each."""
    latest = latest.max(axis=1, keepdims=True)
    if fold == 1 or latest.shape[2] == 1:
        return latest
    steps = latest.reshape(latest.shape[0], 1, fold, -1).max(axis=2)
    return np.tile(steps, (1, 1, fold))


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
