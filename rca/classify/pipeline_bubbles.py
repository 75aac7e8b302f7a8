"""Pipelines whose stages end together within a phase, so timers do not separate own work from waiting.

The backward's timer may include receiving gradients, and the optimizer's waiting for their global norm. Then
every stage seems to work as long as the slowest one. Forwards may still differ: stages are unequal, forwards
include waiting, or layers are frozen or recomputed. Only traced operations, or timers of the receiving,
would separate these.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.robust import group_members, nan_max, nan_median, nan_min
from rca.telemetry.hidden_waits import BEFORE_EXCHANGE, MAX_END_RATIO, MIN_BEGIN_SPREAD, MIN_CASES, OPTIMIZER
from rca.telemetry.job import Topology
from rca.telemetry.phases import PhaseArrays

FORWARD, BACKWARD = BEFORE_EXCHANGE[-2:]
#: Forwards of a replica's stages differ if the difference is this share of a usual forward, and
#: `MIN_BEGIN_SPREAD` of the step.
UNEQUAL = 0.2
#: Stages that are equally busy by design vary from step to step. Stages that wait for each other vary less at
#: their end than in their forward, by this factor.
STEADIER = 0.7


def stages_end_together(phases: PhaseArrays, topology: Topology, step_seconds: float) -> bool:
    """Whether a pipeline's stages wait for each other within phases of work.

    Parameters
    ----------
    phases : PhaseArrays
    topology : Topology
    step_seconds : float
        The job's usual step.
    """
    if topology.n_stages == 1 or not phases.seconds.keys() >= {FORWARD, BACKWARD} or not step_seconds > 0:
        return False
    forward, backward = phases.seconds[FORWARD], phases.seconds[BACKWARD]
    known = np.isfinite(forward) & np.isfinite(backward)
    forward = np.where(known, forward, np.nan)
    work = np.where(
        known, sum(np.nan_to_num(phases.phase(name)) for name in (*BEFORE_EXCHANGE, OPTIMIZER)), np.nan
    )
    return _equally_busy(forward, work, topology, MIN_BEGIN_SPREAD * step_seconds) and _steadier(
        forward, work, topology.stage
    )


def _equally_busy(forward: FloatArray, work: FloatArray, topology: Topology, apart: float) -> bool:
    """Whether a replica's stages work equally long although their forwards differ."""
    ratios = []
    for members in group_members(topology.data_rank):
        usual = nan_median(forward[members])
        differing, ends = (nan_max(part[members]) - nan_min(part[members]) for part in (forward, work))
        cases = differing > np.maximum(apart, UNEQUAL * usual)
        ratios.append(ends[cases] / differing[cases])
    found = np.concatenate(ratios)
    return found.size >= MIN_CASES and bool(np.median(found) <= MAX_END_RATIO)


def _steadier(forward: FloatArray, work: FloatArray, stage: IntArray) -> bool:
    """Whether stages vary less against each other from step to step at their end than in their forward.

    Each stage is represented by its last replica, which waits for no other replica.
    """
    jitter = []
    for seconds in (forward, work):
        last = np.stack([nan_max(seconds[members]) for members in group_members(stage)])
        relative = last - nan_median(last)
        relative = np.abs(relative - nan_median(relative, axis=1)[:, None])
        jitter.append(float(np.nansum(nan_median(relative, axis=1))))
    return jitter[1] <= STEADIER * jitter[0]
