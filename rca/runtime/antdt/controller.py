"""The controller: which action, from what the monitor has seen.

AntDT-ND (`NonDedicated`) is for clusters whose nodes are shared. It shifts batch sizes at once, because that
is cheap. It restarts a persistent straggler when the time lost to it equals the cost of the restart. This is
the rule of ski-rental: its cost is at most twice that of a rule that has foreseen how long the fault lasts.
A fault lasts until the worker has been at speed for a while. All time lost until then counts, also while the
straggler reads as transient.
A slow service of shards is no worker's fault. It is named when a step would be shorter without the wait.
AntDT-DD (`Dedicated`) is for mixed hardware: micro-batches and accumulation steps within memory limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.errors import InvalidInput
from rca.runtime.antdt.accumulation import Hardware, accumulated
from rca.runtime.antdt.batch_sizes import balanced, step_seconds
from rca.runtime.antdt.decision import Decision
from rca.runtime.antdt.monitor import MonitorReading, StragglerKind

ADJUST_BATCH_SIZES = "ADJUST_BS"
KILL_RESTART = "KILL_RESTART"
RELIEVE_SHARDS = "RELIEVE_SHARDS"
#: At least this share of a measured time depends on the samples, even if the fixed time is given too long.
_MIN_SHARE = 0.05


@dataclass(frozen=True)
class ControlAction:
    """An action of the controller.

    Attributes
    ----------
    name : str
        `ADJUST_BATCH_SIZES`, `KILL_RESTART` or `RELIEVE_SHARDS`.
    reason : str
        One sentence for a person.
    decision : Decision or None
        New batch sizes.
    worker : int or None
        The worker to restart.
    before, after : float
        Predicted seconds of a step without and with the action.
    """

    name: str
    reason: str
    decision: Decision | None = None
    worker: int | None = None
    before: float = float("nan")
    after: float = float("nan")

    @property
    def gain(self) -> float:
        """Predicted share of the step time that is saved."""
        return 1 - self.after / self.before


@dataclass
class NonDedicated:
    """AntDT-ND: batch sizes first, then a restart of what persists.

    Parameters
    ----------
    decision : Decision
        Batch sizes at the start of the job; the total is kept.
    restart_seconds : float
        Cost of a restart, all workers waiting: start, rendezvous, checkpoint, lost steps.
    least, most : int or ndarray of shape (n_workers,)
        Limits of the batch sizes.
    least_gain : float
        Smallest share of the step time for which sizes change, or the service of shards is called slow.
    fixed : float
        Seconds of a step that do not depend on the batch size; the same as the monitor's.
    calm_seconds : float
        A fault is over when its worker has been at speed for so long without a break.

    Attributes
    ----------
    lost : ndarray of shape (n_workers,), seconds
        Time lost to the fault of each worker so far, with the sizes as they were. Time as a deterministic
        straggler is subtracted: a restart would not help.
    """

    decision: Decision
    restart_seconds: float
    least: int | IntArray = 1
    most: int | IntArray | None = None
    least_gain: float = 0.05
    fixed: float = 0.0
    calm_seconds: float = 600.0
    lost: FloatArray = field(init=False)
    _calm: FloatArray = field(init=False)
    _ordered: set[int] = field(init=False, default_factory=set)
    _seen: float | None = field(init=False, default=None)
    _waits: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if not self.restart_seconds > 0:
            raise InvalidInput(f"a restart takes {self.restart_seconds} s", hint="give a positive number")
        if not self.calm_seconds >= 0:
            raise InvalidInput(f"calm_seconds is {self.calm_seconds}", hint="give 0 or a positive number")
        self.lost = np.zeros(self.decision.n_workers)
        #: Seconds that each worker has been at speed without a break.
        self._calm = np.zeros(self.decision.n_workers)

    def act(self, reading: MonitorReading, next_step: int) -> tuple[ControlAction, ...]:
        """Decide at a moment.

        Parameters
        ----------
        next_step : int
            First step that new sizes can apply to.

        Returns
        -------
        tuple of Action
            Empty if nothing is to be done, or while a worker has not been measured.
        """
        if len(reading.stragglers) != self.decision.n_workers:
            raise InvalidInput(f"{self.decision.n_workers} workers have {len(reading.stragglers)} speeds")
        if not reading.is_complete:
            return ()
        passed = 0.0 if self._seen is None else max(reading.at - self._seen, 0.0)
        self._seen = reading.at
        restarts = self._restarts(reading, passed)
        return self._relieved(reading) + (restarts or self._adjusted(reading, next_step))

    def restarted(self, worker: int) -> None:
        """Begin to count anew for a worker that was restarted. Until then it is not restarted again."""
        self.lost[worker] = self._calm[worker] = 0.0
        self._ordered.discard(worker)

    def _restarts(self, reading: MonitorReading, passed: float) -> tuple[ControlAction, ...]:
        persistent = set(reading.of(StragglerKind.persistent))
        fixed = np.full(reading.speed.size, self.fixed)
        now = step_seconds(np.array(self.decision.samples), reading.speed, fixed)
        for worker, kind in enumerate(reading.stragglers):
            if kind is StragglerKind.none:
                self._calm[worker] += passed
                if self._calm[worker] >= self.calm_seconds:
                    # The fault is over: what it cost is spent.
                    self.lost[worker] = 0.0
                continue
            self._calm[worker] = 0.0
            share = max(1 - self._without(reading, worker) / now, 0.0)
            sign = -1 if kind is StragglerKind.deterministic else 1
            self.lost[worker] = max(self.lost[worker] + sign * passed * share, 0.0)
        waiting = sorted(persistent - self._ordered)
        due = [worker for worker in waiting if self.lost[worker] >= self.restart_seconds]
        if not due:
            return ()
        worst = max(due, key=lambda worker: float(self.lost[worker]))
        self._ordered.add(worst)
        return (
            ControlAction(
                KILL_RESTART,
                f"worker {worst} has cost {self.lost[worst]:.1f} s so far, a restart costs "
                f"{self.restart_seconds:.1f} s",
                worker=worst,
                before=now,
                after=self._without(reading, worst),
            ),
        )

    def _relieved(self, reading: MonitorReading) -> tuple[ControlAction, ...]:
        """Name a slow service of shards, once until it is at speed again."""
        fixed = np.full(reading.speed.size, self.fixed)
        sizes = np.array(self.decision.samples)
        before = step_seconds(sizes, reading.speed, fixed + reading.waited)
        after = step_seconds(sizes, reading.speed, fixed)
        waited_before, self._waits = self._waits, after < before * (1 - self.least_gain)
        if waited_before or not self._waits:
            return ()
        reason = (
            f"a step waits {before - after:.3f} of {before:.3f} s for shards of the data; "
            "take larger shards, ask ahead (background=True), or give their service more CPU"
        )
        return (ControlAction(RELIEVE_SHARDS, reason, before=before, after=after),)

    def _without(self, reading: MonitorReading, worker: int) -> float:
        """Seconds of a step if the worker were as fast as its peers."""
        speed = reading.speed.copy()
        speed[worker] *= max(float(reading.ratio_short[worker]), 1.0)
        fixed = np.full(speed.size, self.fixed)
        return step_seconds(self._sizes(speed), speed, fixed)

    def _sizes(self, speed: FloatArray) -> IntArray:
        fixed = np.full(speed.size, self.fixed)
        return balanced(speed, self.decision.total, fixed=fixed, least=self.least, most=self.most)

    def _adjusted(self, reading: MonitorReading, next_step: int) -> tuple[ControlAction, ...]:
        fixed = np.full(reading.speed.size, self.fixed)
        sizes = self._sizes(reading.speed)
        before = step_seconds(np.array(self.decision.samples), reading.speed, fixed)
        after = step_seconds(sizes, reading.speed, fixed)
        if after > before * (1 - self.least_gain):
            return ()
        decision = Decision(
            self.decision.version + 1, next_step, tuple(sizes.tolist()), (1,) * self.decision.n_workers
        )
        self.decision = decision
        slow = [worker for worker, kind in enumerate(reading.stragglers) if kind is not StragglerKind.none]
        who = f"slow workers: {', '.join(map(str, slow))}" if slow else "workers differ in speed"
        reason = f"{who}; a step takes {after:.3f} s instead of {before:.3f} s"
        return (ControlAction(ADJUST_BATCH_SIZES, reason, decision=decision, before=before, after=after),)


@dataclass
class Dedicated:
    """AntDT-DD: micro-batches and accumulation steps for mixed hardware.

    Parameters
    ----------
    hardware : sequence of Hardware
        Memory limits and fixed times; the speeds are measured, by a monitor without a fixed time.
    least_gain : float
        Smallest share of the step time for which sizes change. Sizes are searched anew when the speed of a
        worker has changed by half of it: all ranks wait for the search.
    """

    decision: Decision
    hardware: Sequence[Hardware]
    most_steps: int = 64
    least_gain: float = 0.05
    _searched: FloatArray | None = field(init=False, default=None)

    def act(self, reading: MonitorReading, next_step: int) -> tuple[ControlAction, ...]:
        """Decide at a moment; parameters and result are those of `NonDedicated.act`."""
        if not reading.is_complete:
            return ()
        if self._searched is not None:
            changes = np.abs(reading.speed / self._searched - 1)
            if changes.max() < self.least_gain / 2:
                return ()
        self._searched = reading.speed
        passes = np.array(self.decision.steps) / np.array(self.decision.samples)
        fixed = np.array([kind.fixed for kind in self.hardware])
        # The measured time of a sample has its share of the fixed times of the passes.
        seconds = np.maximum(1 / reading.speed - passes * fixed, _MIN_SHARE / reading.speed)
        workers = [
            # Three digits: noise would make each worker a kind of its own.
            replace(kind, speed=float(f"{1 / each:.3g}"))
            for kind, each in zip(self.hardware, seconds, strict=True)
        ]
        best = accumulated(workers, self.decision.total, most_steps=self.most_steps)
        now = zip(workers, self.decision.sizes, self.decision.steps, strict=True)
        before = max(steps * worker.seconds(size) for worker, size, steps in now)
        if best.seconds > before * (1 - self.least_gain):
            return ()
        sizes, steps = tuple(best.sizes.tolist()), tuple(best.steps.tolist())
        self.decision = Decision(self.decision.version + 1, next_step, sizes, steps)
        reason = f"a step takes {best.seconds:.3f} s instead of {before:.3f} s"
        return (
            ControlAction(
                ADJUST_BATCH_SIZES, reason, decision=self.decision, before=before, after=best.seconds
            ),
        )
