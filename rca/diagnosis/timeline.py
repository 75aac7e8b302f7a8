"""The timed steps of a window: own work, its comparison with peers, and the replay that prices it.

Every lateness is read from one timeline. After an earlier window of the job both are one timeline, and the
steps from `since` on are judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features import FeatureSet
from rca.features.comparison import Comparison
from rca.features.device_load import DEVICE_PHASES
from rca.features.work import Work
from rca.robust import nan_median, robust_spread, zero_if_nan
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window.job import Topology

#: Time before a step in which one rank alone runs none is own work from this share of the usual step on, and
#: from this many spreads.
MIN_GAP, MIN_GAP_SPREADS = 0.02, 6.0
#: Fewest steps and ranks among which such a gap is looked for.
GAP_STEPS, GAP_RANKS = 8, 3


@dataclass(frozen=True)
class Timeline:
    """The steps of a job as its latenesses are read from them.

    Attributes
    ----------
    usual : float, seconds
        The usual step; NaN without step times.
    noise : float, seconds
        Spread of a healthy rank's excess.
    since : int or None
        Column of the first step after an earlier window.
    """

    work: Work
    comparison: Comparison
    replay: PhaseReplay
    topology: Topology
    usual: float
    noise: float
    since: int | None = None

    @classmethod
    def of(cls, features: FeatureSet, replay: PhaseReplay, since: int | None = None) -> Timeline:
        """The timeline of a window's features.

        Parameters
        ----------
        replay : PhaseReplay
            Of the steps of ``features.work``.
        since : int, optional
            Number of the first step after an earlier window.
        """
        work, comparison = features.work, features.comparison
        gap = own_gaps(work)
        if gap.any():
            work = replace(work, own=work.own + gap)
            replay = replace(replay, own=replay.own + gap)
            comparison = Comparison.from_work(work, features.topology)
        column = None if since is None else int(np.searchsorted(work.steps, since))
        return cls(
            work,
            comparison,
            replay,
            features.topology,
            work.step_reference,
            healthy_noise(comparison),
            column,
        )

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return int(self.work.steps.size)

    @property
    def n_judged(self) -> int:
        """Number of steps after an earlier window; of all steps without one."""
        return self.n_steps - (self.since or 0)

    @property
    def everybody(self) -> tuple[int, ...]:
        """All ranks of the job."""
        return tuple(range(self.topology.n_ranks))

    @property
    def localises(self) -> bool:
        """Whether timers show which rank is late."""
        known = bool(np.isfinite(self.comparison.excess).any())
        return self.replay.informative and self.topology.n_ranks > 1 and known

    @cached_property
    def device_shares(self) -> Mapping[str, float]:
        """Usual share of each phase of the device in their sum; empty unless several are timed."""
        usual = {
            name: float(np.nanmedian(seconds))
            for name in DEVICE_PHASES
            if (seconds := self.work.phases.get(name)) is not None and np.isfinite(seconds).any()
        }
        total = max(sum(usual.values()), 1e-12)
        return {name: seconds / total for name, seconds in usual.items()} if len(usual) > 1 else {}

    def saved(self, own: FloatArray, lowered: FloatArray) -> FloatArray:
        """Seconds of each step, shape (n_steps,), that the job saves if `own` becomes `lowered`.

        Parameters
        ----------
        own, lowered : ndarray of shape (n_ranks, n_steps), seconds
        """
        now, then = (
            self.replay.evaluate(each, self.replay.serial, self.replay.transfer) for each in (own, lowered)
        )
        return zero_if_nan(now - then)

    def relative(self, seconds: float) -> float:
        """Seconds per step as a share of the usual step."""
        return seconds / self.usual if self.usual > 0 else 0.0

    def everywhere(self) -> BoolArray:
        """A mask of all steps."""
        return np.ones(self.n_steps, dtype=bool)


def healthy_noise(comparison: Comparison) -> float:
    """Spread of the healthy excess, seconds.

    Of two ranks both differ from each other, so the change from step to step counts as well.
    """
    jumps = robust_spread(np.diff(comparison.excess, axis=1))
    return float(np.fmin(comparison.noise, jumps / 2**0.5))


def own_gaps(work: Work) -> FloatArray:
    """Time before each step in which only this rank runs none, beyond that of the median rank.

    Returns
    -------
    ndarray of shape (n_ranks, n_steps), seconds
    """
    gap: FloatArray = np.zeros(work.own.shape)
    if gap.shape[0] < GAP_RANKS or gap.shape[1] < GAP_STEPS or not np.isfinite(work.step_reference):
        return gap
    pause = work.start[:, 1:] - (work.start + work.step)[:, :-1]
    # Clocks of hosts differ, and so do usual gaps.
    pause = pause - nan_median(pause, axis=1)[:, None]
    beyond = pause - nan_median(pause)[None, :]
    floor = np.fmax(MIN_GAP * work.step_reference, MIN_GAP_SPREADS * robust_spread(beyond))
    gap[:, 1:] = np.where(zero_if_nan(beyond) > floor, zero_if_nan(beyond), 0.0)
    return gap
