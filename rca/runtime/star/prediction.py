"""Step times of the next step, predicted from CPU and bandwidth of recent steps.

With enough rows, LightGBM predicts how far a worker's next step is from its usual one. It is kept only if it
beats the usual step on the newest steps, which it has not seen. Otherwise, and with few rows, the usual step
is the prediction: the median in which newer steps weigh more.

References
----------
.. [1] STAR, arXiv 2512.09685: stragglers come from CPU and bandwidth, not from GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.errors import InvalidInput

#: A worker is a straggler if its step is longer than the shortest one by more than this share.
STRAGGLER_SHARE = 0.2
#: Steps that a prediction looks back on.
LOOK_BACK = 8
#: Steps after which a step has half its weight in the usual step time.
HALF_LIFE = 4.0
#: Rows, of one worker and step, from which a regression is fitted.
MIN_ROWS = 300
#: The newest share of the steps is held out to compare the regression with the usual step.
HELD_OUT = 0.2

_PARAMETERS: dict[str, Any] = {
    # Squares find the few slow rows; linear from a factor of 2.5 on, so that rare pauses do not rule.
    "objective": "huber",
    "alpha": 0.9,
    "num_leaves": 15,
    "min_data_in_leaf": 20,
    "learning_rate": 0.1,
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbose": -1,
}
_ROUNDS = 60


@dataclass(frozen=True)
class StepHistory:
    """What has been measured, oldest step first.

    Parameters
    ----------
    seconds : ndarray of shape (n_workers, n_steps)
        Own time of each step, without the wait for others. NaN where it was not measured.
    cpu : ndarray of shape (n_workers, n_steps)
        Load of the worker's processors, such as the share of the time that they are busy. NaN is allowed.
    bandwidth : ndarray of shape (n_workers, n_steps)
        Load of the worker's link, in any one unit. NaN is allowed.

    Raises
    ------
    InvalidInput
        If the shapes differ, a time is not positive, or a worker has no measured step.
    """

    seconds: FloatArray
    cpu: FloatArray
    bandwidth: FloatArray

    def __post_init__(self) -> None:
        shapes = {self.seconds.shape, self.cpu.shape, self.bandwidth.shape}
        if len(shapes) > 1 or self.seconds.ndim != 2 or 0 in self.seconds.shape:
            raise InvalidInput(f"step times, CPU and bandwidth have the shapes {sorted(shapes)}")
        known = ~np.isnan(self.seconds)
        if not (np.isfinite(self.seconds[known]) & (self.seconds[known] > 0)).all():
            raise InvalidInput("a step time is not positive or not finite")
        silent = np.flatnonzero(~known.any(axis=1))
        if silent.size:
            raise InvalidInput(
                f"worker {int(silent[0])} has no measured step",
                hint="leave out workers without a step time",
            )

    def until(self, step: int) -> StepHistory:
        """The steps before one."""
        return StepHistory(self.seconds[:, :step], self.cpu[:, :step], self.bandwidth[:, :step])


@dataclass(frozen=True)
class Prediction:
    """Expected times of the next step.

    Attributes
    ----------
    seconds : ndarray of shape (n_workers,)
    method : str
        ``regression``, or ``usual step``.
    """

    seconds: FloatArray
    method: str

    @property
    def stragglers(self) -> BoolArray:
        """Workers expected to be stragglers, shape (n_workers,)."""
        return is_straggler(self.seconds)


class Predictor:
    """Fitted once, used for many steps.

    Attributes
    ----------
    errors : tuple of float or None
        Mean absolute error on held-out steps, of the regression and of the usual step, as shares of the usual
        step. None if there were too few rows.
    """

    def __init__(self, history: StepHistory) -> None:
        self.errors: tuple[float, float] | None = None
        self._booster: Any = None
        rows, ratios, step = _training_rows(history)
        if ratios.size < MIN_ROWS:
            return
        known = history.seconds.shape[1]
        held = step >= known - max(int((known - LOOK_BACK) * HELD_OUT), 1)
        if held.all() or not held.any():
            return
        booster = _fitted(rows[~held], ratios[~held])
        found = np.abs(np.asarray(booster.predict(rows[held])) - ratios[held]).mean()
        usual = np.abs(ratios[held]).mean()
        self.errors = (float(found), float(usual))
        if found < usual:
            self._booster = _fitted(rows, ratios)

    def predict(self, history: StepHistory) -> Prediction:
        """Times of the step after the last one.

        Parameters
        ----------
        history : StepHistory
            Newest measurements of the same workers; `LOOK_BACK` steps are enough.
        """
        usual = usual_seconds(history.seconds)
        if self._booster is None or history.seconds.shape[1] < LOOK_BACK:
            return Prediction(usual, "usual step")
        ratios = np.asarray(self._booster.predict(_row_block(history, history.seconds.shape[1], usual)))
        # A log ratio keeps predictions positive; trees predict nothing outside of what they have seen.
        return Prediction(usual * np.exp(ratios), "regression")


def usual_seconds(seconds: FloatArray) -> FloatArray:
    """Median of the last steps of each worker, with weights that halve every `HALF_LIFE` steps.

    Parameters
    ----------
    seconds : ndarray of shape (n_workers, n_steps)

    Returns
    -------
    ndarray of shape (n_workers,), seconds
        NaN where nothing was measured.
    """
    age = np.arange(seconds.shape[1])[::-1]
    weight = np.where(np.isnan(seconds), 0.0, 0.5 ** (age / HALF_LIFE))
    order = np.argsort(seconds, axis=1)  # NaN sorts last, with weight 0.
    total = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    middle = (total >= total[:, -1:] / 2).argmax(axis=1)
    found: FloatArray = np.take_along_axis(seconds, order, axis=1)[np.arange(len(seconds)), middle]
    return found


def is_straggler(seconds: FloatArray, share: float = STRAGGLER_SHARE) -> BoolArray:
    """Workers that take longer than the fastest by more than a share of its time.

    Parameters
    ----------
    seconds : ndarray of shape (n_workers,)
        NaN for a worker without a time, which is not called a straggler.
    share : float
        0.2 for 20 %.

    Raises
    ------
    InvalidInput
        If no time is known, or one is not positive.
    """
    known = seconds[~np.isnan(seconds)]
    if not known.size or not (known > 0).all():
        raise InvalidInput("no expected step time is known, or one is not positive")
    least = known.min()
    found: BoolArray = (seconds - least) / least > share
    return found


def _row_block(history: StepHistory, step: int, usual: FloatArray) -> FloatArray:
    """Features of all workers for one step, from the steps before it: (n_workers, n_features)."""
    first = step - LOOK_BACK
    parts: list[FloatArray] = []
    for values in (history.cpu, history.bandwidth):
        recent = values[:, first:step]
        parts += [recent, recent[:, -1:] - recent[:, :1]]
    # Trees see times as ratios: one tree serves workers and models of any speed.
    parts.append(np.log(history.seconds[:, first:step] / usual[:, None]))
    block: FloatArray = np.concatenate(parts, axis=1)
    return block


def _training_rows(history: StepHistory) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Features, logarithm of the time over the usual one, and step, of every measured step."""
    rows, ratios, steps = [], [], []
    for step in range(LOOK_BACK, history.seconds.shape[1]):
        usual = usual_seconds(history.seconds[:, :step])
        ratio = np.log(history.seconds[:, step] / usual)
        known = np.isfinite(ratio)
        rows.append(_row_block(history, step, usual)[known])
        ratios.append(ratio[known])
        steps.append(np.full(int(known.sum()), float(step)))
    if not rows:
        return np.empty((0, 0)), np.empty(0), np.empty(0)
    return np.concatenate(rows), np.concatenate(ratios), np.concatenate(steps)


def _fitted(rows: FloatArray, ratios: FloatArray) -> Any:
    import lightgbm

    return lightgbm.train(_PARAMETERS, lightgbm.Dataset(rows, ratios), _ROUNDS)
