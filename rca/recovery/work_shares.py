"""Batch sizes by the speed of the workers, while the job runs."""

from __future__ import annotations

import math

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.recovery.option import Gain, Option, SingleAction, Weight, option
from rca.recovery.situation import Situation
from rca.robust import largest_of_each, nan_median
from rca.runtime.antdt.batch_sizes import balanced
from rca.whatif.phases.phase_replay import PhaseReplay

#: Steps from which batch sizes are set and for which they hold: the short window of AntDT's monitor.
SHORT_WINDOW = 10
#: Least and largest batch of a worker, relative to an equal share. The upper one stands for its memory.
MIN_SHARE, MAX_SHARE = 0.5, 1.5
#: Parts of an equal share that move where the number of samples is not known.
PARTS = 4096
#: Phases whose time grows with the batch.
SCALING = ("forward_seconds", "backward_seconds")


class AdjustBatchSizes(SingleAction):
    """AntDT's `ADJUST_BS`: slow workers get smaller batches, fast ones larger, with the same sum.

    The prediction is causal: each block of steps runs with shares set from the block before it.
    """

    name = "adjust_batch_sizes"
    weight: Weight = "light"

    def _judged(self, situation: Situation) -> Option | str:
        replay, topology = situation.replay, situation.topology
        if situation.mode != "fail_slow":
            return "the job is not slow"
        if replay is None or topology is None or not replay.informative:
            return "needs the phases of every rank"
        if topology.n_stages > 1:
            return "in a pipeline a smaller batch of one stage is one of all stages"
        compute = scaling_seconds(replay)
        if compute is None:
            return "needs forward and backward times of every rank"
        if topology.n_workers < 2:
            return "needs two or more workers"
        samples = None if situation.global_batch is None else round(situation.global_batch)
        shares = batch_shares(replay.own, compute, topology.worker, samples)
        changed = replay.evaluate(replay.own + compute * (shares - 1.0), replay.serial, replay.transfer)
        found = situation.saved(changed)
        if found is None or found[1][0] <= 0:
            return "no certain saving: slow ranks change too fast, or not in forward and backward"
        slow = sorted({rank for each in situation.suspects for rank in each.ranks})
        return option(
            self,
            Gain(*found, "replay"),
            chance=max((each.probability for each in situation.suspects), default=1.0),
            causes=[fault.cause for fault in situation.faults if set(fault.ranks) & set(slow)],
            ranks=slow,
            risk="none with gradients weighted by batch size; the largest batch must fit into memory",
            instruction="shift samples from slow workers to the others, and weight gradients by samples",
        )


def scaling_seconds(replay: PhaseReplay) -> FloatArray | None:
    """Time that grows with the batch, shape (n_ranks, n_steps), seconds; None if a rank has none."""
    known = [replay.seconds[name] for name in SCALING if name in replay.seconds]
    if len(known) < len(SCALING):
        return None
    compute: FloatArray = np.minimum(np.nan_to_num(sum(known, np.zeros(replay.own.shape))), replay.own)
    return compute if bool((np.nan_to_num(compute) > 0).any(axis=1).all()) else None


def batch_shares(
    own: FloatArray, compute: FloatArray, workers: IntArray, samples: int | None = None
) -> FloatArray:
    """Batch of every rank at every step, relative to an equal share.

    Parameters
    ----------
    own, compute : ndarray of shape (n_ranks, n_steps), seconds
        Work of a rank, and the part that grows with its batch.
    workers : ndarray of shape (n_ranks,), int
        Number of the worker of each rank; its ranks share one batch.
    samples : int, optional
        Of a step, all workers together. Shares are then of whole samples.

    Returns
    -------
    ndarray of shape (n_ranks, n_steps)
        In the first block of `SHORT_WINDOW` steps those of this block: the one before it is not known.
    """
    place = np.unique(workers, return_inverse=True)[1]
    # The block before each block; of the first one, itself.
    before = np.maximum(np.arange(-1, math.ceil(own.shape[1] / SHORT_WINDOW) - 1), 0)
    n_known = int(before[-1]) + 1
    # A worker is as slow as its slowest rank.
    stays, grows = (
        largest_of_each(_block_medians(part, n_known), workers) for part in (own - compute, compute)
    )
    known = [equal_finish(stays[:, block], grows[:, block], samples)[place] for block in range(n_known)]
    shares = np.stack(known, axis=1)[:, before]
    return np.repeat(shares, SHORT_WINDOW, axis=1)[:, : own.shape[1]]


def _block_medians(values: FloatArray, n_blocks: int) -> FloatArray:
    """Medians of the first blocks of steps, shape (n_ranks, n_blocks); of all steps if they fill no block."""
    length = min(SHORT_WINDOW, values.shape[1])
    return nan_median(values[:, : n_blocks * length].reshape(-1, n_blocks, length), axis=2)


def equal_finish(fixed: FloatArray, scales: FloatArray, samples: int | None = None) -> FloatArray:
    """Shares with which all workers finish together as far as the limits allow.

    Minimises the largest ``fixed + scales * share`` with a mean share of 1.

    Parameters
    ----------
    fixed, scales : ndarray of shape (n_workers,), seconds
        Time independent of the batch, and time of an equal share. A worker without a known time keeps 1.
    samples : int, optional
        Of a step, all workers together. Without it, shares are multiples of 1 / `PARTS`.
    """
    shares = np.ones(scales.shape)
    known = np.isfinite(fixed) & np.isfinite(scales) & (scales > 0)
    each = PARTS if samples is None else samples / scales.size
    total = round(each * int(known.sum()))
    if known.sum() < 2 or total < known.sum():
        return shares
    sizes = balanced(
        each / scales[known],
        total,
        fixed=np.maximum(fixed[known], 0.0),
        least=max(math.floor(MIN_SHARE * each), 1),
        most=math.ceil(MAX_SHARE * each),
    )
    shares[known] = sizes / (total / int(known.sum()))
    return shares
