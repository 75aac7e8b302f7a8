"""What an incident cost: windows may overlap, and lost time counts once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Loss(NamedTuple):
    """One window and what was lost in it."""

    start: float
    end: float
    seconds: float
    gpu_hours: float


class Total(NamedTuple):
    """Sum over windows."""

    seconds: float
    gpu_hours: float


def total(losses: Iterable[Loss]) -> Total:
    """Add up: of a window that overlaps earlier ones, the share of its time that none of them covers.

    The order in which the windows are given does not matter.
    """
    seconds = hours = 0.0
    covered = float("-inf")
    for each in sorted(losses):
        length = each.end - each.start
        share = (each.end - max(each.start, covered)) / length if length > 0 else 1.0
        share = min(max(share, 0.0), 1.0)
        seconds += share * each.seconds
        hours += share * each.gpu_hours
        covered = max(covered, each.end)
    return Total(seconds, hours)
