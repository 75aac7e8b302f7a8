"""Do the rank numbers of a trace name its workers, and does the world size fit them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rca.arrays import IntArray
from rca.errors import InvalidWindow
from rca.whatif.meta import TraceMeta
from rca.whatif.trace import OpTrace

SHOWN = 5
"""Offending rows shown in a refusal."""


def with_own_ranks(trace: OpTrace) -> OpTrace:
    """Keep rank numbers only where each names one worker, and check the world size against the workers."""
    shared = shared_ranks(trace.rank, trace.data_rank * trace.n_stages + trace.stage)
    if shared.size:
        trace = replace(trace, rank=np.full(trace.n_ops, -1)).noted(shared_note(trace.rank[shared]))
    return trace.noted(*world_size_notes(trace.meta, trace.n_data, trace.n_stages))


def shared_note(shared: IntArray) -> str:
    """Say which rank numbers name several workers, and what follows."""
    named = ", ".join(map(str, np.unique(shared)[:8]))
    return f"column rank has {named} under several (data rank, stage): ranks are numbered in the usual order"


def world_size_notes(meta: TraceMeta, n_data: int, n_stages: int) -> list[str]:
    """Where not all sizes are given, the workers seen must still fit into the world."""
    sizes = (meta.dp_size, meta.pp_size, meta.tp_size, meta.dsp_size)
    if meta.world_size is None or None not in sizes:
        return []
    workers = n_data * n_stages
    least = workers * (meta.tp_size or 1) * (meta.dsp_size or 1)
    if meta.world_size % least == 0:
        return []
    return [
        f"metadata says world_size {meta.world_size}; {workers} workers were traced, "
        f"{least} ranks with the sizes given"
    ]


def refuse_shared_ranks(rank: IntArray, data_rank: IntArray, stage: IntArray) -> None:
    """A window's ranks are machines: one under two (data rank, stage) would blame the wrong one.

    Parameters
    ----------
    rank, data_rank, stage : ndarray of shape (n_rows,), int
        Of the `ops` table.

    Raises
    ------
    InvalidWindow
        With the first offending rows.
    """
    shared = shared_ranks(rank, data_rank * (int(stage.max(initial=0)) + 1) + stage)
    if not shared.size:
        return
    of_first = shared[rank[shared] == rank[shared[0]]]
    place = np.stack((data_rank[of_first], stage[of_first]))
    shown = of_first[np.sort(np.unique(place, axis=1, return_index=True)[1])[:SHOWN]]
    raise InvalidWindow(
        "one rank under several (dp_rank, stage)",
        table="ops",
        column="rank",
        rows=[
            {"row": int(at), "rank": int(rank[at]), "dp_rank": int(data_rank[at]), "stage": int(stage[at])}
            for at in shown
        ],
        n_rows=int(shared.size),
        expected="every rank under one dp_rank and one stage",
    )


def shared_ranks(rank: IntArray, worker: IntArray) -> IntArray:
    """Rows whose rank number also names another worker (a data rank and stage); -1 is no number.

    Returns
    -------
    ndarray of shape (n_found,), int
        Positions, in order.
    """
    given = np.flatnonzero(rank >= 0)
    if not given.size:
        return given
    names = rank[given]
    if int(names.max()) > 4 * given.size + 1_000_000:
        names = np.unique(names, return_inverse=True)[1]
    low = np.full(int(names.max()) + 1, np.iinfo(np.int64).max)
    high = np.full(low.size, -1)
    np.minimum.at(low, names, worker[given])
    np.maximum.at(high, names, worker[given])
    found: IntArray = given[low[names] != high[names]]
    return found
