"""The step of a pipeline whose layers are spread evenly over its stages."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.recovery.option import UNKNOWN_GAIN, Gain
from rca.recovery.situation import Situation
from rca.recovery.work_shares import scaling_seconds
from rca.robust import largest_of_each
from rca.window.job import Topology


def balancing_gain(situation: Situation) -> Gain:
    """What an even spread of the layers saves, replayed; unknown without the phases of a pipeline's ranks.

    Layers move to other stages and take their work along. With few microbatches the stages work one after
    another: then the step is the sum of their work, and hardly becomes shorter.
    """
    replay, topology = situation.replay, situation.topology
    if replay is None or topology is None or not replay.informative or topology.n_stages < 2:
        return UNKNOWN_GAIN
    compute = scaling_seconds(replay)
    if compute is None:
        return UNKNOWN_GAIN
    own = replay.own + balanced(compute, topology) - compute
    found = situation.saved(replay.evaluate(own, replay.serial, replay.transfer))
    return UNKNOWN_GAIN if found is None else Gain(*found, "replay")


def balanced(compute: FloatArray, topology: Topology) -> FloatArray:
    """Work of each rank if every stage of its pipeline has the mean of their work.

    Parameters
    ----------
    compute : ndarray of shape (n_ranks, n_steps), seconds
        Work that moves with the layers.

    Returns
    -------
    ndarray of shape (n_ranks, n_steps), seconds
        Tensor ranks of a stage keep their ratio.
    """
    n = topology.n_stages
    cell = topology.data_rank * n + topology.stage
    cells, place = np.unique(cell, return_inverse=True)
    seconds = largest_of_each(compute, cell)
    mean = np.empty_like(seconds)
    for data_rank in np.unique(cells // n):
        mine = cells // n == data_rank
        mean[mine] = seconds[mine].sum(axis=0) / n
    ratio = np.divide(mean, seconds, out=np.ones_like(mean), where=seconds > 0)
    spread: FloatArray = compute * ratio[place]
    return spread
