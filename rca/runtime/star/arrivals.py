"""When the first, the second and the last of some workers report, if their steps vary.

An update of several reports waits for the slowest of them. With steps that vary, that takes longer than any
worker's usual step: an expected maximum is above the maximum of what is expected.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.runtime.star.usual_step import LOOK_BACK

#: Times at which the share of workers that have reported is looked at.
MAX_TIMES = 256
#: Recent steps that a server keeps of each worker.
MAX_STEPS = 32
#: A worker whose median differs by more than this share has changed its pace.
CHANGED_SHARE = 0.4


def that_may_recur(steps: FloatArray) -> FloatArray:
    """Steps with those before a worker changed its pace as NaN, and the longest of several.

    What has happened once is no habit of the worker: a stall of a whole machine would count as one of each.

    Parameters
    ----------
    steps : ndarray of shape (n_workers, n_steps), seconds
        The newest last; NaN where none was measured.
    """
    kept = steps.copy()
    for row in kept:
        before, now = row[:-LOOK_BACK], row[-LOOK_BACK:]
        if np.isfinite(before).any() and np.isfinite(now).any():
            medians = np.nanmedian(before), np.nanmedian(now)
            if max(medians) > (1.0 + CHANGED_SHARE) * min(medians):
                before[:] = np.nan
        if np.isfinite(row).sum() >= LOOK_BACK:
            row[np.nanargmax(row)] = np.nan
    return kept


def expected_arrivals(steps: FloatArray) -> FloatArray:
    """Expected seconds until 1, 2, ..., n workers that begin together have reported, shape (n_workers,).

    Parameters
    ----------
    steps : ndarray of shape (n_workers, n_steps), seconds
        Each worker takes one of its steps, each as likely as the others; NaN where none was measured.
    """
    times = np.unique(steps[np.isfinite(steps)])
    if times.size > MAX_TIMES:
        times = np.quantile(times, np.linspace(0.0, 1.0, MAX_TIMES))
    # Chance of each number of reports, from each time to the next one.
    chance = np.zeros((len(steps) + 1, times.size))
    chance[0] = 1.0
    for row in steps:
        known = np.sort(row[np.isfinite(row)])
        reported = np.searchsorted(known, times, side="right") / known.size
        chance[1:] = chance[1:] * (1.0 - reported) + chance[:-1] * reported
        chance[0] *= 1.0 - reported
    fewer = np.cumsum(chance, axis=0)[:-1, :-1]
    found: FloatArray = times[0] + fewer @ np.diff(times)
    return found
