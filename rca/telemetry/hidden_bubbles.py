"""A pipeline's bubbles booked as work: all its stages seem equally busy, though some have more to compute.

Where the backward's timer holds the receiving of gradients, and the optimizer's the wait for the norm of all
of them, every stage works for as long as the one that has most to do. The forward tells them apart still.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.robust import group_members, nan_max, nan_median, nan_min
from rca.telemetry.job import Topology

LOADING, COPY, FORWARD, BACKWARD, OPTIMIZER = (
    f"{name}_seconds" for name in ("data_loading", "host_to_device", "forward", "backward", "optimizer")
)
#: Work of a pipeline's stages is equal if it differs, in the median, by so much less than their forward, in
#: so many cases.
EQUAL, MIN_CASES = 0.3, 6
#: Forwards differ if they do by this share: a stage whose backward is a little cheaper may have more to do.
UNEQUAL = 0.2
#: Stages that are equally busy by design are each a little early and late; those that wait for each other are
#: less so at their end than in their forward, by this factor.
STEADIER = 0.7
#: A backward takes about twice its forward, and more with recomputation or bubbles; where it takes less than
#: its forward, layers are frozen, and stages are not alike.
LEAST_RATIO = 1.0


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
    forward, backward = (np.where(known, values, np.nan) for values in (forward, backward))
    replicas = group_members(topology.data_rank)
    work = sum((np.nan_to_num(seconds.get(name, nothing)) for name in (LOADING, COPY, OPTIMIZER)), forward)
    work = work + backward
    if not (_equally_busy(forward, work, replicas, apart) and _end_together(forward, work, topology.stage)):
        return {}
    ratio = _usual_ratio(backward, forward, topology.stage)
    if ratio < LEAST_RATIO:
        return {}
    optimizer = seconds.get(OPTIMIZER, nothing)
    in_backward, in_optimizer = nothing.copy(), nothing.copy()
    for members in replicas:
        # Where not all of them time it, nobody is known to be longer in it.
        later = np.nan_to_num(optimizer[members] - optimizer[members].min(axis=0))
        beyond = np.maximum(backward[members] - ratio * forward[members] + later, 0.0)
        waited = np.nan_to_num(beyond - nan_min(beyond))
        in_optimizer[members] = np.minimum(waited, later)
        in_backward[members] = np.minimum(waited - in_optimizer[members], np.nan_to_num(backward[members]))
    for members in group_members(topology.stage):
        # Who has no timer for it waits as his stage does.
        usual = np.nan_to_num(nan_median(np.where(known[members], in_backward[members], np.nan)))
        in_backward[members] = np.where(known[members], in_backward[members], usual)
    held = {BACKWARD: in_backward, OPTIMIZER: in_optimizer}
    return {name: waited for name, waited in held.items() if waited.any()}


def _equally_busy(forward: FloatArray, work: FloatArray, replicas: list[IntArray], apart: float) -> bool:
    """Whether a replica's stages work equally long though their forwards differ."""
    ratios = []
    for members in replicas:
        usual = nan_median(forward[members])
        differing, ends = (nan_max(part[members]) - nan_min(part[members]) for part in (forward, work))
        cases = differing > np.maximum(apart, UNEQUAL * usual)
        ratios.append(ends[cases] / differing[cases])
    found = np.concatenate(ratios)
    return found.size >= MIN_CASES and bool(np.median(found) <= EQUAL)


def _end_together(forward: FloatArray, work: FloatArray, stage: IntArray) -> bool:
    """Whether stages vary less against each other from step to step at their end than in their forward.

    Of each stage counts the replica that is last, which waits for no other replica in its exchange.
    """
    jitter = []
    for seconds in (forward, work):
        last = np.stack([nan_max(seconds[members]) for members in group_members(stage)])
        relative = last - nan_median(last)
        relative = np.abs(relative - nan_median(relative, axis=1)[:, None])
        jitter.append(float(np.nansum(nan_median(relative, axis=1))))
    return jitter[1] <= STEADIER * jitter[0]


def _usual_ratio(backward: FloatArray, forward: FloatArray, stage: IntArray) -> float:
    """How many times its forward a stage's backward takes, of the stage where that is least."""
    usual = nan_median(backward / forward, axis=1)
    stages = [usual[members][np.isfinite(usual[members])] for members in group_members(stage)]
    return min(float(np.median(held)) for held in stages if held.size)
