"""Intervals that keep their promise: bootstrap intervals widened by what held-out windows showed.

The bootstrap knows how much the steps of a window differ. It does not know that the reference may be off, so
it covers less than it says. Margins come from split conformal prediction on held-out windows whose true cost
is known (conformalised quantile regression, Romano et al., 2019), per group of windows that err alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

#: Beliefs from here on are sure enough that look-alikes do not share the cost.
SURE = 0.9
#: A group with fewer held-out windows than this takes the margin of all windows together.
MIN_GROUP = 80
#: Group of windows that belong to none of the others.
ANY = "any"


class Held(NamedTuple):
    """One cause of a held-out window: what was answered, and what it really cost (seconds per step)."""

    group: str
    seconds: float
    low: float
    high: float
    slowdown: float
    true: float


def group_of(*, past: bool, transfer: bool, belief: float) -> str:
    """Interval group of a priced cause.

    Parameters
    ----------
    past : bool
        Whether the window holds quiet steps to compare the slow ones with.
    transfer : bool
        Whether part of the cost is a collective's transfer.
    belief : float
    """
    names = (
        "past" if past else "peers",
        "transfer" if transfer else "own",
        "sure" if belief >= SURE else "unsure",
    )
    return "-".join(names)


def fit_margins(held: Sequence[Held], level: float) -> dict[str, float]:
    """Margins that make the intervals cover at `level`, relative as in `widened`.

    Parameters
    ----------
    held : sequence of Held
    level : float
    """
    margins = {ANY: _conformal([_score(each) for each in held], level)}
    for group in sorted({each.group for each in held}):
        scores = [_score(each) for each in held if each.group == group]
        if len(scores) >= MIN_GROUP:
            margins[group] = _conformal(scores, level)
    return margins


def widened(
    margins: Mapping[str, float], group: str, seconds: float, low: float, high: float, slowdown: float
) -> tuple[float, float]:
    """The interval with its group's margin; as it was where none was fitted.

    Below, the margin is relative to the cost. Above, it is relative to the slowdown: what a cause costs
    beyond what it was charged with hides in the parts of others and in the unexplained.
    """
    margin = margins.get(group, margins.get(ANY, 0.0))
    return max(low - margin * seconds, 0.0), high + margin * max(slowdown, seconds)


def coverage(held: Sequence[Held], margins: Mapping[str, float]) -> float:
    """Share of the true costs within the widened intervals; NaN for none."""
    if not held:
        return float("nan")
    inside = 0
    for each in held:
        low, high = widened(margins, each.group, each.seconds, each.low, each.high, each.slowdown)
        inside += low <= each.true <= high
    return inside / len(held)


def _score(held: Held) -> float:
    """The smallest margin with which the interval would have held the true cost; negative if it does."""
    tiny = 1e-12
    below = (held.low - held.true) / max(held.seconds, tiny)
    above = (held.true - held.high) / max(held.slowdown, held.seconds, tiny)
    return max(below, above)


def _conformal(scores: Sequence[float], level: float) -> float:
    """The ceil((n + 1) level)-th smallest score, at least 0: intervals are widened, never narrowed."""
    if not scores:
        return 0.0
    place = min(ceil((len(scores) + 1) * level), len(scores)) - 1
    return max(float(np.sort(scores)[place]), 0.0)
