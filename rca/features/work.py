"""Own work of every rank: the step without communication.

One slow rank makes every rank's step long, because the others wait for it in communication.
So all comparisons start from own work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.robust import group_members, nan_median, nan_min, nan_quantile, zero_if_nan
from rca.window.job import Topology
from rca.window.schema import OCCASIONAL_PHASES
from rca.window.times.own_work import own_work
from rca.window.times.phases import PhaseArrays

#: Phases a rank spends on its own, in the order they happen in a step.
OWN_PHASES = (
    "data_loading_seconds",
    "host_to_device_seconds",
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
    "checkpoint_seconds",
    "gc_seconds",
)
#: The first steps compile, connect and cache. Those longer than this many usual steps are dropped.
WARMUP_RATIO = 2.0
MAX_WARMUP_STEPS = 5

#: Time outside timers is unusual beyond this multiple of its median and this share of a usual step.
UNUSUAL_RATIO, UNUSUAL_SHARE = 1.5, 0.02
#: A program pauses in every n-th step; the cycle has to repeat so often.
MIN_CYCLES = 2


class LostTime(NamedTuple):
    """Time that no timer saw.

    Attributes
    ----------
    seconds : float
        Per step; 0 where it is unknown.
    every : int, optional
        Steps of the fixed cycle in which it comes, as a program makes it for evaluation and saves.
    """

    seconds: float
    every: int | None = None

    @property
    def planned(self) -> bool:
        """Whether it comes in a fixed cycle of steps."""
        return self.every is not None


@dataclass(frozen=True)
class Work:
    """Own work, waiting and transfer of every rank and step, without warm-up.

    Attributes
    ----------
    steps : ndarray of shape (n_steps,), int64
        Step numbers used.
    warmup : int
        Leading steps that are not used.
    step : ndarray of shape (n_ranks, n_steps), seconds
        Whole steps as each rank measured them.
    own : ndarray of shape (n_ranks, n_steps), seconds
        Time not spent in collectives.
    wait, transfer : ndarray of shape (n_ranks, n_steps), seconds
        Waiting for the last arrival; moving data after it.
    phases : dict of str to ndarray of shape (n_ranks, n_steps), seconds
        The measured own phases.
    load : dict of str to ndarray of shape (n_ranks, n_steps), count
        Input of each step: samples, tokens or squared sequence lengths, where the trainer counts them.
    start : ndarray of shape (n_ranks, n_steps), Unix seconds
    step_reference : float, seconds
        Median over steps of the job's step time. It is the unit of relative features.
    """

    steps: IntArray
    warmup: int
    step: FloatArray
    own: FloatArray
    wait: FloatArray
    transfer: FloatArray
    phases: dict[str, FloatArray]
    load: dict[str, FloatArray]
    start: FloatArray
    step_reference: float

    @cached_property
    def job_step(self) -> FloatArray:
        """Step time of the job, shape (n_steps,), seconds: the median of the ranks."""
        return nan_median(self.step)

    @cached_property
    def between_steps(self) -> FloatArray:
        """Time after each step in which no step runs, shape (n_steps - 1,), seconds: the median of the ranks.

        Skipped step numbers count as steps without a row, each as long as a usual step. NaN where no rank has
        rows of both steps.
        """
        pause = self.start[:, 1:] - (self.start + self.step)[:, :-1]
        skipped = np.diff(self.steps) - 1
        return np.maximum(nan_median(pause) - skipped * self.step_reference, 0.0)

    @cached_property
    def pause_after(self) -> FloatArray:
        """Time after each step in which no step runs, shape (n_steps,), seconds; 0 where it is unknown."""
        return np.append(np.nan_to_num(self.between_steps), np.zeros(min(self.steps.size, 1)))

    @property
    def share_between_steps(self) -> float:
        """Share of the job's time in which no step runs; 0 where it is unknown."""
        idle = float(np.nansum(self.between_steps))
        known = np.isfinite(self.between_steps)
        busy = float(
            np.nansum(self.job_step[1:][known] + (np.diff(self.steps)[known] - 1) * self.step_reference)
        )
        return idle / (idle + busy) if idle > 0 else 0.0

    @cached_property
    def pauses(self) -> LostTime:
        """Pauses between steps that are longer than usual."""
        return self._unusual(self.between_steps)

    @cached_property
    def untimed(self) -> LostTime:
        """Time outside every timer, in the steps with more of it than usual.

        The median of the ranks counts: time that one rank loses is waiting of the others.
        """
        if not self.phases:
            return LostTime(0.0)
        timed = self._timed_phases()
        timed += [seconds for seconds in (self.wait, self.transfer) if np.isfinite(seconds).any()]
        # A step of which a timer is missing is unknown.
        return self._unusual(nan_median(self.step - np.sum(timed, axis=0)))

    @cached_property
    def stalls(self) -> LostTime:
        """Time in which all ranks wait for input together, in the steps with more of it than usual.

        No rank is late then, and the collectives take no longer.
        """
        loading = self.phases.get("data_loading_seconds")
        return LostTime(0.0) if loading is None else self._unusual(nan_median(loading))

    @cached_property
    def cycles(self) -> dict[str, LostTime]:
        """Planned work by where its time lies: what takes longer in a fixed cycle of steps, on all ranks."""
        saves = self.phases.get("checkpoint_seconds")
        timed = bool(self.phases) or bool(np.isfinite(self.own).any())
        found = {
            "in checkpoints": LostTime(0.0) if saves is None else self._unusual(nan_median(saves)),
            "between steps": self.pauses,
            "outside the timed phases": self.untimed,
            # Stalls of input, pauses of the collector and a slow rank may come in a cycle as well.
            "in whole steps": LostTime(0.0) if timed else self._unusual(self.job_step),
        }
        return {where: lost for where, lost in found.items() if lost.planned}

    @cached_property
    def outside_phases(self) -> FloatArray:
        """Own work outside every timed phase, shape (n_ranks, n_steps), seconds.

        NaN where a timer is missing, and where no phase is timed.
        """
        if not self.phases:
            return np.full(self.own.shape, np.nan)
        return np.asarray(self.own - np.sum(self._timed_phases(), axis=0))

    def _timed_phases(self) -> list[FloatArray]:
        """Seconds of every own phase, each of shape (n_ranks, n_steps); an occasional one is 0 if absent."""
        return [
            zero_if_nan(seconds) if name in OCCASIONAL_PHASES else seconds
            for name, seconds in self.phases.items()
        ]

    def _unusual(self, series: FloatArray) -> LostTime:
        """Time by which a series of seconds, one value per step, exceeds its usual value."""
        known = series[np.isfinite(series)]
        if not known.size or not np.isfinite(self.step_reference):
            return LostTime(0.0)
        median = max(float(np.median(known)), 0.0)
        usual = UNUSUAL_RATIO * median + UNUSUAL_SHARE * self.step_reference
        unusual = np.flatnonzero(np.nan_to_num(series) > usual)
        apart = np.diff(self.steps[unusual])
        regular = apart.size >= MIN_CYCLES and bool(np.ptp(apart) == 0)
        # Planned work is all that a step takes longer. Of other time, noise does not count.
        above = series[unusual] - (median if regular else usual)
        return LostTime(float(above.sum()) / self.steps.size, int(apart[0]) if regular else None)

    @classmethod
    def from_phases(cls, phases: PhaseArrays, topology: Topology) -> Work:
        """Split every rank's step into own work, waiting and transfer as far as it was measured."""
        step = phases.phase("step_seconds")
        warmup = warmup_steps(nan_median(step))
        used = slice(warmup, None)
        step = step[:, used]
        own_phases = {name: phases.seconds[name][:, used] for name in OWN_PHASES if name in phases.seconds}
        wait, transfer = split_communication(phases, topology.stage)
        wait, transfer = wait[:, used], transfer[:, used]
        usual = nan_median(nan_median(step)[None, :], axis=1)
        return cls(
            steps=phases.steps[used],
            warmup=warmup,
            step=step,
            own=own_work(phases, topology.stage).own[:, used],
            wait=wait,
            transfer=transfer,
            phases=own_phases,
            load={name: array[:, used] for name, array in phases.load.items()},
            start=phases.start_time[:, used],
            step_reference=float(usual[0]) if usual[0] > 0 else float("nan"),
        )


