"""The mode with the least price, corrected by what each mode reaches in its first steps.

A price leaves out what the machine does: messages that wait for a processor, other tasks, wake-ups. That
changes the reports per second of a mode, and these are measured as soon as it runs. The ratio of measured and
expected reports corrects its price. Modes that have not run take the usual ratio of those that have.

When there is no straggler, training is synchronous again.

References
----------
.. [1] STAR, arXiv 2512.09685.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.runtime.star.grouping import EVERY, Grouping, of_mode
from rca.runtime.star.modes import GROUP_DISTANCE, candidates, synchronous
from rca.runtime.star.price import Mode, UpdateProgress
from rca.runtime.star.usual_step import is_straggler

#: A mode replaces another one if its price is lower by this share.
MIN_GAIN = 0.05


class CalibratedChoice:
    """A `Choice` for a parameter server, which begins with an update from all workers.

    Parameters
    ----------
    batch, noise, learning_rate, max_reports
        As for `UpdateProgress`.
    distance : float
        As for `dynamic_groups`.
    every : int
        Reports of each worker between two choices; those of the first steps of a mode.
    clock : callable
        Gives seconds.

    Attributes
    ----------
    ratios : dict
        Measured over expected reports per second by kind of updates and sizes of the groups.
    mode : Mode or None
        The present one, with its corrected price; None before the first choice.
    """

    def __init__(
        self,
        batch: float,
        noise: float,
        *,
        learning_rate: float | None = None,
        max_reports: float = np.inf,
        distance: float = GROUP_DISTANCE,
        every: int = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every < 1:
            raise InvalidInput(f"a mode cannot be measured in {every} steps")
        self._batch, self._noise, self._learning_rate = batch, noise, learning_rate
        self._max_reports, self._distance, self._every, self._clock = max_reports, distance, every, clock
        self.ratios: dict[tuple[bool, tuple[int, ...]], float] = {}
        self.mode: Mode | None = None
        self._workers: list[int] = []
        self._began = clock(), 0

    def __call__(self, n_updates: int, n_reports: int, usual: FloatArray) -> Grouping | None:  # noqa: ARG002
        workers = np.flatnonzero(np.isfinite(usual)).tolist()
        began, before = self._began
        if not workers or n_reports - before < self._every * len(workers):
            return None
        now = self._clock()
        progress = UpdateProgress(
            usual[workers],
            self._batch,
            self._noise,
            learning_rate=self._learning_rate,
            max_reports=self._max_reports,
        )
        full = synchronous(progress)
        self._began = now, n_reports
        if workers == self._workers or self.mode is None:
            present = full if self.mode is None else _priced_again(self.mode, progress)
            self.ratios[_key(present)] = (n_reports - before) / (now - began) / present.reports_per_second
        else:
            present = full
        self._workers = workers
        self.mode = self._best(progress, full, present)
        return of_mode(self.mode, workers)

    def seconds(self, mode: Mode) -> float:
        """Its price with the measured ratio of reports."""
        usual = float(np.median(list(self.ratios.values()))) if self.ratios else 1.0
        return mode.seconds / self.ratios.get(_key(mode), usual)

    def _best(self, progress: UpdateProgress, full: Mode, present: Mode) -> Mode:
        if not is_straggler(progress.seconds).any():
            return full
        best = min(candidates(progress, self._distance), key=self.seconds)
        return best if self.seconds(best) < (1.0 - MIN_GAIN) * self.seconds(present) else present


def _key(mode: Mode) -> tuple[bool, tuple[int, ...]]:
    # An update from all workers is the same in each kind.
    sizes = tuple(map(len, mode.groups))
    return mode.kind == "x-order" and mode.staleness > 0, sizes


def _priced_again(mode: Mode, progress: UpdateProgress) -> Mode:
    """The price of a mode at the present times of the same workers."""
    if mode.kind == "x-order":
        return progress.of_order(mode.order)
    return progress.priced(mode.kind, mode.groups)
