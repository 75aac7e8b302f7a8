"""The usual step of a worker, and which workers are stragglers by it."""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.errors import InvalidInput

#: A worker is a straggler if its step is longer than the shortest one by more than this share.
STRAGGLER_SHARE = 0.2
#: Steps that the usual step looks back on.
LOOK_BACK = 8
#: Steps after which a step has half its weight in the usual step time.
HALF_LIFE = 4.0


def usual_seconds(seconds: FloatArray) -> FloatArray:
    """Median of the last steps of each worker, with weights that halve every `HALF_LIFE` steps.

    Parameters
    ----------
    seconds : ndarray of shape (n_workers, n_steps)

    Returns
    -------
    ndarray of shape (n_workers,), seconds
        NaN where nothing was measured.
    """
    age = np.arange(seconds.shape[1])[::-1]
    weight = np.where(np.isnan(seconds), 0.0, 0.5 ** (age / HALF_LIFE))
    order = np.argsort(seconds, axis=1)  # NaN sorts last, with weight 0.
    total = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    middle = (total >= total[:, -1:] / 2).argmax(axis=1)
    found: FloatArray = np.take_along_axis(seconds, order, axis=1)[np.arange(len(seconds)), middle]
    return found


def is_straggler(seconds: FloatArray, share: float = STRAGGLER_SHARE) -> BoolArray:
    """Workers that take longer than the fastest by more than a share of its time.

    Parameters
    ----------
    seconds : ndarray of shape (n_workers,)
        NaN for a worker without a time, which is not called a straggler.
    share : float
        0.2 for 20 %.

    Raises
    ------
    InvalidInput
        If no time is known, or one is not positive.
    """
    known = seconds[~np.isnan(seconds)]
    if not known.size or not (known > 0).all():
        raise InvalidInput("no expected step time is known, or one is not positive")
    least = known.min()
    found: BoolArray = (seconds - least) / least > share
    return found