def warmup_steps(job_step: FloatArray) -> int:
    """How many leading steps are warm-up, given the job's step times of shape (n_steps,)."""
    if job_step.size < 8:
        return 0
    usual = nan_quantile(job_step[None, :], 0.5, axis=1)[0]
    head = job_step[: min(MAX_WARMUP_STEPS, job_step.size // 4)]
    slow = np.flatnonzero(head > WARMUP_RATIO * usual)
    return int(slow[-1]) + 1 if slow.size else 0


def split_communication(phases: PhaseArrays, group: IntArray) -> tuple[FloatArray, FloatArray]:
    """Waiting and transfer, each of shape (n_ranks, n_steps), seconds.

    Some producers measure communication as a whole. Then the member of `group` with the shortest
    communication counts as the last to arrive. Its time is transfer; the time of the others above it is
    waiting.
    """
    wait = phases.phase("communication_wait_seconds")
    transfer = phases.phase("communication_transfer_seconds")
    whole = phases.seconds.get("communication_seconds")
    if whole is None:
        return wait, transfer
    shortest = np.full(whole.shape, np.nan)
    for members in group_members(group):
        block = whole[members]
        shortest[members] = np.where(np.isfinite(block), nan_min(block), np.nan)
    unsplit = ~np.isfinite(wait) | ~np.isfinite(transfer)
    return np.where(unsplit, whole - shortest, wait), np.where(unsplit, shortest, transfer)
