"""Speeds of workers over a short and a long window, and classes of stragglers.

A **transient** straggler is slow in the short window only. A **persistent** one is slow in both windows. A
**deterministic** one is slow and steady although it was restarted, or its whole kind of hardware is slow. It
does not recover, and a further restart does not help. A worker that is slow from the first step on may be on
a bad machine: it counts as persistent until it was restarted once, on another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.errors import InvalidInput
from rca.robust import nan_median, peer_reference
from rca.runtime.antdt.thresholds import Thresholds


class StragglerKind(Enum):
    """Class of a worker."""

    none = "none"
    transient = "transient"
    persistent = "persistent"
    deterministic = "deterministic"


@dataclass(frozen=True)
class MonitorReading:
    """What the monitor has seen by one moment.

    Attributes
    ----------
    at : float
        Seconds, on the clock of the recorded batches.
    speed : ndarray of shape (n_workers,), samples per second
        Median of the short window; NaN if a worker did too few batches.
    ratio_short, ratio_long : ndarray of shape (n_workers,)
        Seconds per sample divided by those of the peers; 1 is as fast, 2 is half as fast.
    waited : ndarray of shape (n_workers,), seconds per batch
        Mean wait for samples in the short window; 0 where nothing was recorded.
    """

    at: float
    speed: FloatArray
    ratio_short: FloatArray
    ratio_long: FloatArray
    stragglers: tuple[StragglerKind, ...]
    waited: FloatArray

    @property
    def is_complete(self) -> bool:
        """Whether the speed of every worker is known."""
        return bool(np.isfinite(self.speed).all())

    def of(self, kind: StragglerKind) -> tuple[int, ...]:
        """Workers of one class."""
        return tuple(worker for worker, each in enumerate(self.stragglers) if each is kind)


class Monitor:
    """Collects the processing time of each batch, and compares workers.

    The time is that of a worker's own work: data, forward and backward, without the wait for others.

    Parameters
    ----------
    hardware : sequence of str, optional
        Kind of each worker's device. Workers of one kind are peers; a whole kind can be deterministic.
    fixed : float
        Seconds of a batch that do not depend on its size. They are subtracted from each time.
    restarted : collection of int
        Workers that were restarted in an earlier attempt of the job; keep them with its checkpoint.
    """

    def __init__(
        self,
        n_workers: int,
        thresholds: Thresholds | None = None,
        *,
        hardware: Sequence[str] | None = None,
        fixed: float = 0.0,
        restarted: Collection[int] = (),
    ) -> None:
        if n_workers < 1 or (hardware is not None and len(hardware) != n_workers):
            raise InvalidInput(f"{n_workers} workers have {len(hardware or ())} kinds of hardware")
        self.thresholds = thresholds or Thresholds()
        self.fixed = fixed
        #: End, seconds per sample, and seconds waited of each batch.
        self._batches: list[deque[tuple[float, float, float]]] = [deque() for _ in range(n_workers)]
        self._began: float | None = None
        self._first: FloatArray | None = None
        names = list(dict.fromkeys(hardware or ()))
        self._has_kinds = len(names) > 1
        self._kind: IntArray = np.array([names.index(each) for each in hardware or ()] or [0] * n_workers)
        #: Workers that were as fast as their peers once, over a long window, and those restarted once.
        self._was_fast: BoolArray = np.zeros(n_workers, dtype=np.bool_)
        self._restarted: BoolArray = np.isin(np.arange(n_workers), list(restarted))

    @property
    def n_workers(self) -> int:
        """Number of workers."""
        return len(self._batches)

    def record(self, worker: int, at: float, seconds: float, samples: int, waited: float = 0.0) -> None:
        """Add a batch.

        Parameters
        ----------
        at : float
            When the batch ended, seconds; any clock that all calls share.
        seconds : float
            Own work of the worker.
        samples : int
            Batches without samples are ignored.
        waited : float
            Seconds that the worker has waited for the samples, beside its own work.

        Raises
        ------
        InvalidInput
            If there is no such worker, or if the time is negative or not finite.
        """
        if not 0 <= worker < self.n_workers:
            raise InvalidInput(f"there is no worker {worker}: there are {self.n_workers}")
        if not (np.isfinite(seconds) and seconds >= 0 and np.isfinite(at) and samples >= 0):
            raise InvalidInput(f"worker {worker} did {samples} samples in {seconds} s")
        if samples == 0:
            return
        self._began = at if self._began is None else min(self._began, at)
        self._batches[worker].append((at, max(seconds - self.fixed, 0.0) / samples, waited))

    def forget(self, worker: int) -> None:
        """Drop the batches of a worker: it was restarted, perhaps elsewhere."""
        self._batches[worker].clear()
        self._was_fast[worker] = False
        self._restarted[worker] = True
        if self._first is not None:
            self._first[worker] = np.nan

    def reading(self, at: float) -> MonitorReading:
        """Compare the workers at a moment.

        Parameters
        ----------
        at : float
            Seconds, on the clock of `record`.

        Returns
        -------
        MonitorReading
        """
        rules = self.thresholds
        for batches in self._batches:
            while batches and batches[0][0] <= at - rules.long_seconds:
                batches.popleft()
        short, long = self._median(at, rules.short_seconds), self._median(at, rules.long_seconds)
        ratio_short, ratio_long = self._ratios(short), self._ratios(long)
        is_full = self._began is not None and at - self._began >= rules.long_seconds
        if is_full:
            self._was_fast |= ratio_long < rules.slow_ratio
            unseen = np.full(self.n_workers, np.nan) if self._first is None else self._first
            self._first = np.where(np.isfinite(unseen), unseen, ratio_long)
        classes = self._classes(short, ratio_short, ratio_long, is_full=is_full)
        with np.errstate(divide="ignore"):
            return MonitorReading(at, 1 / short, ratio_short, ratio_long, classes, self._mean_wait(at))

    def _mean_wait(self, at: float) -> FloatArray:
        begin = at - self.thresholds.short_seconds
        waits = [[waited for ended, _, waited in batches if begin < ended <= at] for batches in self._batches]
        return np.array([np.mean(each) if each else 0.0 for each in waits])

    def _classes(
        self, short: FloatArray, ratio_short: FloatArray, ratio_long: FloatArray, *, is_full: bool
    ) -> tuple[StragglerKind, ...]:
        rules = self.thresholds
        slow, slow_long = ratio_short >= rules.slow_ratio, ratio_long >= rules.slow_ratio
        first = np.full(self.n_workers, np.nan) if self._first is None else self._first
        with np.errstate(invalid="ignore"):
            steady = np.abs(ratio_short - first) <= rules.steady_share * first
        always = slow & slow_long & steady & ~self._was_fast & self._restarted & (not self._has_kinds)
        by_kind = self._slow_kinds(short)
        found = []
        for worker in range(self.n_workers):
            if slow[worker] and not always[worker]:
                # Without a full long window, both windows have the same batches.
                lasting = bool(slow_long[worker]) and is_full
                found.append(StragglerKind.persistent if lasting else StragglerKind.transient)
            elif always[worker] or by_kind[worker]:
                found.append(StragglerKind.deterministic)
            else:
                found.append(StragglerKind.none)
        return tuple(found)

    def _slow_kinds(self, seconds: FloatArray) -> BoolArray:
        """Whether a worker's kind of hardware is slower than the fastest kind."""
        if not self._has_kinds:
            return np.zeros(self.n_workers, dtype=np.bool_)
        of_kind = np.array(
            [nan_median(seconds[self._kind == kind][:, None])[0] for kind in range(self._kind.max() + 1)]
        )
        if not np.isfinite(of_kind).any():
            return np.zeros(self.n_workers, dtype=np.bool_)
        slow: BoolArray = of_kind >= self.thresholds.slow_ratio * np.nanmin(of_kind)
        return slow[self._kind]

    def _median(self, at: float, length: float) -> FloatArray:
        """Seconds per sample of each worker in the last `length` seconds."""
        found = np.full(self.n_workers, np.nan)
        for worker, batches in enumerate(self._batches):
            recent = [value for ended, value, _ in batches if at - length < ended <= at]
            if len(recent) >= self.thresholds.least_batches:
                found[worker] = np.median(recent)
        return found

    def _ratios(self, seconds: FloatArray) -> FloatArray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return seconds / peer_reference(seconds[:, None], self._kind)[:, 0]
