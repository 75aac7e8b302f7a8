"""The mode with the least price, corrected by what each mode reaches in its first steps.

A price has the steps of all workers as they vary, and the work of the server. It leaves out what the machine
does: messages that wait for a processor, other tasks, wake-ups. That changes the reports per second of a
mode, and these are measured as soon as it runs. The ratio of measured and expected reports corrects its
price. Modes that have not run take the usual ratio of those that have.

Training is synchronous unless another mode is surely better, and so again when all workers are at speed.

References
----------
.. [1] STAR, arXiv 2512.09685.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from rca.errors import InvalidInput
from rca.runtime.star.arrivals import that_may_recur
from rca.runtime.star.grouping import EVERY, Grouping, SeenTimes, of_mode
from rca.runtime.star.modes import GROUP_DISTANCE, candidates, synchronous
from rca.runtime.star.price import Mode, UpdateProgress

#: A mode replaces the present one, or synchronous training, if its price is lower by this share.
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

    def __call__(self, n_updates: int, n_reports: int, seen: SeenTimes) -> Grouping | None:  # noqa: ARG002
        workers = np.flatnonzero(np.isfinite(seen.usual)).tolist()
        began, before = self._began
        if not workers or n_reports - before < self._every * len(workers):
            return None
        now = self._clock()
        progress = UpdateProgress(
            seen.usual[workers],
            self._batch,
            self._noise,
            report_seconds=seen.report_seconds,
            learning_rate=self._learning_rate,
            max_reports=self._max_reports,
            steps=that_may_recur(seen.steps[workers]),
        )
        full = synchronous(progress)
        self._began = now, n_reports
        if workers == self._workers or self.mode is None:
            present = full if self.mode is None else priced_again(self.mode, progress)
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
        best = min(candidates(progress, self._distance), key=self.seconds)
        for usual in (present, full):
            if self.seconds(best) >= (1.0 - MIN_GAIN) * self.seconds(usual):
                best = usual
        return best


def _key(mode: Mode) -> tuple[bool, tuple[int, ...]]:
    # An update from all workers is the same in each kind.
    sizes = tuple(map(len, mode.groups))
    return mode.kind == "x-order" and mode.staleness > 0, sizes


def priced_again(mode: Mode, progress: UpdateProgress) -> Mode:
    """The price of a mode with other times of the same workers."""
    if mode.kind == "x-order":
        return progress.of_order(mode.order)
    return progress.priced(mode.kind, mode.groups)
