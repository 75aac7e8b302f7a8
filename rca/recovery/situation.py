"""What a plan starts from: the faults that were found, their cost, and the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray
from rca.causal.attribution import COST_LEVEL, resampled_means
from rca.recovery.site import Site
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window.causes import CAUSES, CauseOwner, FailureMode
from rca.window.job import Topology

Interval = tuple[float, float]


@dataclass(frozen=True)
class BlamedCause:
    """A cause on its ranks, and what the job gains without it.

    Attributes
    ----------
    saved : float or None, seconds per step
        If this cause alone is removed; None where its cost is unknown.
    actionable : bool
        Likely enough to act on: it explains most of its ranks' delay, and no signal contradicts it.
    evident : bool
        Exporter signals show it, not step times alone.
    """

    cause: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    probability: float
    saved: float | None
    interval: Interval | None
    actionable: bool
    evident: bool

    @property
    def owner(self) -> CauseOwner:
        return CAUSES[self.cause].owner


@dataclass(frozen=True)
class SlowRanks:
    """Ranks that straggle, whatever the cause."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    probability: float


@dataclass(frozen=True)
class Situation:
    """One job in trouble.

    Attributes
    ----------
    mode : {"healthy", "fail_slow", "fail_stop"}
    decided : bool
        False if the first cause is not named: then no hardware action is planned.
    faults, suspects : tuple
        Likeliest first.
    step_seconds, lost : float, seconds per step
        Mean step, and what all stragglers cost of it; 0 where that is unknown.
    steps_lost : int
        Steps over which `lost` is the mean: those of the window.
    over : bool
        The faults ended before the window did.
    global_batch : float or None
        Samples of one update.
    topology : Topology or None
        Absent where only a stored answer is planned for.
    replay : PhaseReplay or None
        Of the window's steps; prices actions that change the ranks' work.
    lost_is_known : bool
        Whether `lost` was measured.
    """

    mode: FailureMode
    decided: bool
    faults: tuple[BlamedCause, ...]
    suspects: tuple[SlowRanks, ...]
    step_seconds: float
    lost: float
    lost_interval: Interval
    steps_lost: int
    over: bool
    job_nodes: int
    global_batch: float | None
    topology: Topology | None
    replay: PhaseReplay | None
    site: Site
    lost_is_known: bool = True

    def of_cause(self, *causes: str) -> list[BlamedCause]:
        """The faults with one of these causes that may be acted on."""
        return [fault for fault in self.faults if fault.cause in causes and fault.actionable]

    def saved(self, changed: FloatArray) -> tuple[float, Interval] | None:
        """Mean saving of other step times, with the interval of resampled steps.

        Parameters
        ----------
        changed : ndarray of shape (n_steps,), seconds
            Step times with the action; NaN where unknown.

        Returns
        -------
        (float, (float, float)) or None
            Seconds per step, negative where the action costs time; None without any known step.
        """
        if self.replay is None:
            return None
        gained = self.replay.replayed - changed
        gained = gained[np.isfinite(gained)]
        if gained.size == 0:
            return None
        rounds = resampled_means(gained[None], 0)[0]
        low, high = np.quantile(rounds, [(1 - COST_LEVEL) / 2, (1 + COST_LEVEL) / 2])
        mean = float(gained.mean())
        return mean, (min(float(low), mean), max(float(high), mean))


def together(faults: Sequence[BlamedCause], most: float) -> tuple[float | None, Interval | None]:
    """Saving if all these faults are removed, at most the whole loss; None if any has no known cost."""
    known = [(fault.saved, fault.interval) for fault in faults if fault.saved is not None]
    if len(known) < len(faults) or not known:
        return None, None
    saved = min(sum(seconds for seconds, _ in known), most)
    low = min(sum(interval[0] for _, interval in known if interval), saved)
    high = sum(interval[1] for _, interval in known if interval)
    return saved, (low, max(high, saved))
