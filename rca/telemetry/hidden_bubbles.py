"""A pipeline's bubbles booked as work: all its stages seem equally busy, though some have more to compute.

Where the backward's timer holds the receiving of gradients, and the optimizer's the wait for the norm of all
of them, every stage works for as long as the one that has most to do. The forward tells them apart still.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.robust import group_members, nan_median
from rca.telemetry.job import Topology

LOADING, COPY, FORWARD, BACKWARD, OPTIMIZER = (
    f"{name}_seconds" for name in ("data_loading", "host_to_device", "forward", "backward", "optimizer")
)
#: Work of a pipeline's stages is equal if it differs, in the median, by so much less than their forward, in
#: so many cases.
EQUAL, MIN_CASES = 0.3, 6


def bubbles_in_work(
    seconds: Mapping[str, FloatArray], topology: Topology, apart: float
) -> dict[str, FloatArray]:
    """Waiting within the backward and the optimizer; empty where there is none to be seen.

    A stage's backward is taken to be as many times its forward as where that is least: with least bubbles.
    What is left beyond it is waiting, less what even the stage that waits least has of it: that may as well
    be a backward that is slow by itself.

    Parameters
    ----------
    seconds : mapping of str to ndarray of shape (n_ranks, n_steps), seconds
        By phase column.
    topology : Topology
    apart : float, seconds
        Forwards that differ by more tell whether the stages' work does.

    Returns
    -------
    dict of str to ndarray of shape (n_ranks, n_steps), seconds
    """
    if topology.n_stages == 1 or not seconds.keys() >= {FORWARD, BACKWARD}:
        return {}
    forward, backward = seconds[FORWARD], seconds[BACKWARD]
    nothing = np.zeros(forward.shape)
    known = np.isfinite(forward) & np.isfinite(backward) & (forward > 0)
    replicas = group_members(topology.data_rank)
    work = sum((np.nan_to_num(seconds.get(name, nothing)) for name in (LOADING, COPY, OPTIMIZER)), forward)
    if not _equally_busy(forward, work + backward, known, replicas, apart):
        return {}
    optimizer = np.nan_to_num(seconds.get(OPTIMIZER, nothing))
    backward_work = _usual_ratio(backward, forward, known, topology.stage) * np.where(known, forward, 0.0)
    in_backward, in_optimizer = nothing.copy(), nothing.copy()
    for members in replicas:
        complete = known[members].all(axis=0)
        later = optimizer[members] - optimizer[members].min(axis=0)
        beyond = np.maximum(backward[members] - backward_work[members] + later, 0.0)
        waited = np.where(complete, beyond - beyond.min(axis=0), 0.0)
        in_optimizer[members] = np.minimum(waited, later)
        in_backward[members] = np.minimum(waited - in_optimizer[members], np.nan_to_num(backward[members]))
    held = {BACKWARD: in_backward, OPTIMIZER: in_optimizer}
    return {name: waited for name, waited in held.items() if waited.any()}


def _equally_busy(
    forward: FloatArray, work: FloatArray, known: BoolArray, replicas: list[IntArray], apart: float
) -> bool:
    """Whether a replica's stages work equally long where their forwards do not take equally long."""
    ratios = []
    for members in replicas:
        complete = known[members].all(axis=0)
        differing = np.ptp(forward[members][:, complete], axis=0)
        cases = differing > apart
        ratios.append(np.ptp(work[members][:, complete], axis=0)[cases] / differing[cases])
    found = np.concatenate(ratios)
    return found.size >= MIN_CASES and bool(np.median(found) <= EQUAL)


def _usual_ratio(backward: FloatArray, forward: FloatArray, known: BoolArray, stage: IntArray) -> float:
    """How many times its forward a stage's backward takes, of the stage where that is least."""
    ratio = np.divide(backward, forward, out=np.full(forward.shape, np.nan), where=known)
    usual = nan_median(ratio, axis=1)
    stages = [usual[members][np.isfinite(usual[members])] for members in group_members(stage)]
    return min(float(np.median(held)) for held in stages if held.size)
