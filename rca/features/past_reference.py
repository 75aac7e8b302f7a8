"""Where most ranks became slower at once, the few others are the peers and the past is the reference.

The median of a stage is what its ranks usually need, until more than half of them are slow: then the sound
ones look fast and nobody looks late. A quiet past tells the two apart.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features.change_points import Segment
from rca.robust import nan_median

#: Own work has to grow by this ratio.
MIN_GROWTH = 0.05
#: The slowed and the others have to be this far apart, relative to how far their means are.
MIN_GAP = 0.5


def most_slowed(own: FloatArray, segment: Segment) -> BoolArray | None:
    """The ranks whose own work grew in the slow stretch, if these are most but not all of them.

    Parameters
    ----------
    own : ndarray of shape (n_ranks, n_steps), seconds
    segment : Segment
        Steps in which the job was slow.

    Returns
    -------
    ndarray of shape (n_ranks,), bool, or None
        None where less than half grew, all did, or there is no clear line between them.
    """
    if segment.whole or own.shape[0] < 3:
        return None
    inside = segment.mask(own.shape[1])
    quiet, slow = nan_median(own[:, ~inside], axis=1), nan_median(own[:, inside], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        growth = np.where(quiet > 0, slow / quiet - 1.0, np.nan)
    known = np.sort(growth[np.isfinite(growth)])
    if known.size < 3:
        return None
    gaps = np.diff(known)
    cut = int(gaps.argmax())
    low, high = known[: cut + 1], known[cut + 1 :]
    apart = high.mean() - low.mean()
    clear = apart >= MIN_GROWTH and gaps[cut] >= MIN_GAP * apart and abs(low.mean()) <= 0.5 * apart
    if not clear or 2 * high.size <= known.size:
        return None
    grown: BoolArray = np.nan_to_num(growth, nan=-np.inf) >= high[0]
    return grown


def past_reference(seconds: FloatArray, grown: BoolArray, segment: Segment) -> FloatArray:
    """What everybody would have needed: their quiet past, moved as the ranks not slowed moved since.

    Parameters
    ----------
    seconds : ndarray of shape (n_ranks, n_steps)
        Own work, or one phase of it.
    grown : ndarray of shape (n_ranks,), bool
    segment : Segment

    Returns
    -------
    ndarray of shape (n_ranks, n_steps), seconds
    """
    inside = segment.mask(seconds.shape[1])
    quiet = nan_median(seconds[:, ~inside], axis=1)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        moved = nan_median(np.where(quiet > 0, seconds / quiet, np.nan)[~grown])
    result: FloatArray = quiet * np.where(np.isfinite(moved), moved, 1.0)[None, :]
    return result
