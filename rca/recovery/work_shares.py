"""Batch sizes by the speed of the workers, while the job runs."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.recovery.option import Gain, Option, SingleAction, Weight, option
from rca.recovery.situation import Situation, slowest_of_each
from rca.robust import nan_median
from rca.whatif.phase_replay import PhaseReplay

#: Steps from which batch sizes are set and for which they hold: the short window of AntDT's monitor.
SHORT_WINDOW = 10
#: Least and largest batch of a worker, relative to an equal share. The upper one stands for its memory.
LEAST_SHARE, MOST_SHARE = 0.5, 1.5
#: Halvings of the search for the common finishing time.
HALVINGS = 40
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
        shares = batch_shares(replay.own, compute, topology.worker)
        if situation.global_batch is not None:
            each = situation.global_batch / topology.n_workers
            # Only whole samples move. The slowest gets no less than its share.
            shares = np.ceil(shares * each - 1e-9) / each
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


def batch_shares(own: FloatArray, compute: FloatArray, workers: IntArray) -> FloatArray:
    """Batch of every rank at every step, relative to an equal share.

    Parameters
    ----------
    own, compute : ndarray of shape (n_ranks, n_steps), seconds
        Work of a rank, and the part that grows with its batch.
    workers : ndarray of shape (n_ranks,), int
        Number of the worker of each rank; its ranks share one batch.

    Returns
    -------
    ndarray of shape (n_ranks, n_steps)
        1 in the first block of `SHORT_WINDOW` steps.
    """
    shares = np.ones(own.shape)
    place = np.unique(workers, return_inverse=True)[1]
    for first in range(SHORT_WINDOW, own.shape[1], SHORT_WINDOW):
        before = slice(first - SHORT_WINDOW, first)
        grows = nan_median(compute[:, before], axis=1)
        stays = nan_median(own[:, before] - compute[:, before], axis=1)
        # A worker is as slow as its slowest rank.
        share = equal_finish(slowest_of_each(stays, workers), slowest_of_each(grows, workers))
        shares[:, first : first + SHORT_WINDOW] = share[place][:, None]
    return shares


def equal_finish(fixed: FloatArray, scales: FloatArray) -> FloatArray:
    """Shares with which all workers finish together as far as the limits allow.

    Minimises the largest ``fixed + scales * share`` with a mean share of 1.

    Parameters
    ----------
    fixed, scales : ndarray of shape (n_workers,), seconds
        Time independent of the batch, and time of an equal share. A worker without a known time keeps 1.
    """
    shares = np.ones(scales.shape)
    known = np.isfinite(fixed) & np.isfinite(scales) & (scales > 0)
    if known.sum() < 2:
        return shares
    fixed, scales = fixed[known], scales[known]
    low, high = float((fixed + LEAST_SHARE * scales).min()), float((fixed + MOST_SHARE * scales).max())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if np.clip((middle - fixed) / scales, LEAST_SHARE, MOST_SHARE).mean() < 1.0:
            low = middle
        else:
            high = middle
    shares[known] = np.clip((high - fixed) / scales, LEAST_SHARE, MOST_SHARE)
    return shares
