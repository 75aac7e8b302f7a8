"""Which ranks leave a ring, from the usual times of all ranks.

A rule is a pure function: all ranks of the ring call it with the same values, and so agree without a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.runtime.star.price import UpdateProgress
from rca.runtime.star.usual_step import STRAGGLER_SHARE

#: Updates after which a rule looks again.
EVERY = 8
#: A rank that is less behind the fastest stays in the ring.
MIN_SECONDS = 0.01
#: From the number of updates, the usual time of each rank's own step and what the rule has given last: the
#: ranks that are to be children. Times are NaN where no step was measured.
Rule = Callable[[int, FloatArray, Collection[int]], Collection[int]]


@dataclass(frozen=True)
class StragglersLeave:
    """Stragglers leave the ring if that makes more progress, and come back when they are at speed again.

    Parameters
    ----------
    batch, noise : float, optional
        Samples of a worker and step, and gradient noise scale in samples. Without them every sample counts
        alike.
    share : float
        A rank leaves if it takes longer than the fastest by more than this share of its time. It comes back
        at half of it.
    least_seconds : float
        And by more than this: a change and the messages of a child take time, too.
    every : int
        Updates between two changes.

    Raises
    ------
    InvalidInput
        If `every` or `share` is not positive, or `least_seconds` is negative.
    """

    batch: float | None = None
    noise: float | None = None
    share: float = STRAGGLER_SHARE
    least_seconds: float = MIN_SECONDS
    every: int = EVERY

    def __post_init__(self) -> None:
        if self.every < 1 or not self.share > 0 or not self.least_seconds >= 0:
            raise InvalidInput(
                f"stragglers cannot leave every {self.every} updates from {self.share:.0%} "
                f"and {self.least_seconds} s on"
            )

    def __call__(self, n_updates: int, usual: FloatArray, children: Collection[int]) -> Collection[int]:
        known = np.isfinite(usual)
        if n_updates % self.every or not known.any():
            return children
        is_child = np.isin(np.arange(usual.size), list(children))
        fastest = np.nanmin(usual)
        behind = max(self.share * fastest, self.least_seconds) * np.where(is_child, 0.5, 1.0)
        is_slow = np.where(known, usual, -np.inf) > fastest + behind
        slow = tuple(np.flatnonzero(is_slow).tolist())
        if self.batch is not None and self.noise is not None and slow:
            progress = UpdateProgress(usual[known], self.batch, self.noise)
            places = np.flatnonzero(is_slow[known]).tolist()
            ring = np.flatnonzero(~is_slow[known]).tolist()
            if progress.of_groups([ring, *([each] for each in places)]) >= progress.of_groups(
                [ring + places]
            ):
                return ()
        return slow
