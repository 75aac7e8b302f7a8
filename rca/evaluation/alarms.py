"""False alarms in the unit an operator budgets: per hour of a healthy job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rca.evaluation.intervals import poisson_rate
from rca.evaluation.rows import JudgedRow


class AlarmRate(NamedTuple):
    """False alarms of one method on healthy windows.

    Attributes
    ----------
    alarms, windows : int
    hours : float
        Summed length of the healthy windows.
    rate, low, high : float
        Alarms per healthy job-hour and its exact Poisson 95 % interval.
    """

    alarms: int
    windows: int
    hours: float
    rate: float
    low: float
    high: float


def alarm_rate(rows: Sequence[JudgedRow]) -> AlarmRate:
    """Count the healthy windows that were called anything else; unfelt faults are not among them."""
    healthy = [row for row in rows if not math.isnan(row.judged.false_alarm)]
    alarms = sum(row.judged.false_alarm == 1 for row in healthy)
    hours = sum(row.hours for row in healthy)
    return AlarmRate(alarms, len(healthy), hours, *poisson_rate(alarms, hours))
