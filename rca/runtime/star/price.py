"""What an update is worth, and so the seconds per unit of progress of groups of workers.

An update of `B` samples with a learning rate `r`, in units of the best one without noise, makes progress
``2 r - r**2 (1 + noise / B) - 2 r s``. `noise` is the gradient noise scale in samples. `s` sums the learning
rates of the updates since its parameters were read. It is the cost of staleness, to the second order of the
loss. Without staleness and with the best learning rate, an update makes progress ``1 / (1 + noise / B)``.

The learning rate of an update is in proportion to its reports. The common factor is the best one of the mode,
or given. With it no mode makes more progress per sample than synchronous training.

References
----------
.. [1] STAR, arXiv 2512.09685.
.. [2] McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv 1812.06162, section 2.2. The
   term of staleness follows from the same expansion, with the gradient of earlier parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.runtime.star.arrivals import expected_arrivals

Kind = Literal["synchronous", "x-order", "static groups", "dynamic groups"]
_HALVINGS = 50


def iterations(samples: float | FloatArray, noise: float) -> FloatArray:
    """Updates of so many samples that make the progress of one update without noise.

    Parameters
    ----------
    samples : float or ndarray
        Of one update.
    noise : float
        Gradient noise scale in samples.
    """
    return np.asarray(1.0 + noise / np.asarray(samples, dtype=np.float64))


def partial_updates(share: float, noise: float | None, batch: float | None) -> float:
    """Updates from a share of the samples that make the progress of one full update.

    Parameters
    ----------
    share : float
        Of the samples, above 0 and at most 1.
    noise, batch : float or None
        Gradient noise scale, and samples of a full update. Without one of them every sample counts alike.
    """
    if noise is None or batch is None:
        return 1.0 / share
    return float(iterations(share * batch, noise) / iterations(batch, noise))


def grouped_step_seconds(
    shares: FloatArray, seconds: FloatArray, noise: float | None, batch: float | None
) -> FloatArray:
    """Step time with which synchronous training would make the progress of several groups.

    Parameters
    ----------
    shares : ndarray of shape (n_groups,)
        Of each group in the samples of a full update; their sum is 1.
    seconds : ndarray of shape (n_groups, ...)
        Time between two updates of each group.
    noise, batch : float or None
        As for `partial_updates`.

    Returns
    -------
    ndarray of shape (...)
    """
    if noise is None or batch is None:
        rate = np.tensordot(shares, 1.0 / seconds, axes=1)
        return np.asarray(1.0 / rate)
    gain, loss = _gain_and_loss(shares, seconds, noise / batch)
    return np.asarray(loss / gain**2 / (1.0 + noise / batch))


def _gain_and_loss(shares: FloatArray, seconds: FloatArray, noise: float) -> tuple[FloatArray, FloatArray]:
    """Progress per second is ``2 r gain - r**2 loss`` with the learning rate `r` of a full update.

    `noise` is in full updates.
    """
    weight = shares.reshape(-1, *(1,) * (seconds.ndim - 1))
    gain = (weight / seconds).sum(axis=0)
    # While a group computes an update, the others make updates at their own pace.
    interim = seconds * gain - weight
    return gain, (weight * (weight + noise + 2.0 * interim) / seconds).sum(axis=0)


@dataclass(frozen=True)
class Mode:
    """A way to synchronise.

    Attributes
    ----------
    kind : {"synchronous", "x-order", "static groups", "dynamic groups"}
    groups : tuple of tuple of int
        Workers that update together, fast groups first. In x-order: the `x` workers expected to be first.
    seconds : float
        Expected time in which the mode makes the progress of one update without noise; infinite if it makes
        none.
    staleness : float
        Expected mean number of updates between the read of parameters and the update with their gradient.
    learning_rate : float
        Of an update from all workers, as a share of the best one without noise. An update of fewer reports
        takes its share of it.
    reports_per_second : float
        Expected, of all workers.
    """

    kind: Kind
    groups: tuple[tuple[int, ...], ...]
    seconds: float
    staleness: float
    learning_rate: float
    reports_per_second: float

    @property
    def order(self) -> int:
        """Reports that the first update waits for."""
        return len(self.groups[0])


@dataclass(frozen=True)
class UpdateProgress:
    """Times of workers, and what a report is worth.

    Parameters
    ----------
    seconds : ndarray of shape (n_workers,)
        Expected time of a step of each worker: computation, transfer and optimizer, without waiting.
    batch : float
        Samples of one worker and step.
    noise : float
        Gradient noise scale in samples. At 0, small updates are as good as large ones.
    report_seconds : float
        Time of a server for a report: to take it, its share of the update, and to answer. An update waits for
        that of all its reports, and all workers together report no faster.
    learning_rate : float, optional
        Of an update from all workers, as a share of the best one without noise; see
        `rca.runtime.star.learning_rate`. By default each mode has its best one.
    max_reports : float
        Reports per second that the machine of the server can take beside its other tasks; see
        `rca.runtime.star.capacity`. A mode with more of them waits.
    steps : ndarray of shape (n_workers, n_steps), optional
        Recent steps of each worker, seconds; NaN where none was measured. With them an update waits for the
        slowest of steps that vary. Without, each step takes the expected time.

    Raises
    ------
    InvalidInput
        If a value is not finite, a time or the learning rate is not positive, there is no worker, or one has
        no step.
    """

    seconds: FloatArray
    batch: float
    noise: float
    report_seconds: float = 0.0
    learning_rate: float | None = None
    max_reports: float = math.inf
    steps: FloatArray | None = None

    def __post_init__(self) -> None:
        check_seconds(self.seconds)
        if not self.max_reports > 0:
            raise InvalidInput(
                f"a server that can take {self.max_reports} reports per second makes no update"
            )
        if not (np.isfinite(self.batch) and self.batch > 0):
            raise InvalidInput(f"a worker's batch has {self.batch} samples")
        if not (np.isfinite(self.noise) and self.noise >= 0):
            raise InvalidInput(
                f"the gradient noise scale is {self.noise} samples",
                hint="measure it with rca.runtime.star.noise; without it no mode can be priced",
            )
        if not (np.isfinite(self.report_seconds) and self.report_seconds >= 0):
            raise InvalidInput(f"the server takes {self.report_seconds} s for a report")
        if self.steps is not None and (
            len(self.steps) != self.n_workers or not np.isfinite(self.steps).any(axis=1).all()
        ):
            raise InvalidInput(f"not each of the {self.n_workers} workers has a step")
        if self.steps is not None and (np.isinf(self.steps) | (self.steps <= 0)).any():
            raise InvalidInput(
                "a step takes no time, or endless time", hint="leave out what was not measured"
            )
        if self.learning_rate is not None and not (
            np.isfinite(self.learning_rate) and self.learning_rate > 0
        ):
            raise InvalidInput(f"the learning rate is {self.learning_rate} times the best one")

    @property
    def n_workers(self) -> int:
        return self.seconds.size

    @property
    def fastest_first(self) -> tuple[int, ...]:
        """Workers by time, equal ones by number."""
        return tuple(int(worker) for worker in np.argsort(self.seconds, kind="stable"))

    def iterations(self, n_reports: int | FloatArray) -> FloatArray:
        """Fresh updates of so many reports that make the progress of one update without noise."""
        return iterations(np.asarray(n_reports, dtype=np.float64) * self.batch, self.noise)

    def of_groups(self, groups: Sequence[Sequence[int]]) -> float:
        """Seconds per unit of progress if each group updates when its slowest worker has reported."""
        return self.priced("dynamic groups", groups).seconds

    def of_orders(self) -> FloatArray:
        """Seconds per unit of progress if an update takes 1, 2, ..., n reports, shape (n_workers,)."""
        share = np.arange(1.0, self.n_workers + 1) / self.n_workers
        return self._seconds_at_best(*self._gain_and_loss_of_order(share), self._intervals)[0]

    def intervals(self) -> FloatArray:
        """Expected seconds between updates of 1, 2, ..., n reports, shape (n_workers,).

        Each worker goes on when its report is used. A report waits for half of the others of its update on
        average, and an update never for more than its number of fastest workers. The server's work follows.
        """
        orders = np.arange(1.0, self.n_workers + 1)[:, None]
        served = orders * self.report_seconds
        if self.steps is None:
            mean, high = self.seconds, np.sort(self.seconds)
        else:
            mean, high = np.nanmean(self.steps, axis=1), expected_arrivals(self.steps)
        low, high = np.zeros(self.n_workers), high + served[:, 0]
        for _ in range(_HALVINGS):
            middle = ((low + high) / 2)[:, None]
            reports = np.minimum(middle / (mean + served + middle * (orders - 1) / (2 * orders)), 1.0)
            enough = reports.sum(axis=1) >= orders[:, 0]
            low, high = np.where(enough, low, middle[:, 0]), np.where(enough, middle[:, 0], high)
        return np.maximum(high, orders[:, 0] / self._most_reports)

    def of_order(self, order: int) -> Mode:
        """The mode with updates of so many reports."""
        share = np.array(order / self.n_workers)
        gain_and_loss = self._gain_and_loss_of_order(share)
        seconds, rate = self._seconds_at_best(*gain_and_loss, self._intervals[order - 1])
        groups = (self.fastest_first[:order],)
        reports = order / float(self._intervals[order - 1])
        return Mode("x-order", groups, float(seconds), 1.0 / float(share) - 1.0, float(rate), reports)

    def priced(self, kind: Kind, groups: Sequence[Sequence[int]]) -> Mode:
        """The mode with these groups, which hold each worker once."""
        shares = np.array([len(group) / self.n_workers for group in groups])
        seconds = np.array([self._slowest(group) + len(group) * self.report_seconds for group in groups])
        reports = float((shares / seconds).sum()) * self.n_workers
        taken = min(reports, self._most_reports)
        gain, loss = _gain_and_loss(shares, seconds * (reports / taken), self._full_noise)
        at_best, rate = self._seconds_at_best(gain, loss, np.array(1.0))
        fixed = tuple(tuple(group) for group in groups)
        return Mode(kind, fixed, float(at_best), len(groups) - 1.0, float(rate), taken)

    def _gain_and_loss_of_order(self, share: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of one update. By Little's law the mean staleness is ``1 / share - 1``."""
        return share, share * (2.0 - share + self._full_noise)

    def _seconds_at_best(
        self, gain: FloatArray, loss: FloatArray, seconds: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Seconds per unit of progress and learning rate, where gain and loss are per so many seconds."""
        rate = gain / loss if self.learning_rate is None else np.full(gain.shape, self.learning_rate)
        progress = 2.0 * rate * gain - rate**2 * loss
        found = np.full(gain.shape, np.inf)
        np.divide(seconds, progress, out=found, where=progress > 0)
        return found, rate

    def _slowest(self, group: Sequence[int]) -> float:
        """Time until all of a group have reported, which begin together."""
        if self.steps is None:
            return float(self.seconds[list(group)].max())
        key = tuple(group)
        if key not in self._arrived:
            self._arrived[key] = float(expected_arrivals(self.steps[list(group)])[-1])
        return self._arrived[key]

    @cached_property
    def _arrived(self) -> dict[tuple[int, ...], float]:
        return {}

    @property
    def _most_reports(self) -> float:
        """Reports per second of all workers that server and machine can take."""
        return min(self.max_reports, 1.0 / self.report_seconds) if self.report_seconds else self.max_reports

    @cached_property
    def _intervals(self) -> FloatArray:
        return self.intervals()

    @property
    def _full_noise(self) -> float:
        """The noise scale in full updates."""
        return self.noise / (self.batch * self.n_workers)


def check_seconds(seconds: FloatArray) -> None:
    """Refuse times that are not those of one worker or more."""
    if seconds.ndim != 1 or seconds.size == 0:
        raise InvalidInput("there is no worker", hint="give one expected time for each worker")
    wrong = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0)))
    if wrong.size:
        worker = int(wrong[0])
        raise InvalidInput(
            f"the expected time of worker {worker} is {seconds[worker]} s",
            hint="leave out a worker that has not finished a step",
        )
