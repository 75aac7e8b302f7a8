"""The interval between checkpoints that loses the least time (Young 1974, first order).

A checkpoint costs C seconds, a failure half an interval of work. With an interval t and a mean time M between
failures the job loses C / t + t / (2 M) of its time. That is least for t = sqrt(2 C M).
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from rca.arrays import FloatArray
from rca.recovery.option import Gain, Option, SingleAction, Weight, option
from rca.recovery.situation import Situation

#: Share of a usual step from which the slowest rank has written a checkpoint in a step.
MIN_CHECKPOINT = 0.01
#: A smaller gain is not worth a change.
MIN_SHARE = 1e-3


class CheckpointInterval(SingleAction):
    """Changes how often the job writes checkpoints."""

    name = "change_checkpoint_interval"
    weight: Weight = "light"

    def _judged(self, situation: Situation) -> Option | str:
        between = situation.site.failure_seconds
        if between is None:
            return "needs the mean time between failures of the job (failure_seconds)"
        replay = situation.replay
        if replay is None or "checkpoint_seconds" not in replay.seconds:
            return "the window has no times of checkpoints"
        step = float(np.nanmean(replay.measured)) if np.isfinite(replay.measured).any() else 0.0
        written = checkpoints(replay.seconds["checkpoint_seconds"], step)
        if written.size == 0:
            return "no checkpoint was written in the window"
        interval = situation.site.checkpoint_seconds or step * replay.measured.size / written.size
        cost = float(written.mean())
        best = sqrt(2 * cost * between)
        saved = step * (lost_share(cost, interval, between) - lost_share(cost, best, between))
        if saved < MIN_SHARE * step:
            return f"the interval of {interval:,.0f} s is near the best one of {best:,.0f} s"
        return option(
            self,
            Gain(saved, (0.0, saved), "published"),
            chance=1.0,
            causes=[fault.cause for fault in situation.of_cause("checkpoint_stall")],
            risk="a failure loses more work" if best > interval else "checkpoints take more of the time",
            instruction=f"write a checkpoint every {best:,.0f} s in place of {interval:,.0f} s",
        )


def checkpoints(seconds: FloatArray, step: float) -> FloatArray:
    """Time of each checkpoint, of its slowest rank.

    Parameters
    ----------
    seconds : ndarray of shape (n_ranks, n_steps), seconds
    step : float, seconds
        Mean step.
    """
    slowest: FloatArray = np.fmax.reduce(seconds, axis=0)
    return slowest[np.nan_to_num(slowest) > MIN_CHECKPOINT * step]


def lost_share(cost: float, interval: float, between: float) -> float:
    """Share of the time that checkpoints and repeated work take.

    Parameters
    ----------
    cost, interval, between : float, seconds
        Of one checkpoint, between two of them, and between two failures.
    """
    return cost / interval + interval / (2 * between)
