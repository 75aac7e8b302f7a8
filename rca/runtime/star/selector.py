"""A learned choice of the mode: LightGBM says how the time to progress compares with synchronous training.

It is learned on simulated jobs (`python -m benchmarks star-selector`), where steps vary, workers pause and
the server is busy. The price of usual steps alone is a feature, beside those of recent steps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from importlib import resources

import numpy as np

from rca.arrays import FloatArray
from rca.classify.booster import Booster
from rca.errors import InvalidInput
from rca.runtime.star.modes import (
    GROUP_DISTANCE,
    candidates,
    synchronous,
)
from rca.runtime.star.price import Kind, Mode, UpdateProgress
from rca.runtime.star.usual_step import usual_seconds

#: Jobs with more workers were not learned from.
MAX_WORKERS = 12
#: Modes in which each worker belongs to one group.
GROUPED: tuple[Kind, ...] = ("synchronous", "static groups", "dynamic groups")
FEATURES = (
    "price",
    "noise",
    "workers",
    "share of first update",
    "groups",
    "staleness",
    "learning rate",
    "mean over usual",
    "slowest over usual",
    "spread",
    "slowest over mean",
    "variation",
    "server",
)


def features(
    steps: FloatArray, progress: UpdateProgress, modes: Sequence[Mode], server_seconds: float
) -> FloatArray:
    """What the choice depends on, shape (n_modes, n_features).

    Parameters
    ----------
    steps : ndarray of shape (n_workers, n_steps), seconds
        Recent own times.
    progress : UpdateProgress
        With the usual times of these steps.
    server_seconds : float
        Time of the server for one message.
    """
    usual, n = progress.seconds, progress.n_workers
    full = synchronous(progress)
    mean = float(usual.mean())
    job = [
        np.log(np.nanmean(steps) / mean),
        np.log(np.nanmean(np.fmax.reduce(steps, axis=0)) / usual.max()),
        float(usual.std() / mean),
        float(usual.max() / mean - 1.0),
        float(np.nanmean(np.nanstd(steps, axis=1) / np.nanmean(steps, axis=1))),
        2.0 * server_seconds * n / mean,
    ]
    rows = [
        [
            np.log(min(mode.seconds / full.seconds, 1e3)),
            np.log1p(progress.noise / (progress.batch * n)),
            n,
            mode.order / n,
            len(mode.groups) / n,
            mode.staleness,
            mode.learning_rate,
            *job,
        ]
        for mode in modes
    ]
    return np.array(rows, dtype=np.float64)


class Selector:
    """Chooses among `candidates`.

    Parameters
    ----------
    text : str
        A LightGBM model of the logarithm of a mode's time over that of synchronous training.

    Raises
    ------
    InvalidInput
        If the model has other features.
    """

    def __init__(self, text: str) -> None:
        self._booster = Booster(text)
        if self._booster.n_features != len(FEATURES):
            raise InvalidInput(f"the selector has {self._booster.n_features} features, not {len(FEATURES)}")

    @classmethod
    @cache
    def shipped(cls) -> Selector:
        """The one that comes with the package."""
        return cls(resources.files(__package__).joinpath("selector.txt").read_text(encoding="utf-8"))

    def times(self, rows: FloatArray) -> FloatArray:
        """Expected time of each mode over that of synchronous training, shape (n_modes,)."""
        found: FloatArray = np.exp(self._booster.raw(rows)[:, 0])
        return found

    def choose(
        self,
        steps: FloatArray,
        batch: float,
        noise: float,
        *,
        server_seconds: float = 0.0,
        learning_rate: float | None = None,
        distance: float = GROUP_DISTANCE,
        kinds: Collection[Kind] = ("x-order", *GROUPED),
    ) -> Mode:
        """The mode with the least expected time.

        Parameters
        ----------
        steps : ndarray of shape (n_workers, n_steps), seconds
            Recent own times of the workers; NaN where none was measured.
        batch, noise, learning_rate
            As for `UpdateProgress`.
        server_seconds : float
            Time of a parameter server for one message.
        distance : float
            As for `dynamic_groups`.
        kinds : collection of str
            Kinds of modes to choose from.

        Raises
        ------
        InvalidInput
            If a worker has no time, or there are more than `MAX_WORKERS`.
        """
        if len(steps) > MAX_WORKERS:
            raise InvalidInput(
                f"the learned choice is for up to {MAX_WORKERS} workers, not {len(steps)}",
                hint="use rca.runtime.star.modes.choose",
            )
        progress = UpdateProgress(usual_seconds(steps), batch, noise, learning_rate=learning_rate)
        modes = [mode for mode in candidates(progress, distance) if mode.kind in kinds]
        times = self.times(features(steps, progress, modes, server_seconds))
        return modes[int(np.argmin(times))]
