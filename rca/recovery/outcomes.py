"""Did an action help? The gain that later windows show, and what it says about later predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import fmean, median
from typing import Literal

from rca.errors import InvalidInput
from rca.recovery.situation import Interval

Outcome = Literal["pending", "helped", "did_not_help", "unclear"]
#: Windows after an action from which its gain is judged, and most windows on either side.
MIN_AFTER, MAX_WINDOWS = 3, 6
#: Two-sided level of the intervals of gains.
LEVEL = 0.9
#: An action helped if it gains at least this share of what was expected,
HELPED_SHARE = 0.1
#: and did not help if it surely gains less than this share.
FAILED_SHARE = 0.5
#: Incidents without any correction that count beside the observed ones.
PRIOR_INCIDENTS = 4.0
#: A prediction is corrected by at most this factor.
MAX_FACTOR = 2.0


@dataclass(frozen=True)
class GainEstimate:
    """What an action gained.

    Attributes
    ----------
    seconds : float, seconds per step
        Mean loss of the windows before less that of the windows after.
    before, after : float, seconds per step
        Mean loss of the windows.
    """

    seconds: float
    interval: Interval
    before: float
    after: float


@dataclass(frozen=True)
class Correction:
    """Observed over predicted gain of one action.

    Attributes
    ----------
    n : int
        Incidents.
    median : float or None
        Of their ratios, each cut to 0 to 2; None without incidents.
    factor : float
        For later predictions, from 0 to 2.
    """

    n: int
    median: float | None
    factor: float


def observed_gain(before: Sequence[float], after: Sequence[float]) -> GainEstimate | None:
    """The fall of the loss from the windows before an action to those after it.

    Parameters
    ----------
    before, after : sequence of float, seconds per step
        Loss of each window against a job without stragglers.

    Returns
    -------
    GainEstimate or None
        None with no window on one side, or fewer than three in sum.

    Raises
    ------
    InvalidInput
        If a loss is not finite.

    Notes
    -----
    A loss is measured against the same window without stragglers. So it stays comparable where the usual step
    changes with the batch, unlike step times. The interval is that of Student's t with one variance for both
    sides, because there may be one window only before an action.
    """
    if not all(map(isfinite, [*before, *after])):
        raise InvalidInput("a loss is not finite", hint="leave out windows whose loss is not known")
    freedom = len(before) + len(after) - 2
    if not before or not after or freedom < 1:
        return None
    from scipy.stats import t

    means = fmean(before), fmean(after)
    squares = sum((each - means[0]) ** 2 for each in before) + sum((each - means[1]) ** 2 for each in after)
    error = sqrt(squares / freedom * (1.0 / len(before) + 1.0 / len(after)))
    half = float(t.ppf((1.0 + LEVEL) / 2, freedom)) * error
    gain = means[0] - means[1]
    return GainEstimate(gain, (gain - half, gain + half), *means)


def judged(gain: GainEstimate, predicted: float | None) -> Outcome:
    """Whether an action helped.

    Parameters
    ----------
    predicted : float or None, seconds per step
        The expected gain. Where it is unknown or not above 0, that is the loss before.

    Returns
    -------
    {"helped", "did_not_help", "unclear"}
        `helped` if the interval is above 0 and the gain at least a tenth of the expected one. `did_not_help`
        if the interval is below half of it.
    """
    low, high = gain.interval
    expected = predicted if predicted is not None and predicted > 0 else max(gain.before, 0.0)
    if low > 0 and gain.seconds >= HELPED_SHARE * expected:
        return "helped"
    return "did_not_help" if high < FAILED_SHARE * expected else "unclear"


def correction(gains: Mapping[str, Sequence[tuple[float, float]]]) -> Correction:
    """How the gain of an action compares with its predictions.

    Parameters
    ----------
    gains : mapping of str to sequence of (float, float), seconds per step
        By incident: observed and predicted gain of each use of the action. Uses without a prediction above 0
        do not count.

    Returns
    -------
    Correction
        Its factor is the median of the incidents, drawn to 1 as if there were four more without a correction.
    """
    ratios = []
    for uses in gains.values():
        known = [observed / predicted for observed, predicted in uses if predicted > 0]
        if known:
            ratios.append(min(max(median(known), 0.0), MAX_FACTOR))
    if not ratios:
        return Correction(0, None, 1.0)
    middle = median(ratios)
    n = len(ratios)
    return Correction(n, middle, (PRIOR_INCIDENTS + n * middle) / (PRIOR_INCIDENTS + n))
